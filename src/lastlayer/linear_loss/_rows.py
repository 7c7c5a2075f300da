"""Chunks of rows: every class of a few samples at a time, for every loss.

A scalar's gradient is computed in the forward pass, while a chunk's logits are at hand, and multiplied by the upstream
number in the backward pass. One value a sample has one upstream number a sample, which must enter before the sum over
samples that makes the weight's gradient; the logits are then computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lastlayer.linear_loss._compiled import CompilationError, losses_and_gradient, pays, tensors_of
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._products import empty_rows, logits_of, pieces, wide
from lastlayer.linear_loss._sums import RowGradients
from lastlayer.linear_loss._target import Batch, chunks, rows_of
from lastlayer.linear_loss.plan import eager_rows
from lastlayer.losses import LargeMarginLoss, Loss, Target

T = TypeVar("T")


class Once(Generic[T]):
    """Something to be taken once: gradients that are finished in place."""

    def __init__(self, thing: T) -> None:
        self.thing: T | None = thing

    def take(self) -> T | None:
        thing, self.thing = self.thing, None
        return thing


class RowChunks:
    """Any per-sample loss, by its own function on a chunk's logits."""

    def __init__(self, loss: Loss, batch: Batch, rows: int, more: list[Tensor]) -> None:
        self.loss, self.batch, self.size, self.more = loss, batch, rows, more
        self.from_features = isinstance(loss, LargeMarginLoss)

    def forward(self, layer: Layer) -> tuple[Tensor, Once[RowGradients] | None]:
        once = self.batch.reduction != "none" and layer.wants_any
        gradients = self._gradients(layer) if once else None
        values = self._chunks(layer, gradients, None)
        return self.batch.reduce(values), None if gradients is None else Once(gradients)

    def backward(self, layer: Layer, kept: Once[RowGradients] | None, upstream: Tensor) -> Gradients:
        if kept is None:
            gradients = self._gradients(layer)
            self._chunks(layer, gradients, upstream)
            return gradients.finish(1.0)
        if (found := kept.take()) is None:  # a graph that is kept asks again
            self._chunks(layer, found := self._gradients(layer), None)
        return found.finish(upstream * self.batch.factor())

    def _gradients(self, layer: Layer) -> RowGradients:
        rows = self._rows(layer, self._fast(layer) is not None)
        return RowGradients(layer, single=layer.features.shape[0] <= rows and not self.from_features)

    def _rows(self, layer: Layer, in_place: bool) -> int:
        """Samples of a chunk: fewer than planned where the plan counts on chunks in place and this one is not."""
        if in_place or not pays(layer.features):
            return self.size
        return eager_rows(self.size, layer.weight.shape[0])

    def _chunks(self, layer: Layer, gradients: RowGradients | None, upstream: Tensor | None) -> Tensor:
        """One loss a sample; its gradient, times the upstream number of each sample, goes into the gradients."""
        N = layer.features.shape[0]
        fast = self._fast(layer) if gradients is not None else None
        buffer = None if fast is None else empty_rows(min(self.size, N), layer.weight)
        values = []
        for low, high in chunks(N, self._rows(layer, fast is not None)):
            if fast is not None and gradients is not None and buffer is not None:
                z = logits_into(buffer[: high - low], layer, low, high)
                try:
                    values.append(fast(z, low, high, None if upstream is None else upstream[low:high]))
                except CompilationError:
                    fast = None
                else:
                    gradients.add(layer, low, high, z)
                    continue
            values.append(self._chunk(layer, low, high, gradients, upstream))
        return torch.cat(values)

    def _fast(self, layer: Layer) -> Callable[[Tensor, int, int, Tensor | None], Tensor] | None:
        """What gives a chunk's losses and puts the gradient in the place of its logits, where there is such a thing."""
        N = layer.features.shape[0]
        if N == 0 or self.from_features or self.more or not pays(layer.features):
            return None
        function = losses_and_gradient(self.loss)
        if function is None:
            return None
        target, tensors = on_device(self.batch.target, layer.features.device), tensors_of(self.loss)

        def call(z: Tensor, low: int, high: int, upstream: Tensor | None) -> Tensor:
            ones = z.new_ones(high - low, dtype=wide(z.dtype)) if upstream is None else upstream
            values: Tensor = function(z, rows_of(target, low, high), ones, cut(tensors, low, high, N))
            return values

        return call

    def _chunk(
        self, layer: Layer, low: int, high: int, gradients: RowGradients | None, upstream: Tensor | None
    ) -> Tensor:
        features = layer.features[low:high]
        target = rows_of(self.batch.target, low, high)
        tensors = cut(tensors_of(self.loss), low, high, layer.features.shape[0])
        named: dict[str, Any] = {"samples": tensors["samples"]} if "samples" in tensors else {}
        leaves: list[Tensor]
        if self.from_features:  # the angle to the true class needs more than the logits
            total = wide(layer.weight.dtype)
            leaves = [features.detach().to(total), layer.weight.detach().to(total)]
        else:
            leaves = [logits_of(features, layer.weight, layer.bias)]
        if gradients is None:
            return self.loss(*leaves, target, **named, reduction="none")  # type: ignore[no-any-return]
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            per_sample: Tensor = self.loss(*leaves, target, **named, reduction="none")
        ones = torch.ones_like(per_sample) if upstream is None else upstream[low:high]
        found = torch.autograd.grad(per_sample, [*leaves, *self.more], ones, allow_unused=True, materialize_grads=True)
        if self.from_features:
            if gradients.features is not None:
                gradients.features[low:high] = found[0]
            if gradients.weight is not None:
                gradients.weight.add_whole(found[1])
        else:
            gradients.add(layer, low, high, found[0])
        extra = found[len(leaves) :]
        gradients.more = [a + b for a, b in zip(gradients.more, extra, strict=True)] if gradients.more else list(extra)
        return per_sample.detach()


def logits_into(buffer: Tensor, layer: Layer, low: int, high: int) -> Tensor:
    """The logits of some samples, in place."""
    features = layer.features[low:high]
    for some in pieces(high - low, features.shape[1], len(layer.weight)):
        if layer.bias is None:
            torch.mm(features, layer.weight[some].T, out=buffer[:, some])
        else:
            torch.addmm(layer.bias[some], features, layer.weight[some].T, out=buffer[:, some])
    return buffer


def on_device(target: Target, device: torch.device) -> Target:
    """The target with a mixed pair's number as a tensor: compiled code takes a Python number for a constant."""
    if isinstance(target, tuple) and not isinstance(target[2], Tensor):
        return target[0], target[1], torch.full((), target[2], device=device)
    return target


def cut(tensors: dict[str, Tensor], low: int, high: int, N: int) -> dict[str, Tensor]:
    """A loss's tensors for some samples: of nce, drawn labels may be (t,) for all or (N, t)."""
    samples = tensors.get("samples")
    if samples is None or samples.dim() != 2:
        return tensors
    if samples.shape[0] != N:
        raise ValueError(f"samples must have shape (t,) or ({N}, t), got {tuple(samples.shape)}")
    return {**tensors, "samples": samples[low:high]}
