"""The convolution kernels against float64, on a GPU or, where there is none, by Triton's interpreter."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.runners.conv3x3 import conv3x3, conv3x3_input, conv3x3_weight, launch

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = torch.channels_last
STEP = 2.0**-8 if torch.cuda.is_available() else 2.0**-7  # of bfloat16: the interpreter cuts off, a GPU rounds
SHAPES = list(launch.TILES)
Shape = tuple[int, int, int]


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes milliseconds for each."""
    if DEVICE == "cpu":
        for shape, (forward, towards_input, towards_weight) in launch.TILES.items():
            tiles = forward, towards_input, dataclasses.replace(towards_weight, parts=5)
            monkeypatch.setitem(launch.TILES, shape, tiles)


def draw(shape: Shape, n: int, height: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x and dy in bfloat16, the weight in float32."""
    ci, co, stride = shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, ci, height, width, generator=generator).bfloat16()
    weight = torch.randn(co, ci, 3, 3, generator=generator) / (9 * ci) ** 0.5
    dy = torch.randn(n, co, height // stride, width // stride, generator=generator).bfloat16()
    x, weight, dy = (t.to(DEVICE).contiguous(memory_format=LAST) for t in (x, weight, dy))
    return x, weight, dy


def ours(x: Tensor, weight: Tensor, dy: Tensor, stride: int) -> list[Tensor]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.shape[1] >= 16)
    weight = weight.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = conv3x3(x, weight, weight.detach().bfloat16(), stride)
    assert y.is_contiguous(memory_format=LAST)
    assert y.dtype is torch.bfloat16
    wanted = [x, weight] if x.requires_grad else [weight]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy)]


def exact(x: Tensor, weight: Tensor, dy: Tensor, stride: int) -> list[Tensor]:
    """float64, of the operands as the kernels see them: rounded to bfloat16."""
    x = x.bfloat16().double().cpu().requires_grad_(x.shape[1] >= 16)
    weight = weight.bfloat16().double().cpu().requires_grad_()
    y = F.conv2d(x, weight, stride=stride, padding=1)
    wanted = [x, weight] if x.requires_grad else [weight]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy.double().cpu())]


def assert_near(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        scale = b.abs().max()
        step = STEP if a.dtype is torch.bfloat16 else 0.0
        error = (a.double().cpu() - b).abs()
        assert torch.all(error <= step * b.abs() + 4e-6 * scale), float((error / (b.abs() + 1e-3 * scale)).max())
        if a.dtype is torch.float32:
            assert a.is_contiguous(memory_format=LAST)


# an image alone and not square; images that fill more than a block, but not the last one; images in part of a block
@pytest.mark.parametrize(
    "size", [(1, 4, 12), (3, 16, 16), pytest.param((3, 8, 8), marks=pytest.mark.thorough)], ids=str
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_float64(shape: Shape, size: tuple[int, int, int]) -> None:
    x, weight, dy = draw(shape, *size)
    assert_near(ours(x, weight, dy, shape[2]), exact(x, weight, dy, shape[2]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_float32(shape: Shape) -> None:
    """The kernels with float32 outputs, which show what the rounding at the end would hide."""
    ci, _, stride = shape
    x, weight, dy = draw(shape, 2, 8, 8)
    wanted = exact(x, weight, dy, stride)
    y = torch.full_like(dy, float("nan"), dtype=torch.float32)
    launch.forward_call(x, weight.bfloat16(), y, stride).launch()
    assert_near([y], wanted[:1])
    if ci >= 16:
        dx = torch.full_like(x, float("nan"), dtype=torch.float32)
        launch.input_call(dy, weight.bfloat16(), dx, stride).launch()
        assert_near([dx], wanted[1:2])


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("ci", [1, 3])
def test_a_stem_takes_float32_and_any_strides(ci: int) -> None:
    x, weight, dy = draw((ci, 16, 1), 2, 4, 8)
    wanted = ours(x, weight, dy, 1)
    for other in (x.float(), x.float().contiguous(), x.contiguous(), x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert_same(ours(other, weight, dy, 1), wanted)


def test_other_strides_are_copied() -> None:
    x, weight, dy = draw((16, 16, 1), 2, 4, 8)
    assert_same(ours(x.contiguous(), weight.contiguous(), dy.contiguous(), 1), ours(x, weight, dy, 1))


def test_the_input_gradient_has_the_dtype_of_the_input() -> None:
    x, weight, dy = draw((16, 16, 1), 2, 8, 8)
    wide = x.float().requires_grad_()
    (dx,) = torch.autograd.grad(conv3x3(wide.bfloat16(), weight, weight.bfloat16(), 1), [wide], dy)
    assert dx.dtype is torch.float32
    assert_near([dx.bfloat16()], exact(x, weight, dy, 1)[1:2])


def test_compiled() -> None:
    """One graph, forward and backward, in the layout that the kernels read: nothing is copied."""
    x, weight, dy = draw((16, 16, 1), 1, 4, 4)
    scale = torch.ones(16, 1, 1, device=DEVICE)

    def step(x: Tensor, weight: Tensor, narrow: Tensor, scale: Tensor) -> Tensor:
        return conv3x3(F.relu(x * scale).to(torch.bfloat16), weight, narrow, 1)

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, weight)]
        with torch.autocast(DEVICE, torch.bfloat16):
            y = function(*leaves, weight.bfloat16(), scale)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    compiled = torch.compile(step, dynamic=False, fullgraph=True)
    for a, b in zip(run(step), run(compiled), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        run(compiled)
    names = [event.name for event in seen.events()]
    assert names.count("lastlayer::conv3x3_weight") == 1
    assert "aten::contiguous" not in names


def test_opcheck() -> None:
    x, weight, dy = draw((16, 32, 2), 1, 4, 4)
    narrow = weight.bfloat16()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(conv3x3, (x.requires_grad_(), weight.requires_grad_(), narrow, 2), test_utils=checks)
    torch.library.opcheck(conv3x3_input, (dy, narrow, 2), test_utils=checks)
    torch.library.opcheck(conv3x3_weight, (x.detach(), dy, 2), test_utils=checks)


COMPILE = """
import torch
from tests import hopper
from lastlayer.runners.conv3x3 import launch

hopper.pretend()

def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta").contiguous(memory_format=torch.channels_last)

done = 0
for ci, co, stride in [(3, 16, 1), (16, 32, 2)]:
    x = torch.empty(128, 3, 32, 32, device="meta") if ci == 3 else empty(128, ci, 32, 32)
    y, weight = empty(128, co, 32 // stride, 32 // stride), empty(co, ci, 3, 3)
    calls = [launch.forward_call(x, weight, y, stride), *launch.weight_calls(x, y, weight.float(), stride)]
    if ci >= 16:
        calls.append(launch.input_call(y, weight, x, stride))
    for call in calls:
        call.kernel.warmup(*call.args, grid=(call.programs,), num_warps=call.warps, num_stages=call.stages)
        done += 1
print(done)
"""


def test_compiles_without_a_gpu(tmp_path: Path) -> None:
    """Each kernel, for Hopper: the interpreter takes Python that the compiler does not, such as (*a, b)."""
    found = os.pathsep.join(sys.path)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": found}
    result = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert result.stdout.strip() == "7", result.stdout + result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "size"), list(zip(SHAPES, (32, 32, 32, 32, 16, 16, 8), strict=True)))
def test_on_a_gpu_as_exact_as_cudnn_and_the_same_bits_each_time(shape: Shape, size: int) -> None:
    x, weight, dy = draw(shape, 128, size, size)
    found = ours(x, weight, dy, shape[2])
    assert_same(ours(x, weight, dy, shape[2]), found)
    x.requires_grad_(shape[0] >= 16)
    narrow = weight.bfloat16().requires_grad_()
    y = F.conv2d(x, narrow, stride=shape[2], padding=1)
    theirs = [y.detach(), *torch.autograd.grad(y, [x, narrow] if x.requires_grad else [narrow], dy)]
    wanted = exact(x.detach(), weight, dy, shape[2])
    for a, b, c in zip(found, theirs, wanted, strict=True):
        assert (a.double().cpu() - c).norm() <= 1.1 * (b.double().cpu() - c).norm()
