"""The kernels against float64, on a GPU or, where there is none, by Triton's interpreter (minutes).

    python -m pytest -o addopts= benchmarks/convolutions

from the repository root, with lastlayer installed or PYTHONPATH=src; skipped without Triton.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton")

import conv
import torch.nn.functional as F
from conv import CANDIDATES, LAST, Tile, conv3x3
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = 2.0**-8 if torch.cuda.is_available() else 2.0**-7  # of bfloat16: the interpreter cuts off, a GPU rounds
torch.set_num_threads(1)


def small(tile: Tile) -> Tile:
    """Of fewer parts, since the interpreter takes milliseconds for each."""
    return dataclasses.replace(tile, parts=5) if tile.parts and DEVICE == "cpu" else tile


@pytest.fixture(autouse=True)
def default_tiles():
    conv._chosen.clear()
    conv.choose({key: small(tiles[0]) for key, tiles in CANDIDATES.items()})
    yield
    conv._chosen.clear()


def draw(ci: int, co: int, stride: int, groups: int, n: int, size: int, seed: int = 0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, groups * ci, size, size, generator=generator).to(dtype)
    weight = torch.randn(groups * co, ci, 3, 3, generator=generator) / (9 * ci) ** 0.5
    dy = torch.randn(n, groups * co, size // stride, size // stride, generator=generator).bfloat16()
    return (t.to(DEVICE).contiguous(memory_format=LAST) for t in (x, weight, dy))


def ours(x: Tensor, weight: Tensor, dy: Tensor, stride: int, groups: int, major: bool = False) -> list[Tensor]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(weight.shape[1] >= 16)
    weight = weight.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = conv3x3(x, weight, stride, groups, major=major)
    assert y.is_contiguous(memory_format=LAST)
    assert y.dtype is torch.bfloat16
    wanted = [x, weight] if x.requires_grad else [weight]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy)]


def exact(x: Tensor, weight: Tensor, dy: Tensor, stride: int, groups: int) -> list[Tensor]:
    """float64, of the operands as the kernels see them: rounded to bfloat16."""
    x = x.bfloat16().double().cpu().requires_grad_(weight.shape[1] >= 16)
    weight = weight.bfloat16().double().cpu().requires_grad_()
    y = F.conv2d(x, weight, stride=stride, padding=1, groups=groups)
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


SHAPES = [(3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize(("ci", "co", "stride"), SHAPES)
def test_equal_float64(ci: int, co: int, stride: int, size: int) -> None:
    groups, n = 2, 3  # images that do not fill the last block
    x, weight, dy = draw(ci, co, stride, groups, n, size)
    assert_near(ours(x, weight, dy, stride, groups), exact(x, weight, dy, stride, groups))


@pytest.mark.parametrize(("ci", "co", "stride"), SHAPES)
def test_sums_are_float32(ci: int, co: int, stride: int) -> None:
    """The kernels with float32 outputs, which show what the rounding at the end would hide."""
    x, weight, dy = draw(ci, co, stride, 2, 2, 8)
    wanted = exact(x, weight, dy, stride, 2)
    y = torch.full_like(dy, float("nan"), dtype=torch.float32)
    conv.forward_call(x, weight.bfloat16(), y, stride, 2, False).launch()
    assert_near([y], wanted[:1])
    if ci >= 16:
        dx = torch.full_like(x, float("nan"), dtype=torch.float32)
        conv.input_call(dy, weight.bfloat16(), dx, stride, 2, False).launch()
        assert_near([dx], wanted[1:2])


TILES = [(key, i) for key, tiles in CANDIDATES.items() for i in range(1, len(tiles))]


@pytest.mark.parametrize(("key", "i"), TILES)
def test_every_tile(key: conv.Key, i: int) -> None:
    _, ci, co, stride = key
    conv.choose({key: small(CANDIDATES[key][i])})
    x, weight, dy = draw(ci, co, stride, 1, 2, 8, seed=i)
    assert_near(ours(x, weight, dy, stride, 1), exact(x, weight, dy, stride, 1))


@pytest.mark.parametrize(
    ("ci", "co", "stride"), [(16, 64, 1), (32, 16, 1), (64, 32, 2), (16, 16, 2), (64, 16, 2), (1, 32, 1)]
)
def test_shapes_without_a_tile_of_their_own(ci: int, co: int, stride: int) -> None:
    x, weight, dy = draw(ci, co, stride, 2, 2, 8)
    assert_near(ours(x, weight, dy, stride, 2), exact(x, weight, dy, stride, 2))


def test_not_square() -> None:
    x = torch.randn(2, 16, 4, 12).bfloat16().to(DEVICE).contiguous(memory_format=LAST)
    weight = torch.randn(32, 16, 3, 3, device=DEVICE).contiguous(memory_format=LAST)
    dy = torch.randn(2, 32, 2, 6).bfloat16().to(DEVICE).contiguous(memory_format=LAST)
    conv.choose({("fprop", 16, 32, 2): Tile(1, 1, 4, 64), ("dgrad", 16, 32, 2): Tile(2, 2, 2, 64)})
    assert_near(ours(x, weight, dy, 2, 1), exact(x, weight, dy, 2, 1))


@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize(("ci", "co", "stride"), SHAPES)
def test_a_group_has_the_same_bits_alone(ci: int, co: int, stride: int, major: bool) -> None:
    groups, n, size = 3, 2, 8
    each = [list(draw(ci, co, stride, 1, n, size, seed)) for seed in range(groups)]
    dim = 0 if major else 1
    x, dy = (torch.cat([e[i] for e in each], dim).contiguous(memory_format=LAST) for i in (0, 2))
    weight = torch.cat([e[1] for e in each]).contiguous(memory_format=LAST)
    together = ours(x, weight, dy, stride, groups, major)
    alone = [ours(*e, stride, 1) for e in each]
    dims = [dim, dim, 0] if ci >= 16 else [dim, 0]
    for i, d in enumerate(dims):
        assert torch.equal(together[i], torch.cat([a[i] for a in alone], d))


def test_stem_takes_float32_and_any_strides() -> None:
    x, weight, dy = draw(3, 16, 1, 2, 2, 8, dtype=torch.float32)
    x = x.bfloat16().float()
    wanted = ours(x.bfloat16(), weight, dy, 1, 2)
    for other in (x, x.contiguous(), x.bfloat16().contiguous()):
        for a, b in zip(ours(other, weight, dy, 1, 2), wanted, strict=True):
            assert torch.equal(a, b)


def test_other_strides_are_copied() -> None:
    x, weight, dy = draw(16, 16, 1, 1, 2, 8)
    wanted = ours(x, weight, dy, 1, 1)
    for a, b in zip(ours(x.contiguous(), weight.contiguous(), dy.contiguous(), 1, 1), wanted, strict=True):
        assert torch.equal(a, b)


def test_autocast_and_float32_master() -> None:
    x, weight, dy = draw(16, 16, 1, 1, 2, 8)
    x32, w32 = x.float().requires_grad_(), weight.requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        y = conv3x3(x32, w32)
    dx, dw = torch.autograd.grad(y, [x32, w32], dy)
    assert (dx.dtype, dw.dtype) == (torch.float32, torch.float32)
    _, wanted_x, wanted_w = exact(x, weight.detach(), dy, 1, 1)
    assert_near([dx.bfloat16(), dw], [wanted_x, wanted_w])


def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph, forward and backward; inductor's own code is for the CPU here, the operators are the same."""
    last, copies = conv._last, []
    monkeypatch.setattr(conv, "_last", lambda t: (copies.append(not t.is_contiguous(memory_format=LAST)), last(t))[1])
    x, weight, dy = draw(16, 16, 1, 2, 2, 8)
    scale = torch.ones(32, 1, 1, device=DEVICE)

    def step(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        (w16,) = conv.to_bfloat16([weight.detach()])
        y = conv3x3(F.relu(x * scale), weight, 1, 2, w16=w16)
        return conv3x3(F.relu(y), weight, 1, 2, w16=w16)

    results = []
    for function in (step, torch.compile(step, dynamic=False, fullgraph=True)):
        leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, weight, scale)]
        with torch.autocast(DEVICE, torch.bfloat16):
            y = function(*leaves)
        results.append([y.detach(), *torch.autograd.grad(y, leaves[:2], dy)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    assert copies
    assert not any(copies)


def test_opcheck() -> None:
    x, weight, dy = draw(16, 32, 2, 2, 2, 8)
    w16 = weight.bfloat16()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(conv.conv, (x.requires_grad_(), weight.requires_grad_(), w16, 2, 2, False), test_utils=checks)
    torch.library.opcheck(conv.conv_input, (dy, w16, 2, 2, False), test_utils=checks)
    torch.library.opcheck(conv.conv_weight, (x.detach(), dy, 2, 2, False), test_utils=checks)
    torch.library.opcheck(conv.to_bfloat16, ([weight.detach()],), test_utils=checks)


def test_errors() -> None:
    x, weight, _ = draw(16, 16, 1, 1, 2, 8)
    with pytest.raises(ValueError, match="no kernel for 16 to 8"):
        conv3x3(x, weight[:8])
    with pytest.raises(ValueError, match="multiples of 4"):
        conv3x3(x[:, :, :6], weight)


COMPILE = """
import time_kernels as tk
first = {task[:2]: task for task in reversed(list(tk.tasks())) if task[1] in tk.SHAPES[:2]}
bad = [tk.compile_one(task) for task in first.values()]
print(len(bad), *filter(None, bad))
"""


def test_compiles_without_a_gpu(tmp_path: Path) -> None:
    """Each kernel once, for Hopper: the interpreter takes Python that the compiler does not, such as (*a, b)."""
    found = os.pathsep.join(sys.path)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": found}
    result = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert result.stdout.strip() == "5", result.stdout + result.stderr
