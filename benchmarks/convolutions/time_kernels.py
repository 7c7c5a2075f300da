"""Every tile of the kernels compiled, checked against float32 and timed; the best against cuDNN. Run by bench.py."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import conv
import torch
import torch.nn.functional as F
from conv import LAST, Call, Key, Tile
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

N = 128
KINDS = ("fprop", "dgrad", "wgrad")


class Shape(NamedTuple):
    """A convolution of one group, and how many of it a ResNet-20 has."""

    ci: int
    co: int
    size: int
    stride: int
    count: int

    def __str__(self) -> str:
        return f"{self.ci}-{self.co}@{self.size}/{self.stride}"

    @property
    def kinds(self) -> tuple[str, ...]:
        return KINDS if self.ci >= 16 else ("fprop", "wgrad")  # nobody asks for the gradient of the images


SHAPES = [
    Shape(3, 16, 32, 1, 1), Shape(16, 16, 32, 1, 6), Shape(16, 32, 32, 2, 1),
    Shape(32, 32, 16, 1, 5), Shape(32, 64, 16, 2, 1), Shape(64, 64, 8, 1, 5),
]  # fmt: skip


class Operands(NamedTuple):
    x: Tensor
    dy: Tensor
    w16: Tensor
    y: Tensor
    dx: Tensor
    dw: Tensor


def operands(
    shape: Shape, groups: int, major: bool, device: str = "cuda", dtype: torch.dtype = torch.bfloat16
) -> Operands:
    """Random x, dy and weight of a convolution, and room for its results."""
    ci, co, size, stride, _ = shape
    generator = None if device == "meta" else torch.Generator(device).manual_seed(ci + co + groups)
    draw = partial(torch.randn, device=device, generator=generator)
    n, a, b = (N * groups, ci, co) if major else (N, ci * groups, co * groups)
    x = draw(n, a, size, size).to(dtype).contiguous(memory_format=LAST)
    dy = draw(n, b, size // stride, size // stride).bfloat16().contiguous(memory_format=LAST)
    w16 = (draw(groups * co, ci, 3, 3) * (2 / (9 * co)) ** 0.5).bfloat16().contiguous(memory_format=LAST)
    dx, dw = torch.empty_like(x, dtype=torch.bfloat16), torch.empty_like(w16, dtype=torch.float32)
    return Operands(x, dy, w16, torch.empty_like(dy), dx, dw)


def calls(
    kind: str, shape: Shape, given: Operands, groups: int, major: bool, tile: Tile | None = None
) -> tuple[Sequence[Call], Tensor]:
    """The launches of a kind, and where they leave their result."""
    ci, co, _, stride, _ = shape
    how = stride, groups, major
    if kind == "fprop":
        return [conv.forward_call(given.x, given.w16, given.y, *how, tile)], given.y
    if kind == "dgrad":
        return [conv.input_call(given.dy, given.w16, given.dx, *how, tile)], given.dx
    t = tile or conv.tile_for(("wgrad", ci, co, stride))
    size = groups * t.parts * conv.part_size(ci, co, stride, t)
    parts = torch.empty(size, dtype=torch.float32, device=given.x.device)
    return conv.weight_calls(given.x, given.dy, parts, given.dw, *how, tile), given.dw


def launch(some: Sequence[Call]) -> None:
    for call in some:
        call.launch()


def by_torch(kind: str, x: Tensor, dy: Tensor, weight: Tensor, stride: int) -> Tensor:
    if kind == "fprop":
        return F.conv2d(x, weight, stride=stride, padding=1)
    mask = [kind == "dgrad", kind == "wgrad", False]
    both = torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, mask
    )
    return both[kind == "wgrad"]


def reference(kind: str, given: Operands, stride: int) -> Tensor:
    """float32 without tf32, of the same rounded operands of one group."""
    return by_torch(kind, given.x.float(), given.dy.float(), given.w16.float(), stride)


def relative_error(some: Sequence[Call], out: Tensor, wanted: Tensor) -> float:
    """Of the launches' result; NaN where something is left unwritten."""
    out.fill_(float("nan"))
    launch(some)
    return float((out.float() - wanted).norm() / wanted.norm())


# ------------------------------------------------------------------------------------------------ compiling


class _Hopper:
    """Stands for a GPU that a forked process may not touch; on another kind of GPU tiles compile when launched."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


Task = tuple[str, Shape, Tile, int, bool, torch.dtype]


def compile_one(task: Task) -> str | None:
    """Into Triton's cache on the disk; what went wrong, if anything."""
    kind, shape, tile, groups, major, dtype = task
    driver.set_active(_Hopper())
    try:
        for call in calls(kind, shape, operands(shape, groups, major, "meta", dtype), groups, major, tile)[0]:
            call.compile()
    except Exception as error:
        return f"{kind} {shape} {tile}: {type(error).__name__}: {str(error)[:300]}"
    return None


def tasks() -> Iterator[Task]:
    bf16, f32 = torch.bfloat16, torch.float32
    for shape in SHAPES:
        forms = [(1, False, bf16)]  # numbers of groups and layouts are not compiled in, but for the strides of images
        if shape.ci < 16:
            forms = [(1, False, f32), (1, False, bf16), (8, False, bf16), (8, True, bf16)]
        for kind in shape.kinds:
            for tile in conv.CANDIDATES[kind, shape.ci, shape.co, shape.stride]:
                for form in forms:
                    yield kind, shape, tile, *form


def compile_all(seconds: float) -> None:
    triton_key()  # reads all of Triton: once, here, and not in every process
    todo = list(tasks())
    with multiprocessing.get_context("fork").Pool(min(12, os.cpu_count() or 1)) as pool:
        try:
            bad = [line for line in pool.map_async(compile_one, todo, chunksize=2).get(timeout=seconds) if line]
        except multiprocessing.TimeoutError:
            print(f"out of time for {len(todo)} tiles; those that are missing compile when launched")
            return
    print("\n  ".join([f"{len(todo)} compiled, {len(bad)} FAILED" if bad else f"{len(todo)} compiled", *bad[:4]]))


# ------------------------------------------------------------------------------------------------ times


def prepare() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    gc.disable()


def release() -> None:
    torch.cuda.empty_cache()


def graph_us(function: Callable[[], Any], times: int = 10, replays: int = 7) -> float:
    """Microseconds of a call inside a CUDA graph; the median of replays."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        function()
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")  # by hand: torch.cuda.graph collects garbage first
        try:
            for _ in range(times):
                function()
        finally:
            graph.capture_end()
        graph.replay()
        marks = []
        for _ in range(replays):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            marks.append((a, b))
        stream.synchronize()
    return sorted(a.elapsed_time(b) for a, b in marks)[replays // 2] * 1000 / times


def tune(choices: dict[Key, int], until: float) -> None:
    """Choose the fastest tile of eight groups among those that are right."""
    for shape in SHAPES:
        one, eight = operands(shape, 1, False), operands(shape, 8, False)
        for kind in shape.kinds:
            key = (kind, shape.ci, shape.co, shape.stride)
            wanted = reference(kind, one, shape.stride)
            best, line = None, []
            for i, tile in enumerate(conv.CANDIDATES[key]):
                if best is not None and time.time() > until:
                    line.append("out of time")
                    break
                try:
                    some, out = calls(kind, shape, one, 1, False, tile)
                    error = relative_error(some, out, wanted)
                    if not error < (1e-3 if kind == "wgrad" else 5e-3):
                        line.append(f"{i}: WRONG {error:.1e}")
                        continue
                    alone = graph_us(partial(launch, some))
                    grouped = graph_us(partial(launch, calls(kind, shape, eight, 8, False, tile)[0])) / 8
                except Exception as failure:
                    line.append(f"{i}: FAILED {type(failure).__name__} {str(failure)[:80]}")
                    continue
                line.append(f"{alone:.1f}/{grouped:.2f}")
                if best is None or grouped < best[0]:
                    best = grouped, i, error
            if best is not None:
                _, i, error = best
                choices[key] = i
                conv.choose({key: conv.CANDIDATES[key][i]})
                line.append(f"-> {i} ({conv.CANDIDATES[key][i]}), error {error:.1e}")
            print(f"{kind} {shape}:", "  ".join(line))


def check_groups(until: float) -> None:
    """Eight groups against each alone, bit for bit, in both layouts; each call twice."""
    for shape in SHAPES:
        for major in (False, True):
            if time.time() > until:
                print(f"out of time before {shape} major {major}")
                return
            given = operands(shape, 8, major)
            dim = 0 if major else 1
            chunks = [t.chunk(8, d) for t, d in zip(given, (dim, dim, 0, dim, dim, 0), strict=True)]
            each = [Operands(*(c[g].contiguous(memory_format=LAST) for c in chunks)) for g in range(8)]
            for kind in shape.kinds:
                some, out = calls(kind, shape, given, 8, major)
                out.fill_(float("nan"))
                launch(some)
                first = out.clone()
                launch(some)
                same = torch.equal(first, out)
                for own, wanted in zip(each, out.chunk(8, 0 if kind == "wgrad" else dim), strict=True):
                    some, alone = calls(kind, shape, own, 1, False)
                    alone.fill_(float("nan"))
                    launch(some)
                    same &= torch.equal(alone, wanted)
                if not same:
                    print(f"BITS DIFFER {kind} {shape} major {major}")
    print("bits of groups and repetitions: compared (differences are named above)")


COLUMNS = {"ours": (1, False), "G=8 (by 8)": (8, False), "major (by 8)": (8, True)}


def table(until: float) -> None:
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True  # as lastlayer trains
    names = ("cudnn", *COLUMNS)
    print("us of fprop / dgrad / wgrad")
    print(f"{'shape':>14}", *(f"{name:>20}" for name in names))
    sums = dict.fromkeys(names, 0.0)
    for shape in SHAPES:
        if time.time() > until:
            print(f"out of time before {shape}: no sums")
            return
        times: dict[tuple[str, str], float] = {}
        for kind in shape.kinds:
            for name, (groups, major) in COLUMNS.items():
                given = operands(shape, groups, major)
                times[name, kind] = graph_us(partial(launch, calls(kind, shape, given, groups, major)[0])) / groups
                if groups == 1:
                    theirs = partial(by_torch, kind, given.x, given.dy, given.w16, shape.stride)
                    times["cudnn", kind] = graph_us(theirs)
        text = [" / ".join(f"{times[n, k]:.1f}" if k in shape.kinds else "-" for k in KINDS) for n in names]
        print(f"{shape!s:>14}", *(f"{t:>20}" for t in text))
        for name in names:
            sums[name] += shape.count * sum(times[name, kind] for kind in shape.kinds)
    print("all of a ResNet-20, us a model and step:", ", ".join(f"{name} {us:.0f}" for name, us in sums.items()))
    print("times as fast as cudnn:", ", ".join(f"{name} {sums['cudnn'] / sums[name]:.2f}" for name in COLUMNS))
