"""The one autograd Function: a layer and its loss, whose gradient an algorithm computes as it sees fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lastlayer.linear_loss._products import in_full_precision, input_gradient, narrow, on_its_device, put_product, wide


@dataclass(frozen=True)
class Layer:
    """A linear layer and its inputs, without history, and which of them want a gradient."""

    features: Tensor  # (N, d)
    weight: Tensor  # (K, d)
    bias: Tensor | None  # (K,)
    wants_features: bool = True
    wants_weight: bool = True
    wants_bias: bool = True
    wants_more: bool = False  # of the loss's own numbers

    @property
    def wants_any(self) -> bool:
        return self.wants_features or self.wants_weight or self.wants_bias or self.wants_more


@dataclass
class Gradients:
    """Gradients of the layer, filled piece by piece; sums are in float32 or better."""

    features: Tensor | None = None  # (N, d)
    weight: Tensor | None = None  # (K, d)
    bias: Tensor | None = None  # (K,)
    more: list[Tensor] = field(default_factory=list)

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
        """From the gradient dz (N, K) of all logits, in the layer's dtype."""
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
        """For `put_classes`: features to add to, room for weight and bias."""
        h, w, b = layer.features, layer.weight, layer.bias
        return Gradients(
            torch.zeros_like(h, dtype=wide(w.dtype)) if layer.wants_features else None,
            torch.empty_like(w) if layer.wants_weight else None,
            torch.empty_like(b) if layer.wants_bias and b is not None else None,
        )

    def put_classes(self, layer: Layer, some: slice, dz: Tensor) -> None:
        """Put in the gradient dz (N, k) of the logits of some classes, each of them once."""
        dz = narrow(dz, layer.weight.dtype)
        if self.features is not None:
            self.features += input_gradient(dz, layer.weight[some])
        if self.weight is not None:
            put_product(self.weight[some], dz, layer.features)
        if self.bias is not None:
            self.bias[some] = narrow(dz.sum(0, dtype=wide(dz.dtype)), self.bias.dtype)


class Algorithm(Protocol):
    """A way to compute a value and its gradient."""

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        """The value, and whatever the backward pass will want."""

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        """Gradients of the layer for the value's gradient."""


def refuse_second_derivatives() -> None:
    """Raise where the gradient is to be differentiated once more: it would silently lack this part."""
    if torch.is_grad_enabled():
        raise RuntimeError("linear_loss has no second derivatives (create_graph=True) by chunks: plan 'dense' has them")


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, algorithm: Algorithm, features: Tensor, weight: Tensor, bias: Tensor | None, *more: Tensor
    ) -> Tensor:
        needs = ctx.needs_input_grad
        layer = Layer(features, weight, bias, needs[1], needs[2], needs[3], any(needs[4:]))
        value, kept = algorithm.forward(layer)
        ctx.save_for_backward(features, weight, bias, *more)  # says so if something changed them in between
        ctx.algorithm, ctx.kept, ctx.more = algorithm, kept, len(more)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        features, weight, bias, *_ = ctx.saved_tensors
        needs = ctx.needs_input_grad
        layer = Layer(features, weight, bias, needs[1], needs[2], needs[3], any(needs[4:]))
        with in_full_precision(features):
            found = ctx.algorithm.backward(layer, ctx.kept, upstream)
        more = found.more or [None] * ctx.more
        given = ((found.features, features), (found.weight, weight), (found.bias, bias))
        return None, *(None if g is None else narrow(g, like.dtype) for g, like in given), *more


class _Unchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *read: Tensor) -> Tensor:
        ctx.save_for_backward(*read)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return upstream, *(None for _ in ctx.saved_tensors)  # which says so if something changed them in between


def with_unchanged(value: Tensor, *read: Tensor) -> Tensor:
    """The value, whose backward pass raises where a tensor that it may read again was written to since."""
    return _Unchanged.apply(value, *read) if value.requires_grad else value  # type: ignore[no-untyped-call]


def fused(algorithm: Algorithm, features: Tensor, weight: Tensor, bias: Tensor | None, *more: Tensor) -> Tensor:
    """The algorithm's value, differentiable in the layer and in the loss's own numbers."""
    with on_its_device(features):  # in the backward pass autograd sees to it
        if not torch.is_grad_enabled():
            return algorithm.forward(Layer(features, weight, bias, False, False, False))[0]
        return _Fused.apply(algorithm, features, weight, bias, *more)  # type: ignore[no-any-return, no-untyped-call]
