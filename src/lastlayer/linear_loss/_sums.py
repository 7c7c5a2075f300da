"""Gradients summed over chunks of rows: the weight's in float32, in the memory that its gradient will take."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._compiled import kernels
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._products import WIDTH, add_product, input_gradient, narrow, put_product, wide

BLOCK = 2**23  # entries rounded at a time, where the result lies in the memory of the sum


class WeightSum:
    """sum over chunks of dz^T h, (K, d), in float32 or better, rounded once.

    The gradient of a half-precision weight has room for the float32 sums of half its classes, or a few less. They are
    kept there, so that only the others take memory of their own.
    """

    def __init__(self, weight: Tensor) -> None:
        self.result = torch.empty_like(weight, memory_format=torch.contiguous_format)
        total = wide(weight.dtype)
        K, d = weight.shape
        self.empty = True
        self.half = K // 2 // WIDTH * WIDTH
        if weight.dtype is total:
            self.parts = [(0, K, self.result)]
            return
        inside = self.result.view(-1)[: 2 * self.half * d].view(total).view(self.half, d)
        outside = torch.empty(K - self.half, d, dtype=total, device=weight.device)
        self.parts = [(0, self.half, inside)] * (self.half > 0) + [(self.half, K, outside)]

    def add(self, dz: Tensor, rows: Tensor) -> None:
        """Add dz (n, K)^T rows (n, d)."""
        for low, high, total in self.parts:
            if self.empty:
                put_product(total, dz[:, low:high], rows)
            else:
                add_product(total, dz[:, low:high], rows)
        self.empty = False

    def add_whole(self, values: Tensor) -> None:
        """Add values (K, d)."""
        for low, high, total in self.parts:
            if self.empty:
                total.copy_(values[low:high])
            else:
                total += values[low:high]
        self.empty = False

    def add_at(self, classes: Tensor, values: Tensor) -> None:
        """Add values (n, d) to the rows of some classes (n,)."""
        for low, high, total in self.parts:
            inside = (classes >= low) & (classes < high)
            total.index_add_(0, (classes - low).clamp(0, high - low - 1), values * inside.unsqueeze(1))

    def shrink(self, factor: Tensor) -> None:
        """Multiply what is there."""
        for _, _, total in self.parts:
            times(total, factor, total.dtype, in_place=True)

    def finish(self, factor: Tensor | float) -> Tensor:
        """The sum times a number, in the weight's dtype; what was kept for it is gone."""
        for low, high, total in self.parts:
            if total is self.result:
                total *= factor
                continue
            # In this order, and by way of a copy, a block is written where sums were that have been read already.
            step = max(1, BLOCK // self.result.shape[1])
            for first in range(0, high - low, step):
                last = min(first + step, high - low)
                self.result[low + first : low + last] = times(total[first:last], factor, self.result.dtype)
        self.parts = []
        return self.result


def times(values: Tensor, factor: Tensor | float, dtype: torch.dtype, *, in_place: bool = False) -> Tensor:
    """Contiguous values times a number in another dtype, in one pass where that is faster."""
    found = kernels(values)
    if found is not None and isinstance(factor, Tensor):
        out = values if in_place else torch.empty_like(values, dtype=dtype)
        return found.times(values, factor, out)  # type: ignore[no-any-return]
    return values.mul_(factor) if in_place else narrow(values * factor, dtype)


class RowGradients:
    """Gradients of a layer, a chunk of samples at a time, finished once.

    Args:
        layer: the layer.
        wide_features: whether the features' gradient is kept in float32.
        single: whether there is one chunk alone. No sum is needed then, and the products can wait for the number
            everything is multiplied by: it goes into the features, which are small, before the weight's product.
    """

    def __init__(self, layer: Layer, *, wide_features: bool = False, single: bool = False) -> None:
        h, w = layer.features, layer.weight
        total = wide(w.dtype)
        self.waits = single and kernels(h) is not None and w.dtype is torch.bfloat16
        self.waiting: tuple[Tensor, Layer] | None = None
        self.features = self.weight = self.bias = None
        if layer.wants_features and not self.waits:
            self.features = torch.empty_like(h, dtype=total if wide_features else h.dtype)
        if layer.wants_weight and not self.waits:
            self.weight = WeightSum(w)
        if layer.wants_bias and layer.bias is not None:
            self.bias = torch.zeros_like(layer.bias, dtype=total)
        self.more: list[Tensor] = []

    def add(self, layer: Layer, low: int, high: int, dz: Tensor) -> None:
        """Put in the gradient dz (n, K) of the logits of some samples."""
        if self.waits:
            self.waiting = narrow(dz, layer.weight.dtype), layer
        if self.features is not None:
            self.features[low:high] = input_gradient(dz, layer.weight)
        if self.weight is not None:
            self.weight.add(dz, layer.features[low:high])
        if self.bias is not None:
            self.bias += dz.sum(0, dtype=self.bias.dtype)

    def finish(self, factor: Tensor | float) -> Gradients:
        """All of them times a number."""
        features = None if self.features is None else times(self.features, factor, self.features.dtype, in_place=True)
        weight = None if self.weight is None else self.weight.finish(factor)
        if self.waiting is not None:
            (dz, layer), self.waiting = self.waiting, None
            # One buffer is first the features times the number, then their gradient.
            buffer = times(layer.features.contiguous(), factor, dz.dtype)
            if layer.wants_weight:
                weight = torch.empty_like(layer.weight, memory_format=torch.contiguous_format)
                put_product(weight, dz, buffer)
            if layer.wants_features:
                features = times(input_gradient(dz, layer.weight, out=buffer), factor, dz.dtype, in_place=True)
        bias = None if self.bias is None else self.bias.mul_(factor)
        return Gradients(features, weight, bias, [m * factor for m in self.more])
