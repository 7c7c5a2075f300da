"""3x3 convolutions of few channels, in groups, for one model or several side by side: operators over kernels.py.

Activations are channels_last, either with the groups beside each other as channels, (N, G C, H, W), or one after the
other as images (major=True), (G N, C, H, W). Tests: test_conv.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import kernels
import torch
import triton
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
LAST = torch.channels_last


# ------------------------------------------------------------------------------------------------ tiles


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work; `block` is BM or BK, `parts` the parts of a weight gradient, `khs` its tap rows in a
    program."""

    th: int
    tw: int
    pxc: int
    block: int
    warps: int = 4
    stages: int = 1
    khs: int = 3
    parts: int = 0

    def __str__(self) -> str:
        extra = f" khs{self.khs} S{self.parts}" if self.parts else ""
        return f"{self.th}x{self.tw} px{self.pxc} b{self.block} w{self.warps} s{self.stages}{extra}"


Key = tuple[str, int, int, int]  # fprop, dgrad or wgrad; channels in and out of a group; stride. Never the groups

# The first is taken unless `choose` says otherwise; all give the right result.
CANDIDATES: dict[Key, list[Tile]] = {
    ("fprop", 3, 16, 1): [Tile(1, 1, 1, 128, 4), Tile(1, 1, 1, 64, 2), Tile(1, 1, 1, 256, 8)],
    ("wgrad", 3, 16, 1): [Tile(1, 1, 1, 128, 4, parts=256), Tile(1, 1, 1, 64, 2, parts=512),
                          Tile(1, 1, 1, 128, 4, 3, parts=256)],
    ("fprop", 16, 16, 1): [Tile(2, 2, 4, 64), Tile(4, 2, 4, 64), Tile(2, 2, 4, 128), Tile(4, 1, 1, 64, 2)],
    ("dgrad", 16, 16, 1): [Tile(2, 2, 4, 64), Tile(4, 2, 4, 64), Tile(2, 2, 4, 128), Tile(4, 1, 1, 64, 2)],
    ("wgrad", 16, 16, 1): [Tile(2, 2, 4, 64, parts=128), Tile(1, 2, 4, 64, parts=128), Tile(1, 2, 4, 128, parts=128),
                           Tile(2, 2, 4, 64, 4, 2, parts=128), Tile(2, 2, 4, 64, parts=256),
                           Tile(2, 2, 4, 64, parts=64)],
    ("fprop", 16, 32, 2): [Tile(1, 1, 4, 64), Tile(1, 1, 4, 128), Tile(2, 1, 4, 64)],
    ("dgrad", 16, 32, 2): [Tile(2, 2, 2, 64), Tile(2, 2, 2, 128)],
    ("wgrad", 16, 32, 2): [Tile(1, 1, 4, 64, parts=128), Tile(1, 1, 4, 64, 4, 3, parts=128),
                           Tile(1, 1, 4, 64, khs=1, parts=64)],
    ("fprop", 32, 32, 1): [Tile(2, 1, 1, 64), Tile(2, 1, 1, 64, 4, 2), Tile(2, 1, 4, 64), Tile(4, 1, 1, 64)],
    ("dgrad", 32, 32, 1): [Tile(2, 1, 1, 64), Tile(2, 1, 1, 64, 4, 2), Tile(2, 1, 4, 64), Tile(4, 1, 1, 64)],
    ("wgrad", 32, 32, 1): [Tile(1, 1, 4, 64, khs=1, parts=64), Tile(1, 1, 4, 64, 4, 3, khs=1, parts=64),
                           Tile(1, 1, 1, 64, khs=1, parts=64), Tile(1, 1, 4, 64, parts=64),
                           Tile(1, 1, 4, 64, khs=1, parts=32)],
    ("fprop", 32, 64, 2): [Tile(1, 1, 1, 64), Tile(1, 1, 1, 64, 4, 3), Tile(1, 1, 4, 64)],
    ("dgrad", 32, 64, 2): [Tile(2, 2, 2, 64), Tile(2, 2, 1, 64)],
    ("wgrad", 32, 64, 2): [Tile(1, 1, 4, 64, khs=1, parts=32), Tile(1, 1, 4, 64, 4, 3, khs=1, parts=32)],
    ("fprop", 64, 64, 1): [Tile(2, 1, 1, 64), Tile(1, 1, 1, 64), Tile(1, 1, 1, 64, 4, 3), Tile(2, 1, 1, 64, 4, 2)],
    ("dgrad", 64, 64, 1): [Tile(2, 1, 1, 64), Tile(1, 1, 1, 64), Tile(1, 1, 1, 64, 4, 3), Tile(2, 1, 1, 64, 4, 2)],
    ("wgrad", 64, 64, 1): [Tile(1, 1, 1, 64, khs=1, parts=32), Tile(1, 1, 1, 64, 4, 3, khs=1, parts=32),
                           Tile(1, 1, 1, 64, khs=1, parts=16), Tile(1, 1, 4, 64, 8, khs=1, parts=32)],
}  # fmt: skip
_chosen: dict[Key, Tile] = {}


def choose(choices: dict[Key, Tile]) -> None:
    """Take these tiles from now on: before capturing a graph, and the same in processes that shall agree in bits."""
    _chosen.update(choices)


def tile_for(key: Key) -> Tile:
    """The tile of a shape: the same whatever the number of groups and images."""
    if key in _chosen:
        return _chosen[key]
    if key in CANDIDATES:
        return CANDIDATES[key][0]
    kind, ci, _, stride = key
    if ci < 16:
        return Tile(1, 1, 1, 128, parts=256 if kind == "wgrad" else 0)
    if kind == "wgrad":
        return Tile(1, 1, 4 if ci == 16 else 1, 64, khs=1, parts=64)
    return Tile(2, 2, 1, 64) if kind == "dgrad" and stride == 2 else Tile(1, 1, 1, 64)


# ------------------------------------------------------------------------------------------------ launches


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments: to launch, or to compile ahead of time."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    warps: int = 4
    stages: int = 1

    def launch(self) -> None:
        self.kernel[self.grid](*self.args, num_warps=self.warps, num_stages=self.stages)

    def compile(self) -> Any:
        return self.kernel.warmup(*self.args, grid=self.grid, num_warps=self.warps, num_stages=self.stages)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _layout(t: Tensor, groups: int, major: bool) -> tuple[int, int, int, int]:
    """Images of a group, its channels, and the steps from pixel to pixel and from group to group."""
    n, c, h, w = t.shape
    if major:
        return n // groups, c, c, n // groups * h * w * c
    return n, c // groups, c, c // groups


def _check(x: Tensor, co: int, stride: int, groups: int, major: bool) -> None:
    ci = x.shape[1] if major else x.shape[1] // groups
    if (ci not in (16, 32, 64) and not (ci <= 3 and stride == 1)) or co not in (16, 32, 64) or stride not in (1, 2):
        raise ValueError(f"no kernel for {ci} to {co} channels of a group at stride {stride}")
    if x.shape[2] % 4 or x.shape[3] % 4:
        raise ValueError(f"height and width must be multiples of 4, got {tuple(x.shape[2:])}")
    if x.shape[0] % groups if major else x.shape[1] % groups:
        raise ValueError(f"{tuple(x.shape)} does not divide into {groups} groups")


def _stem_strides(x: Tensor, groups: int, major: bool) -> tuple[int, int, int, int, int]:
    n, c, h, w = x.stride()
    return n, c, h, w, (x.shape[0] // groups * n if major else x.shape[1] // groups * c)


def forward_call(
    x: Tensor, w16: Tensor, y: Tensor, stride: int, groups: int, major: bool, tile: Tile | None = None
) -> Call:
    n, co, o_pix, o_grp = _layout(y, groups, major)
    ci, (h, w), (ho, wo) = w16.shape[1], x.shape[2:], y.shape[2:]
    t = tile or tile_for(("fprop", ci, co, stride))
    if ci < 16:
        blocks = n * ho * wo
        args = (x, w16, y, *_stem_strides(x, groups, major), o_pix, o_grp, groups, blocks, h, w, ci, co,
                max(16, triton.next_power_of_2(9 * ci)), t.block, INTERPRETED)  # fmt: skip
        return Call(kernels.stem_kernel, (_cdiv(blocks, t.block) * groups,), args, t.warps, t.stages)
    _, _, a_pix, a_grp = _layout(x, groups, major)
    blocks = n * (ho // t.th) * (wo // t.tw)
    args = (x, w16, y, a_pix, a_grp, o_pix, o_grp, groups, blocks, h, w, ho // t.th, wo // t.tw, ci, co,
            stride * (t.tw - 1) + 3, t.pxc, stride * (t.th - 1) + 3, t.th, t.tw, stride * t.th, stride * t.tw, -1,
            stride, False, t.block, INTERPRETED)  # fmt: skip
    return Call(kernels.patch_kernel, (_cdiv(blocks, t.block) * groups,), args, t.warps, t.stages)


def input_call(
    dy: Tensor, w16: Tensor, dx: Tensor, stride: int, groups: int, major: bool, tile: Tile | None = None
) -> Call:
    n, co, a_pix, a_grp = _layout(dy, groups, major)
    _, ci, o_pix, o_grp = _layout(dx, groups, major)
    (h, w), (ho, wo) = dx.shape[2:], dy.shape[2:]
    t = tile or tile_for(("dgrad", ci, co, stride))
    blocks = n * (h // t.th) * (w // t.tw)
    rows, px = (t.th + 2, t.tw + 2) if stride == 1 else (t.th // 2 + 1, t.tw // 2 + 1)
    args = (dy, w16, dx, a_pix, a_grp, o_pix, o_grp, groups, blocks, ho, wo, h // t.th, w // t.tw, co, ci,
            px, t.pxc, rows, t.th, t.tw, t.th // stride, t.tw // stride, -1 if stride == 1 else 0,
            stride, True, t.block, INTERPRETED)  # fmt: skip
    return Call(kernels.patch_kernel, (_cdiv(blocks, t.block) * groups,), args, t.warps, t.stages)


def part_size(ci: int, co: int, stride: int, t: Tile) -> int:
    if ci < 16:
        return co * max(16, triton.next_power_of_2(9 * ci))
    return 3 * _cdiv(stride * (t.tw - 1) + 3, t.pxc) * t.pxc * t.tw * co * ci


def weight_calls(
    x: Tensor, dy: Tensor, parts: Tensor, dw: Tensor, stride: int, groups: int, major: bool, tile: Tile | None = None
) -> tuple[Call, Call]:
    n, co, d_pix, d_grp = _layout(dy, groups, major)
    ci, (h, w), (ho, wo) = dw.shape[1], x.shape[2:], dy.shape[2:]
    t = tile or tile_for(("wgrad", ci, co, stride))
    k = max(16, triton.next_power_of_2(9 * ci)) if ci < 16 else 0
    blocks = n * (ho // t.th) * (wo // t.tw)
    iters = _cdiv(blocks, t.parts * t.block)
    if k:
        args = (x, dy, parts, *_stem_strides(x, groups, major), d_pix, d_grp, groups, blocks, iters, t.parts, h, w, ci,
                co, k, t.block, INTERPRETED)  # fmt: skip
        first = Call(kernels.stem_weight_kernel, (groups * t.parts,), args, t.warps, t.stages)
        pxn = 0
    else:
        _, _, x_pix, x_grp = _layout(x, groups, major)
        px = stride * (t.tw - 1) + 3
        pxn = _cdiv(px, t.pxc) * t.pxc
        args = (x, dy, parts, x_pix, x_grp, d_pix, d_grp, groups, blocks, iters, t.parts, h, w, ho // t.th, wo // t.tw,
                ci, co, px, t.pxc, t.th, t.tw, stride, t.khs, t.block, INTERPRETED)  # fmt: skip
        first = Call(kernels.weight_kernel, (groups * t.parts * (3 // t.khs),), args, t.warps, t.stages)
    eb, sb = (16, 64) if ci <= 16 else (64, 32) if ci == 32 else (256, 16)
    second = Call(
        kernels.add_parts_kernel,
        (_cdiv(9 * ci * co, eb), groups),
        (parts, dw, t.parts, ci, co, pxn, t.tw, stride, k, sb, eb),
    )
    return first, second


# ------------------------------------------------------------------------------------------------ operators


_STRIDES = (torch.Tag.needs_exact_strides,)  # the compiler gives them what was traced: channels_last, never a copy


def _last(t: Tensor) -> Tensor:
    return t if t.is_contiguous(memory_format=LAST) else t.contiguous(memory_format=LAST)


def _out_shape(x: Tensor, weight: Tensor, stride: int, groups: int, major: bool) -> tuple[int, int, int, int]:
    co = weight.shape[0] // groups if major else weight.shape[0]
    return x.shape[0], co, x.shape[2] // stride, x.shape[3] // stride


@torch.library.custom_op("fewchannels::conv", mutates_args=(), tags=_STRIDES)
def conv(x: Tensor, weight: Tensor, w16: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    """3x3 convolution, padding 1, without bias.

    Args:
        x: (N, G Ci, H, W) bfloat16, channels_last; (G N, Ci, H, W) if major. Of 3 channels any strides and dtype.
        weight: (G Co, Ci, 3, 3) float32: the one that gets the gradient; not read.
        w16: the same in bfloat16, channels_last.
        stride: 1 or 2.
        groups: G.
        major: where the groups are.

    Returns:
        (N, G Co, H / stride, W / stride) or (G N, Co, ...), bfloat16, channels_last.
    """
    _check(x, weight.shape[0] // groups, stride, groups, major)
    if weight.shape[1] >= 16:
        x = _last(x)
    y = torch.empty(
        _out_shape(x, weight, stride, groups, major), dtype=torch.bfloat16, device=x.device, memory_format=LAST
    )
    forward_call(x, _last(w16), y, stride, groups, major).launch()
    return y


@conv.register_fake
def _(x: Tensor, weight: Tensor, w16: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    return torch.empty(
        _out_shape(x, weight, stride, groups, major), dtype=torch.bfloat16, device=x.device, memory_format=LAST
    )


@torch.library.custom_op("fewchannels::conv_input", mutates_args=(), tags=_STRIDES)
def conv_input(dy: Tensor, w16: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    """The gradient with respect to x; ValueError for fewer than 16 channels, where nobody asks for it."""
    dy = _last(dy)
    ci = w16.shape[1]
    if ci < 16:
        raise ValueError(f"no input gradient for {ci} channels")
    dx = torch.empty(
        (dy.shape[0], ci if major else ci * groups, dy.shape[2] * stride, dy.shape[3] * stride),
        dtype=torch.bfloat16, device=dy.device, memory_format=LAST,
    )  # fmt: skip
    input_call(dy, _last(w16), dx, stride, groups, major).launch()
    return dx


@conv_input.register_fake
def _(dy: Tensor, w16: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    ci = w16.shape[1]
    return torch.empty(
        (dy.shape[0], ci if major else ci * groups, dy.shape[2] * stride, dy.shape[3] * stride),
        dtype=torch.bfloat16, device=dy.device, memory_format=LAST,
    )  # fmt: skip


@torch.library.custom_op("fewchannels::conv_weight", mutates_args=(), tags=_STRIDES)
def conv_weight(x: Tensor, dy: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    """The gradient with respect to the weight, (G Co, Ci, 3, 3) float32, channels_last; the same bits every time."""
    dy = _last(dy)
    ci, co = (x.shape[1], dy.shape[1]) if major else (x.shape[1] // groups, dy.shape[1] // groups)
    if ci >= 16:
        x = _last(x)
    t = tile_for(("wgrad", ci, co, stride))
    parts = torch.empty(groups * t.parts * part_size(ci, co, stride, t), dtype=torch.float32, device=x.device)
    dw = torch.empty((groups * co, ci, 3, 3), dtype=torch.float32, device=x.device, memory_format=LAST)
    for call in weight_calls(x, dy, parts, dw, stride, groups, major):
        call.launch()
    return dw


@conv_weight.register_fake
def _(x: Tensor, dy: Tensor, stride: int, groups: int, major: bool) -> Tensor:
    ci, co = (x.shape[1], dy.shape[1]) if major else (x.shape[1] // groups, dy.shape[1] // groups)
    return torch.empty((groups * co, ci, 3, 3), dtype=torch.float32, device=x.device, memory_format=LAST)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, w16, ctx.stride, ctx.groups, ctx.major = inputs
    ctx.save_for_backward(x, w16)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w16 = ctx.saved_tensors
    how = ctx.stride, ctx.groups, ctx.major
    dy = dy.to(torch.bfloat16)
    dx = conv_input(dy, w16, *how).to(x.dtype) if ctx.needs_input_grad[0] else None
    dw = conv_weight(x, dy, *how) if ctx.needs_input_grad[1] else None
    return dx, dw, None, None, None, None


conv.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("fewchannels::to_bfloat16", mutates_args=())
def to_bfloat16(weights: list[Tensor]) -> list[Tensor]:
    """All weights in bfloat16, channels_last, by one kernel instead of one each (and never computed twice)."""
    out = [torch.empty(w.shape, dtype=torch.bfloat16, device=w.device, memory_format=LAST) for w in weights]
    torch._foreach_copy_(out, list(weights))
    return out


@to_bfloat16.register_fake
def _(weights: list[Tensor]) -> list[Tensor]:
    return [torch.empty(w.shape, dtype=torch.bfloat16, device=w.device, memory_format=LAST) for w in weights]


def conv3x3(
    x: Tensor, weight: Tensor, stride: int = 1, groups: int = 1, *, major: bool = False, w16: Tensor | None = None
) -> Tensor:
    """The convolution in bfloat16 with float32 sums, under autocast or not, compiled or not.

    Example (on a GPU):
        y = conv3x3(x, weight, stride=1, groups=8)  # x (N, 8 * 16, 32, 32) channels_last, weight (8 * 16, 16, 3, 3)
    """
    if weight.shape[1] >= 16:
        x = x.to(torch.bfloat16)
    if w16 is None:
        w16 = weight.detach().to(torch.bfloat16, memory_format=LAST)
    return conv(x, weight, w16, stride, groups, major)
