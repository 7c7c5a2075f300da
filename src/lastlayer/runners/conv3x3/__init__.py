"""3x3 convolutions of few channels by kernels of our own, for training in bfloat16 on a GPU.

cuDNN's kernels are made for many channels: a CIFAR ResNet's epoch takes half the time with these. A network keeps its
parameters, its state and its evaluation; `take` gives its convolutions another forward pass for training, `leave` the
plain one again. A teacher, which is never trained, is taken as `frozen`.
"""

from __future__ import annotations

import importlib.util
from typing import Any, cast

import torch
from torch import Tensor, nn

from lastlayer.runners.conv3x3 import launch
from lastlayer.runners.conv3x3.launch import LAST, TILES

MOST_CHANNELS = 64  # a network with wider convolutions is cuDNN's: of those the kernels were not measured
MOST_ELEMENTS = 2**31 - 1  # the kernels count in 32 bits

_STRIDES = (torch.Tag.needs_exact_strides,)  # the compiler gives them what was traced: channels_last, never a copy


def _last(t: Tensor) -> Tensor:
    return t if t.is_contiguous(memory_format=LAST) else t.contiguous(memory_format=LAST)


def _empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=LAST)


@torch.library.custom_op("lastlayer::conv3x3", mutates_args=(), tags=_STRIDES)
def conv3x3(x: Tensor, weight: Tensor, narrow: Tensor, stride: int) -> Tensor:
    """3x3 convolution, padding 1, without bias, of a shape in TILES.

    Args:
        x: (N, Ci, H, W) bfloat16, channels_last; of fewer than 16 channels any dtype and strides. H and W divide by 4.
        weight: (Co, Ci, 3, 3) float32: the one that gets the gradient; not read.
        narrow: the same in bfloat16, channels_last.
        stride: 1 or 2.

    Returns:
        (N, Co, H / stride, W / stride), bfloat16, channels_last.
    """
    if x.shape[1] >= 16:
        x = _last(x)
    y = _empty((x.shape[0], weight.shape[0], x.shape[2] // stride, x.shape[3] // stride), x)
    launch.forward_call(x, _last(narrow), y, stride).launch()
    return y


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor, narrow: Tensor, stride: int) -> Tensor:
    return _empty((x.shape[0], weight.shape[0], x.shape[2] // stride, x.shape[3] // stride), x)


@torch.library.custom_op("lastlayer::conv3x3_input", mutates_args=(), tags=_STRIDES)
def conv3x3_input(dy: Tensor, narrow: Tensor, stride: int) -> Tensor:
    """The gradient with respect to x, of at least 16 channels."""
    dx = _empty((dy.shape[0], narrow.shape[1], dy.shape[2] * stride, dy.shape[3] * stride), dy)
    launch.input_call(_last(dy), _last(narrow), dx, stride).launch()
    return dx


@conv3x3_input.register_fake
def _(dy: Tensor, narrow: Tensor, stride: int) -> Tensor:
    return _empty((dy.shape[0], narrow.shape[1], dy.shape[2] * stride, dy.shape[3] * stride), dy)


@torch.library.custom_op("lastlayer::conv3x3_weight", mutates_args=(), tags=_STRIDES)
def conv3x3_weight(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient with respect to the weight, float32, channels_last; the same bits every time."""
    if x.shape[1] >= 16:
        x = _last(x)
    dw = _empty((dy.shape[1], x.shape[1], 3, 3), x, torch.float32)
    for call in launch.weight_calls(x, _last(dy), dw, stride):
        call.launch()
    return dw


@conv3x3_weight.register_fake
def _(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    return _empty((dy.shape[1], x.shape[1], 3, 3), x, torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, narrow, ctx.stride = inputs
    ctx.save_for_backward(x, narrow)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, narrow = ctx.saved_tensors
    dy = dy.to(torch.bfloat16)
    dx = conv3x3_input(dy, narrow, ctx.stride).to(x.dtype) if ctx.needs_input_grad[0] else None
    dw = conv3x3_weight(x, dy, ctx.stride) if ctx.needs_input_grad[1] else None
    return dx, dw, None, None


conv3x3.register_autograd(_backward, setup_context=_save)


class FewChannels(nn.Conv2d):
    """A convolution that trains by our kernels, in bfloat16, and is a plain one otherwise; `take` makes them."""

    narrow: Tensor  # the weight in bfloat16: neither parameter nor buffer, so that the state stays as it was
    frozen: bool  # a teacher's: by our kernels though it does not train

    def forward(self, input: Tensor) -> Tensor:
        if not ((self.training or self.frozen) and _has_kernel(input, self)):
            return super().forward(input)
        if self.in_channels >= 16:
            input = input.to(torch.bfloat16)
        return cast(Tensor, conv3x3(input, self.weight, self.narrow, self.stride[0]))


def _has_kernel(x: Tensor, conv: nn.Conv2d) -> bool:
    return (
        x.dim() == 4
        and x.shape[2] % 4 == 0
        and x.shape[3] % 4 == 0
        and (conv.in_channels >= 16 or not x.requires_grad)  # no kernel for a stem's input gradient
        and x.shape[0] * x.shape[2] * x.shape[3] * max(conv.in_channels, conv.out_channels) <= MOST_ELEMENTS
    )


def eligible(conv: nn.Module) -> bool:
    """Whether a module is a plain convolution of a shape with kernels, on a GPU that has bfloat16 products."""
    return (
        type(conv) is nn.Conv2d
        and conv.kernel_size == (3, 3)
        and conv.padding == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.bias is None
        and conv.stride[0] == conv.stride[1]
        and (conv.in_channels, conv.out_channels, conv.stride[0]) in TILES
        and conv.weight.dtype == torch.float32
        and _capable(conv.weight.device)
    )


def _capable(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def take(backbone: nn.Module, *, frozen: bool = False) -> bool:
    """Let the eligible convolutions of a backbone that trains in bfloat16, or teaches, use our kernels.

    Returns:
        Whether there are any.
    """
    convs = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    if any(max(m.in_channels, m.out_channels) > MOST_CHANNELS for m in convs):
        return False
    ours = [m for m in convs if eligible(m)]
    for conv in ours:
        conv.__class__ = FewChannels
        few = cast(FewChannels, conv)
        few.narrow = _empty(conv.weight.shape, conv.weight).copy_(conv.weight.detach())
        few.frozen = frozen
    return bool(ours)


def leave(backbone: nn.Module) -> None:
    """Undo `take`."""
    for conv in _taken(backbone):
        del conv.narrow, conv.frozen
        conv.__class__ = nn.Conv2d  # type: ignore[assignment]


def narrow_weights(backbone: nn.Module) -> None:
    """Round the weights to bfloat16, all by one kernel, before each forward pass of training."""
    ours = _taken(backbone)
    if ours and backbone.training:
        with torch.no_grad():
            torch._foreach_copy_([conv.narrow for conv in ours], [conv.weight.detach() for conv in ours])


def _taken(backbone: nn.Module) -> list[FewChannels]:
    return [module for module in backbone.modules() if isinstance(module, FewChannels)]
