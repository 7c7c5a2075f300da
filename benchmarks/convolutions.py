"""Our 3x3 convolutions for few channels, compared with cuDNN's on a GPU: kernel by kernel, and in training steps.

    python benchmarks/convolutions.py [--model resnet20] [--streams 1,8] [--steps 300]

First come the convolutions of a CIFAR ResNet at batch 128 in bfloat16: microseconds of forward, input gradient and
weight gradient in a CUDA graph, with the relative error against float32. Then come the seconds of an epoch of 390
captured and compiled steps of one model, by the number of models that run at once, each on its own stream. Only these
decide which kernel is better. In a pack, other models fill the gaps that a slow kernel leaves.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from common import describe_machine
from lastlayer.runners.conv3x3 import LAST, conv3x3, conv3x3_input, conv3x3_weight
from lastlayer.training import ModelChoice, load_data
from packed import BATCH, cifar_like
from packed_step import SAMPLES, lanes, seconds_per_epoch

# channels in and out, size, stride, and how many of it a ResNet-20 has
SHAPES = [(3, 16, 32, 1, 1), (16, 16, 32, 1, 6), (16, 32, 32, 2, 1), (32, 32, 16, 1, 5), (32, 64, 16, 2, 1),
          (64, 64, 8, 1, 5)]  # fmt: skip
KINDS = ("forward", "input", "weight")


def by_cudnn(kind: str, x: Tensor, dy: Tensor, weight: Tensor, stride: int) -> Tensor:
    if kind == "forward":
        return F.conv2d(x, weight, stride=stride, padding=1)
    mask = [kind == "input", kind == "weight", False]
    both = torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, mask
    )
    return both[kind == "weight"]


def by_ours(kind: str, x: Tensor, dy: Tensor, weight: Tensor, stride: int) -> Tensor:
    if kind == "forward":
        return conv3x3(x, weight, weight, stride)
    return conv3x3_input(dy, weight, stride) if kind == "input" else conv3x3_weight(x, dy, stride)


def graph_us(function: Callable[[], Tensor], times: int = 10, replays: int = 21) -> float:
    """Microseconds of a call inside a CUDA graph; the median of replays."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        function()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                function()
        marks = []
        for _ in range(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            marks.append((begin, end))
        stream.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in marks)[replays // 2] * 1000 / times


def print_kernels(console: Console) -> None:
    """Each convolution by cuDNN, as lastlayer trains with it, and by us, and their sums over a ResNet-20."""
    sums = {"cudnn": 0.0, "ours": 0.0}
    console.print("us by cuDNN, by us, the ratio, our relative error")
    for ci, co, size, stride, count in SHAPES:
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = (BATCH, ci, size, size), (BATCH, co, size // stride, size // stride), (co, ci, 3, 3)
        x, dy, weight = (
            torch.randn(shape, device="cuda", generator=generator).bfloat16().contiguous(memory_format=LAST)
            for shape in shapes
        )
        for kind in KINDS if ci >= 16 else ("forward", "weight"):  # nobody asks for the gradient of the images
            given = x, dy, weight, stride
            cudnn, ours = (graph_us(partial(by, kind, *given)) for by in (by_cudnn, by_ours))
            wanted = by_cudnn(kind, x.float(), dy.float(), weight.float(), stride)
            error = float((by_ours(kind, *given).float() - wanted).norm() / wanted.norm())
            name = f"{ci}-{co}@{size}/{stride}"
            console.print(f"{name:>12} {kind:8} {cudnn:6.1f} {ours:6.1f} {cudnn / ours:6.2f} {error:9.1e}")
            sums["cudnn"] += count * cudnn
            sums["ours"] += count * ours
    ratio = sums["cudnn"] / sums["ours"]
    console.print(f"a ResNet-20: cuDNN {sums['cudnn']:.0f} us, ours {sums['ours']:.0f} us, ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    console = Console(width=150, highlight=False)
    console.print(describe_machine())
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True  # as lastlayer trains
    torch.backends.cudnn.allow_tf32 = False  # of the float32 that errors are measured against
    print_kernels(console)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = before
    with tempfile.TemporaryDirectory() as folder:
        trial = dataclasses.replace(cifar_like(Path(folder), SAMPLES), model=ModelChoice(options.model))
        dataset = load_data(trial.data).to("cuda")
        counts = [int(count) for count in options.streams.split(",")]
        running = [lanes(trial, dataset, max(counts), convolutions=ours) for ours in (False, True)]
        for count in counts:
            cudnn, ours = (seconds_per_epoch(some[:count], options.steps) for some in running)
            console.print(
                f"{options.model}, {count} streams, s a model-epoch: "
                f"cuDNN {cudnn:.3f}, ours {ours:.3f}, ratio {cudnn / ours:.2f}"
            )


if __name__ == "__main__":
    main()
