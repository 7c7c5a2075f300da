"""Several CIFAR ResNets of the same shape as one module, their channels side by side or their images one after another.

    beside (major=False): activations (N, G C, H, W); batch norm of G C channels is G batch norms of C channels
    major:                activations (G N, C, H, W); batch norm by hand, over the images of each group

Weights are those of G models stacked: convolutions (G Co, Ci, 3, 3), batch norm (G C,), heads (G, K, D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from conv import LAST, conv3x3, to_bfloat16
from torch import Tensor, nn

Convolve = Callable[..., Tensor]


def plain_conv(
    x: Tensor, weight: Tensor, stride: int, groups: int, *, major: bool = False, w16: Tensor | None = None
) -> Tensor:
    """The same by torch, in any dtype: what the kernels replace."""
    if not major:
        return F.conv2d(x, weight, stride=stride, padding=1, groups=groups)
    n = x.shape[0] // groups
    parts = zip(x.split(n), weight.chunk(groups), strict=True)
    y = torch.cat([F.conv2d(a, w, stride=stride, padding=1) for a, w in parts])
    return y.contiguous(memory_format=LAST)


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


class _Norm(nn.Module):
    def __init__(self, norms: Sequence[nn.BatchNorm2d]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([n.weight.detach() for n in norms]))
        self.bias = nn.Parameter(torch.cat([n.bias.detach() for n in norms]))
        self.register_buffer("mean", torch.cat([n.running_mean for n in norms]))
        self.register_buffer("var", torch.cat([n.running_var for n in norms]))
        self.groups, self.eps, self.momentum = len(norms), norms[0].eps, norms[0].momentum

    def forward(self, x: Tensor, major: bool) -> Tensor:
        if not major:
            return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, self.training, self.momentum, self.eps)
        g = self.groups
        c = self.weight.numel() // g
        images = _wide(x.permute(0, 2, 3, 1).reshape(g, -1, c))  # (G, N H W, C), as it lies in memory
        if self.training:
            var, mean = torch.var_mean(images, 1, correction=0, keepdim=True)
            with torch.no_grad():
                count = images.shape[1]
                self.mean.lerp_(mean.detach().flatten(), self.momentum)
                self.var.lerp_(var.detach().flatten() * (count / (count - 1)), self.momentum)
        else:
            var, mean = self.var.view(g, 1, c), self.mean.view(g, 1, c)
        scale = torch.rsqrt(var + self.eps) * self.weight.view(g, 1, c)
        y = (images - mean) * scale + self.bias.view(g, 1, c)
        n, _, h, w = x.shape
        return y.to(x.dtype).view(n, h, w, c).permute(0, 3, 1, 2)


class StackedResNet(nn.Module):
    """The backbones of `lastlayer.models.cifar_resnet.CifarResNet` and linear heads, G of each.

    Args:
        backbones: all of the same depth and width.
        heads: modules with weight (K, D) and bias (K,).
        convolve: `conv3x3`, or `plain_conv` to compare with.
        major: where the groups are.
    """

    def __init__(
        self, backbones: Sequence[Any], heads: Sequence[Any], convolve: Convolve = conv3x3, major: bool = False
    ) -> None:
        super().__init__()
        self.groups, self.convolve, self.major = len(backbones), convolve, major
        self.fast = convolve is conv3x3
        convs: list[list[nn.Conv2d]] = [[b.conv1 for b in backbones]]
        norms: list[list[nn.BatchNorm2d]] = [[b.bn1 for b in backbones]]
        for members in zip(*(b.blocks for b in backbones), strict=True):
            convs += [[m.conv1 for m in members], [m.conv2 for m in members]]
            norms += [[m.bn1 for m in members], [m.bn2 for m in members]]
        self.weights = nn.ParameterList(
            torch.cat([c.weight.detach() for c in same]).contiguous(memory_format=LAST) for same in convs
        )
        self.strides = [same[0].stride[0] for same in convs]
        self.norms = nn.ModuleList(_Norm(same) for same in norms)
        self.final_relu = all(b.blocks[-1].final_relu for b in backbones)
        self.head_weight = nn.Parameter(torch.stack([h.weight.detach() for h in heads]))
        self.head_bias = nn.Parameter(torch.stack([h.bias.detach() for h in heads]))

    def _shortcut(self, x: Tensor, stride: int, channels: int) -> Tensor:
        """Every second pixel, zeros on both sides of each group's channels."""
        _n, c, _h, _w = x.shape
        pixels = x.permute(0, 2, 3, 1)[:, ::stride, ::stride]
        own = c if self.major else c // self.groups
        p = (channels - own) // 2
        padded = F.pad(pixels.unflatten(-1, (-1, own)), (p, p))
        return padded.flatten(-2).permute(0, 3, 1, 2)

    def features(self, x: Tensor) -> Tensor:
        """(N, G D), or (G N, D)."""
        w16: list[Any] = [None] * len(self.weights)
        if self.fast:
            w16 = to_bfloat16([w.detach() for w in self.weights])

        def layer(i: int, x: Tensor) -> Tensor:
            y = self.convolve(x, self.weights[i], self.strides[i], self.groups, major=self.major, w16=w16[i])
            return self.norms[i](y, self.major)

        x = F.relu(layer(0, x))
        last = len(self.weights) - 2
        for i in range(1, len(self.weights), 2):
            residual = layer(i + 1, F.relu(layer(i, x)))
            channels = self.weights[i].shape[0] // self.groups
            if self.strides[i] != 1 or channels != (x.shape[1] if self.major else x.shape[1] // self.groups):
                x = self._shortcut(x, self.strides[i], channels)
            x = residual + x
            if i != last or self.final_relu:
                x = F.relu(x)
        return x.mean((2, 3))

    def logits(self, features: Tensor) -> Tensor:
        """(G, N, K)."""
        if self.major:
            own = features.unflatten(0, (self.groups, -1))
        else:
            own = features.unflatten(1, (self.groups, -1)).transpose(0, 1)
        return torch.baddbmm(self.head_bias.unsqueeze(1), own, self.head_weight.transpose(1, 2))

    def stack_inputs(self, inputs: Sequence[Tensor]) -> Tensor:
        """A batch (N, 3, H, W) for each model, as one."""
        return torch.cat(list(inputs), 0 if self.major else 1).contiguous(memory_format=LAST)


def stacked_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The sum over models of the mean cross-entropy, so that each gets the gradient it would have alone.

    Args:
        logits: (G, N, K).
        target: (G, N).
    """
    each = F.cross_entropy(_wide(logits.flatten(0, 1)), target.flatten(), reduction="none")
    return each.view_as(target).mean(1).sum()
