"""A linear layer, its gradients, and the protocol of an algorithm that computes a loss on its logits.

An algorithm computes a value and, later, its gradient. `fused` makes the two one step for autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lastlayer._core.precision import wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.products import (
    WeightSum,
    chunks,
    in_full_precision,
    input_gradient,
    padded,
    pieces,
    put_product,
    times,
)

LONGEST = 8192  # most entries of a row that fit the registers of one program


@dataclass(frozen=True)
class Layer:
    """A linear layer and its inputs, without history, and which of them need a gradient."""

    features: Tensor  # (N, d)
    weight: Tensor  # (K, d)
    bias: Tensor | None  # (K,)
    wants_features: bool = True
    wants_weight: bool = True
    wants_bias: bool = True
    wants_more: bool = False  # whether the loss's own hyperparameters need one

    @property
    def wants_any(self) -> bool:
        return self.wants_features or self.wants_weight or self.wants_bias or self.wants_more

    def room(self, n: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for the logits (n, K) of n samples, or for their gradient. By default in the layer's dtype."""
        K = self.weight.shape[0]
        memory = torch.empty(n, padded(K), dtype=dtype or self.weight.dtype, device=self.weight.device)
        if not memory.is_cuda:
            # On processors with AMX, oneDNN multiplies the memory behind a half-precision row by 0. A NaN stays NaN.
            memory[:, K:] = 0
        return memory[:, :K]

    def put_logits(self, buffer: Tensor, low: int, high: int) -> Tensor:
        """Write the logits of the samples low..high-1 into the first rows of a buffer, and return those rows."""
        z, features = buffer[: high - low], self.features[low:high]
        for some in pieces(high - low, features.shape[1], len(self.weight)):
            if self.bias is None:
                torch.mm(features, self.weight[some].T, out=z[:, some])
            else:
                torch.addmm(self.bias[some], features, self.weight[some].T, out=z[:, some])
        return z

    def logits_in_chunks(self, size: int) -> Iterator[tuple[int, int, Tensor]]:
        """(low, high, logits) of the samples low..high-1. All chunks use the same memory, one after the other."""
        buffer = self.room(min(size, len(self.features)))
        for low, high in chunks(len(self.features), size):
            yield low, high, self.put_logits(buffer, low, high)


@dataclass
class Gradients:
    """Gradients of the layer. Sums are in float32 or better."""

    features: Tensor | None = None  # (N, d)
    weight: Tensor | None = None  # (K, d)
    bias: Tensor | None = None  # (K,)
    more: list[Tensor] = field(default_factory=list)  # of the loss's own hyperparameters

    @staticmethod
    def zeros(layer: Layer) -> Gradients:
        """Zeros, to add to."""
        h, w, b = layer.features, layer.weight, layer.bias
        total = wide(w.dtype)
        return Gradients(
            torch.zeros_like(h, dtype=total) if layer.wants_features else None,
            torch.zeros_like(w, dtype=total) if layer.wants_weight else None,
            torch.zeros_like(b, dtype=total) if layer.wants_bias and b is not None else None,
        )

    @staticmethod
    def of_logits(layer: Layer, dz: Tensor) -> Gradients:
        """The gradients that follow from the gradient dz (N, K) of all logits, in the layer's dtype."""
        h, w, b = layer.features, layer.weight, layer.bias
        features = input_gradient(dz, w) if layer.wants_features else None
        weight = None
        if layer.wants_weight:  # float16 may not hold the sum
            weight = torch.empty(w.shape, dtype=wide(w.dtype) if w.dtype is torch.float16 else w.dtype, device=w.device)
            put_product(weight, dz, h)
        bias = dz.sum(0, dtype=wide(dz.dtype)) if layer.wants_bias and b is not None else None
        return Gradients(features, weight, bias)

    @staticmethod
    def by_classes(layer: Layer) -> Gradients:
        """Gradients for `put_classes`: zeros for the features, memory for weight and bias."""
        h, w, b = layer.features, layer.weight, layer.bias
        return Gradients(
            torch.zeros_like(h, dtype=wide(w.dtype)) if layer.wants_features else None,
            torch.empty_like(w) if layer.wants_weight else None,
            torch.empty_like(b) if layer.wants_bias and b is not None else None,
        )

    def put_classes(self, layer: Layer, some: slice, dz: Tensor) -> None:
        """Enter the gradient dz (N, k) of the logits of some classes. Each class comes once."""
        dz = dz.to(layer.weight.dtype)
        if self.features is not None:
            self.features += input_gradient(dz, layer.weight[some])
        if self.weight is not None:
            put_product(self.weight[some], dz, layer.features)
        if self.bias is not None:
            self.bias[some] = dz.sum(0, dtype=wide(dz.dtype))


class RowGradients:
    """Gradients of a layer, filled by chunks of samples and finished once.

    With `wide_features`, the features' gradient is kept in float32. A `single` chunk needs no sum. Then the products
    wait for the number that multiplies everything: it multiplies the features, which are small, first.
    """

    def __init__(self, layer: Layer, *, wide_features: bool = False, single: bool = False) -> None:
        h, w = layer.features, layer.weight
        total = wide(w.dtype)
        self.waits = single and kernels.row_kernels(h) is not None and w.dtype is torch.bfloat16
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
        """Enter the gradient dz (n, K) of the logits of the samples low..high-1."""
        if self.waits:
            self.waiting = dz.to(layer.weight.dtype), layer
        if self.features is not None:
            self.features[low:high] = input_gradient(dz, layer.weight)
        if self.weight is not None:
            self.weight.add(dz, layer.features[low:high])
        if self.bias is not None:
            self.bias += dz.sum(0, dtype=self.bias.dtype)

    def add_whole(self, low: int, high: int, features: Tensor, weight: Tensor) -> None:
        """Enter gradients of the samples low..high-1, and add one of the weight (K, d)."""
        if self.features is not None:
            self.features[low:high] = features
        if self.weight is not None:
            self.weight.add_whole(weight)

    def add_more(self, more: Sequence[Tensor]) -> None:
        """Add gradients of the loss's own hyperparameters."""
        self.more = [a + b for a, b in zip(self.more, more, strict=True)] if self.more else list(more)

    def shrink(self, factor: Tensor) -> None:
        """Multiply the sums for weight and bias by a number."""
        if self.weight is not None:
            self.weight.shrink(factor)
        if self.bias is not None:
            self.bias *= factor

    def finish(self, factor: Tensor | float) -> Gradients:
        """All gradients times a number."""
        features = None if self.features is None else times(self.features, factor, self.features.dtype, in_place=True)
        weight = None if self.weight is None else self.weight.finish(factor)
        if self.waiting is not None:
            (dz, layer), self.waiting = self.waiting, None
            # The buffer first holds the features times the number, then their gradient.
            buffer = times(layer.features.contiguous(), factor, dz.dtype)
            if layer.wants_weight:
                weight = torch.empty_like(layer.weight, memory_format=torch.contiguous_format)
                put_product(weight, dz, buffer)
            if layer.wants_features:
                features = times(input_gradient(dz, layer.weight, out=buffer), factor, dz.dtype, in_place=True)
        bias = None if self.bias is None else self.bias.mul_(factor)
        return Gradients(features, weight, bias, [m * factor for m in self.more])


class Once:
    """Something that can be taken once, such as gradients that are finished in place. After that it is None."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def take(self) -> Any:
        thing, self.thing = self.thing, None
        return thing


class Algorithm(Protocol):
    """A way to compute a value and its gradient."""

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        """The value, and whatever the backward pass needs."""

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        """The gradients of the layer, from the gradient of the value."""


def fused(algorithm: Algorithm, features: Tensor, weight: Tensor, bias: Tensor | None, *more: Tensor) -> Tensor:
    """The algorithm's value, differentiable in the layer and in the loss's own hyperparameters."""
    with kernels.on_its_device(features):  # in the backward pass autograd does this
        if not torch.is_grad_enabled():
            return algorithm.forward(Layer(features, weight, bias, False, False, False))[0]
        return _Fused.apply(algorithm, features, weight, bias, *more)  # type: ignore[no-any-return, no-untyped-call]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, algorithm: Algorithm, features: Tensor, weight: Tensor, bias: Tensor | None, *more: Tensor
    ) -> Tensor:
        value, kept = algorithm.forward(_layer(ctx, features, weight, bias))
        ctx.save_for_backward(features, weight, bias, *more)
        ctx.algorithm, ctx.kept, ctx.more = algorithm, kept, len(more)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the gradient of this gradient would silently be incomplete
            raise RuntimeError(
                "linear_loss has no second derivatives (create_graph=True) by chunks: plan 'dense' has them"
            )
        features, weight, bias, *_ = ctx.saved_tensors  # raises if one was written to since
        with in_full_precision(features):
            found = ctx.algorithm.backward(_layer(ctx, features, weight, bias), ctx.kept, upstream)
        more = found.more or [None] * ctx.more
        given = ((found.features, features), (found.weight, weight), (found.bias, bias))
        return None, *(None if g is None else g.to(like.dtype) for g, like in given), *more


def _layer(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Layer:
    needs = ctx.needs_input_grad
    return Layer(features, weight, bias, needs[1], needs[2], needs[3], any(needs[4:]))


def with_unchanged(value: Tensor, *read: Tensor) -> Tensor:
    """The value. Its backward pass raises if one of the tensors, which it may read again, was written to since."""
    return _Unchanged.apply(value, *read) if value.requires_grad else value  # type: ignore[no-untyped-call]


class _Unchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *read: Tensor) -> Tensor:
        ctx.save_for_backward(*read)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return upstream, *(None for _ in ctx.saved_tensors)  # raises if one was written to since


def has_unit_rows(*tensors: Tensor) -> bool:
    """Whether `unit_rows` takes these rows."""
    return all(kernels.row_kernels(t) is not None and 0 < t.shape[1] <= LONGEST for t in tensors)


def unit_rows(x: Tensor, scale: float, dtype: torch.dtype | None) -> Tensor:
    """scale x / ||x|| of each row, rounded once to a dtype; None means float32.

    Kernels read each row once. Eager code would go over the weight a dozen times.
    """
    return _Unit.apply(x, float(scale), dtype or wide(x.dtype))  # type: ignore[no-any-return, no-untyped-call]


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.scale = scale
        with kernels.on_its_device(x):
            return kernels.row_kernels(x).unit(x, scale, dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return kernels.row_kernels(x).unit_gradient(x, gradient.contiguous(), ctx.scale), None, None
