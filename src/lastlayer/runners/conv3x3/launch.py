"""How the kernels cut their work: one fixed tile per shape, so that a trial has the same bits alone and packed."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LAST = torch.channels_last


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work."""

    th: int  # output pixels of a block, down and across
    tw: int
    pxc: int  # neighbouring pixels of a run of K
    block: int  # blocks of a program at a time
    warps: int = 4
    stages: int = 1
    khs: int = 3  # tap rows of a program of the weight gradient, 1 or 3
    parts: int = 0  # of the weight gradient's sum


# (forward, input gradient, weight gradient) by channels in, channels out and stride. They were the fastest on an H200
# for the sizes of a CIFAR ResNet, with batches of 128 and eight models at once.
_STEM = (Tile(1, 1, 1, 256, 8), None, Tile(1, 1, 1, 128, 4, 3, parts=256))
TILES: dict[tuple[int, int, int], tuple[Tile, Tile | None, Tile]] = {
    (1, 16, 1): _STEM,
    (3, 16, 1): _STEM,
    (16, 16, 1): (Tile(4, 2, 4, 64), Tile(4, 2, 4, 64), Tile(2, 2, 4, 64, 4, 2, parts=128)),
    (16, 32, 2): (Tile(2, 1, 4, 64), Tile(2, 2, 2, 128), Tile(1, 1, 4, 64, 4, 3, parts=128)),
    (32, 32, 1): (Tile(2, 1, 1, 64, 4, 2), Tile(2, 1, 1, 64, 4, 2), Tile(1, 1, 4, 64, 4, 3, khs=1, parts=64)),
    (32, 64, 2): (Tile(1, 1, 1, 64, 4, 3), Tile(2, 2, 1, 64), Tile(1, 1, 4, 64, 4, 3, khs=1, parts=32)),
    (64, 64, 1): (Tile(2, 1, 1, 64, 4, 2), Tile(2, 1, 1, 64, 4, 2), Tile(1, 1, 1, 64, khs=1, parts=16)),
}


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    warps: int = 4
    stages: int = 1

    def launch(self) -> None:
        self.kernel[(self.programs,)](*self.args, num_warps=self.warps, num_stages=self.stages)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _taps(ci: int) -> int:
    """Taps and channels of a stem as one run of K: a power of two."""
    return max(16, 1 << (9 * ci - 1).bit_length())


def forward_call(x: Tensor, weight: Tensor, y: Tensor, stride: int) -> Call:
    """Write the convolution of x into y, both channels_last (a stem's x of any strides)."""
    from lastlayer.runners.conv3x3 import kernels

    (n, co, ho, wo), ci, (h, w) = y.shape, x.shape[1], x.shape[2:]
    t = TILES[ci, co, stride][0]
    args: tuple[Any, ...]
    if ci < 16:
        blocks = n * ho * wo
        args = (x, weight, y, *x.stride(), blocks, h, w, ci, co, _taps(ci), t.block, _interpreted())
        return Call(kernels.stem_kernel, _cdiv(blocks, t.block), args, t.warps, t.stages)
    blocks = n * (ho // t.th) * (wo // t.tw)
    args = (x, weight, y, blocks, h, w, ho // t.th, wo // t.tw, ci, co, stride * (t.tw - 1) + 3, t.pxc,
            stride * (t.th - 1) + 3, t.th, t.tw, stride * t.th, stride * t.tw, -1, stride, False, t.block,
            _interpreted())  # fmt: skip
    return Call(kernels.patch_kernel, _cdiv(blocks, t.block), args, t.warps, t.stages)


def input_call(dy: Tensor, weight: Tensor, dx: Tensor, stride: int) -> Call:
    """Write the gradient with respect to the input into dx, of at least 16 channels."""
    from lastlayer.runners.conv3x3 import kernels

    (n, co, ho, wo), ci, (h, w) = dy.shape, dx.shape[1], dx.shape[2:]
    t = TILES[ci, co, stride][1]
    assert t is not None
    blocks = n * (h // t.th) * (w // t.tw)
    rows, px = (t.th + 2, t.tw + 2) if stride == 1 else (t.th // 2 + 1, t.tw // 2 + 1)
    args = (dy, weight, dx, blocks, ho, wo, h // t.th, w // t.tw, co, ci, px, t.pxc, rows, t.th, t.tw,
            t.th // stride, t.tw // stride, -1 if stride == 1 else 0, stride, True, t.block,
            _interpreted())  # fmt: skip
    return Call(kernels.patch_kernel, _cdiv(blocks, t.block), args, t.warps, t.stages)


def weight_calls(x: Tensor, dy: Tensor, dw: Tensor, stride: int) -> tuple[Call, Call]:
    """Write the gradient with respect to the weight into dw: sums of parts, then their sum."""
    from lastlayer.runners.conv3x3 import kernels

    (n, co, ho, wo), ci, (h, w) = dy.shape, x.shape[1], x.shape[2:]
    t = TILES[ci, co, stride][2]
    blocks = n * (ho // t.th) * (wo // t.tw)
    iters = _cdiv(blocks, t.parts * t.block)
    px = stride * (t.tw - 1) + 3
    pixels, taps = (0, _taps(ci)) if ci < 16 else (_cdiv(px, t.pxc) * t.pxc, 0)
    size = co * taps if taps else 3 * pixels * t.tw * co * ci
    parts = torch.empty(t.parts * size, dtype=torch.float32, device=x.device)
    args: tuple[Any, ...]
    if taps:
        args = (x, dy, parts, *x.stride(), blocks, iters, h, w, ci, co, taps, t.block, _interpreted())
        first = Call(kernels.stem_weight_kernel, t.parts, args, t.warps, t.stages)
    else:
        args = (x, dy, parts, blocks, iters, t.parts, h, w, ho // t.th, wo // t.tw, ci, co, px, t.pxc, t.th, t.tw,
                stride, t.khs, t.block, _interpreted())  # fmt: skip
        first = Call(kernels.weight_kernel, t.parts * (3 // t.khs), args, t.warps, t.stages)
    elements, at_once = (16, 64) if ci <= 16 else (64, 32) if ci == 32 else (256, 16)
    args = (parts, dw, t.parts, ci, co, pixels, t.tw, stride, taps, at_once, elements)
    return first, Call(kernels.add_parts_kernel, _cdiv(9 * ci * co, elements), args)
