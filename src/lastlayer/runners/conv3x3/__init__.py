"""3x3 convolutions of few channels by kernels of our own, for training in bfloat16 on a GPU.

cuDNN's kernels are made for many channels. With these, an epoch of a CIFAR ResNet takes half the time. `replacement`
makes a second network that shares its parameters and buffers with the first and convolves by these kernels. Only
training steps use it. The first network is not changed and is the one that is evaluated and saved. To stop using the
kernels, drop the replacement.
"""

import copy
import importlib.util
from typing import Any, cast

import torch
from torch import Tensor, nn

from lastlayer.runners.conv3x3 import launch
from lastlayer.runners.conv3x3.launch import LAST, TILES

MOST_CHANNELS = 64  # cuDNN convolves networks that have more anywhere: for those our kernels were not measured
MOST_ELEMENTS = 2**31 - 1  # the kernels count in 32 bits
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_STRIDES = (torch.Tag.needs_exact_strides,)  # the compiler then passes tensors as traced: channels_last, not copied


def _empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=LAST)


@torch.library.custom_op("lastlayer::conv3x3", mutates_args=(), tags=_STRIDES)
def conv3x3(x: Tensor, weight: Tensor, narrow: Tensor, stride: int) -> Tensor:
    """3x3 convolution with padding 1 and without bias, of a shape in TILES.

    Args:
        x: (N, Ci, H, W) bfloat16, channels_last. With fewer than 16 channels, any dtype and strides. H and W are
            multiples of 4.
        weight: (Co, Ci, 3, 3) float32. It gets the gradient, but is not read.
        narrow: the same weight in bfloat16, channels_last. It is read.

    Returns:
        (N, Co, H / stride, W / stride), bfloat16, channels_last.
    """
    if x.shape[1] >= 16:
        x = x.contiguous(memory_format=LAST)
    y = _empty((x.shape[0], weight.shape[0], x.shape[2] // stride, x.shape[3] // stride), x)
    launch.forward_call(x, narrow.contiguous(memory_format=LAST), y, stride).launch()
    return y


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor, narrow: Tensor, stride: int) -> Tensor:
    return _empty((x.shape[0], weight.shape[0], x.shape[2] // stride, x.shape[3] // stride), x)


@torch.library.custom_op("lastlayer::conv3x3_input", mutates_args=(), tags=_STRIDES)
def conv3x3_input(dy: Tensor, narrow: Tensor, stride: int) -> Tensor:
    """The gradient with respect to x, which has at least 16 channels."""
    dx = _empty((dy.shape[0], narrow.shape[1], dy.shape[2] * stride, dy.shape[3] * stride), dy)
    dy, narrow = dy.contiguous(memory_format=LAST), narrow.contiguous(memory_format=LAST)
    launch.input_call(dy, narrow, dx, stride).launch()
    return dx


@conv3x3_input.register_fake
def _(dy: Tensor, narrow: Tensor, stride: int) -> Tensor:
    return _empty((dy.shape[0], narrow.shape[1], dy.shape[2] * stride, dy.shape[3] * stride), dy)


@torch.library.custom_op("lastlayer::conv3x3_weight", mutates_args=(), tags=_STRIDES)
def conv3x3_weight(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient with respect to the weight, float32, channels_last; the same bits every time."""
    if x.shape[1] >= 16:
        x = x.contiguous(memory_format=LAST)
    dw = _empty((dy.shape[1], x.shape[1], 3, 3), x, torch.float32)
    for call in launch.weight_calls(x, dy.contiguous(memory_format=LAST), dw, stride):
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


class FewChannels(nn.Module):
    """A convolution by our kernels. It has the weight of another one, the very same parameter."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = conv.weight
        self.stride = conv.stride[0]
        # the weight in bfloat16. It is no buffer, so that the replacement has no state of its own.
        self.narrow = _empty(conv.weight.shape, conv.weight).copy_(conv.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernel(x, self.weight):
            return nn.functional.conv2d(x, self.weight, stride=self.stride, padding=1)
        x = x.to(torch.bfloat16) if x.shape[1] >= 16 else x
        return cast(Tensor, conv3x3(x, self.weight, self.narrow, self.stride))


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether an input can be convolved by our kernels with an eligible weight."""
    out_channels, in_channels = weight.shape[:2]
    return (
        x.dim() == 4
        and x.shape[2] % 4 == 0
        and x.shape[3] % 4 == 0
        and (in_channels >= 16 or not x.requires_grad)  # there is no kernel for a stem's input gradient
        and x.shape[0] * x.shape[2] * x.shape[3] * max(in_channels, out_channels) <= MOST_ELEMENTS
    )


def eligible(conv: nn.Module) -> bool:
    """Whether a module is a plain convolution of a shape with kernels, on a GPU that multiplies in bfloat16."""
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
        and isinstance(conv.weight, nn.Parameter)  # not one that a hook computes, as spectral_norm does
        and conv.weight.dtype == torch.float32
        and not any(vars(conv)[hooks] for hooks in HOOKS)  # a replacement would not run them
        and capable(conv.weight.device)
    )


def capable(device: torch.device) -> bool:
    """Whether the kernels run on a device: a GPU that multiplies in bfloat16, with Triton installed."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def replacement(backbone: nn.Module) -> nn.Module | None:
    """A copy of a backbone whose eligible convolutions run by our kernels; None if it has none.

    Every parameter and buffer of the copy is the backbone's own, so training the copy trains the backbone. A model that
    cannot be copied like this has no replacement. Call `narrow_weights` before each forward pass.
    """
    convs = [module for module in backbone.modules() if isinstance(module, nn.Conv2d)]
    if any(max(conv.in_channels, conv.out_channels) > MOST_CHANNELS for conv in convs):
        return None
    ours: dict[int, Any] = {id(conv): FewChannels(conv) for conv in convs if eligible(conv)}
    if not ours:
        return None
    shared = {id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())}
    try:
        copied: nn.Module = copy.deepcopy(backbone, shared | ours)  # which takes these as already copied
    except Exception:  # a model from elsewhere may hold anything
        return None
    return copied if shares_state(copied, backbone) else None


def shares_state(copied: nn.Module, backbone: nn.Module) -> bool:
    """Whether every parameter and buffer of a replacement is still the backbone's own. A step may have set another."""
    ours, theirs = ([*network.parameters(), *network.buffers()] for network in (copied, backbone))
    return len(ours) == len(theirs) and all(one is other for one, other in zip(ours, theirs, strict=True))


def narrow_weights(backbone: nn.Module) -> None:
    """Round the weights of a replacement that is trained to bfloat16, all of them in one kernel."""
    ours = [module for module in backbone.modules() if isinstance(module, FewChannels)]
    if ours and backbone.training:
        with torch.no_grad():
            torch._foreach_copy_([conv.narrow for conv in ours], [conv.weight.detach() for conv in ours])
