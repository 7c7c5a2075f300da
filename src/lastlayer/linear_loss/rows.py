"""Chunks of rows: every class of a few samples at a time, for every loss.

If the loss is a scalar, the forward pass computes its gradient too, while it has the logits of a chunk. The backward
pass multiplies it by the upstream gradient. With reduction "none" each sample has its own upstream gradient, which must
be applied before summing over samples. So the backward pass computes the logits again.

On a GPU, kernels compute losses of one label per sample, in the memory of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from lastlayer._core.labels import INTEGERS
from lastlayer._core.precision import wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.batch import Batch, check_numbers, rows_of, wanted_numbers
from lastlayer.linear_loss.kernels import LINES, CompilationError, RowLoss, is_hinge, tensors_of
from lastlayer.linear_loss.kernels.large_margin import angles, takes_angles
from lastlayer.linear_loss.layer import Gradients, Layer, Once, RowGradients, fused
from lastlayer.linear_loss.plan import called, eager_rows, suits_kernels
from lastlayer.linear_loss.products import autocast_dtype, chunks, logits_of
from lastlayer.linear_loss.rows_coupled import BatchSoftmax, Hinges
from lastlayer.losses import Loss, Target
from lastlayer.losses.target import check_label_range, check_same_device, may_read


def by_rows(loss: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The loss, a chunk of samples at a time, by the algorithm that suits it."""
    if not loss.in_pieces:
        raise ValueError(
            f"{called(loss)} does not say how the losses of some samples add up, so path='rows' does not take it: plan "
            "'dense' does. If its mean is that of cross_entropy, set in_pieces = True in its class"
        )
    hinge, layer, K = is_hinge(loss), (features, weight, bias), len(weight)
    if loss.couples_batch and loss.row_form is not None and not hinge:
        wanted_numbers(loss, batch, "rows", ())
        return fused(BatchSoftmax(batch, size), *layer)
    if hinge and loss.couples_batch:
        shares = [labels.share for labels in batch.labels]
        if not shares or any(isinstance(share, Tensor) and share.dim() for share in shares):
            loss(features.new_zeros(2, K), rows_of(batch.target, 0, 2))  # raises
    if hinge and batch.labels:
        wanted_numbers(loss, batch, "rows", ())
        check_numbers(loss, features, K)
        return fused(Hinges(loss, batch, size), *layer)
    options = loss.hyperparameters()
    if "reduction" not in options:
        raise ValueError(
            f"{called(loss)} gives no value for each sample, which path='rows' adds up: plan 'dense' takes it"
        )
    more = wanted_numbers(loss, batch, "rows", options)
    if loss.takes_layer and takes_angles(batch.target, loss, features, K):
        return angles(loss, batch, size, features, weight)
    return fused(RowChunks(loss, batch, size, more), *layer, *more)


class RowChunks:
    """Any loss with one value per sample, by its own function on the logits of a chunk."""

    def __init__(self, loss: Loss, batch: Batch, rows: int, more: list[Tensor]) -> None:
        self.loss, self.batch, self.size, self.more = loss, batch, rows, more

    def forward(self, layer: Layer) -> tuple[Tensor, Once]:
        now = self.batch.reduction != "none" and layer.wants_any
        gradients = self._gradients(layer) if now else None
        values = self._chunks(layer, gradients, None)
        return self.batch.reduce(values), Once(gradients)

    def backward(self, layer: Layer, kept: Once, upstream: Tensor) -> Gradients:
        gradients: RowGradients | None = kept.take()
        per_sample = self.batch.reduction == "none"
        if gradients is None:  # one value per sample, or a second backward pass through the same graph
            self._chunks(layer, gradients := self._gradients(layer), upstream if per_sample else None)
        return gradients.finish(1.0 if per_sample else upstream * self.batch.factor())

    def _gradients(self, layer: Layer) -> RowGradients:
        rows = self._rows(layer, self._fast(layer) is not None)
        return RowGradients(layer, single=layer.features.shape[0] <= rows and not self.loss.takes_layer)

    def _rows(self, layer: Layer, in_place: bool) -> int:
        """Samples in a chunk. Fewer than planned if the plan counts on chunks in place and this one is not."""
        if in_place or not kernels.pays(layer.features):
            return self.size
        return eager_rows(self.size, layer.weight.shape[0])

    def _chunks(self, layer: Layer, gradients: RowGradients | None, upstream: Tensor | None) -> Tensor:
        """One loss per sample. Its gradient, times the upstream gradient of the sample, is added to the gradients."""
        N = layer.features.shape[0]
        fast = self._fast(layer) if gradients is not None else None
        buffer = None if fast is None else layer.room(min(self.size, N))
        values = []
        for low, high in chunks(N, self._rows(layer, fast is not None)):
            if fast is not None and gradients is not None and buffer is not None:
                z = layer.put_logits(buffer, low, high)
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
        """A compiled function that gives the losses of a chunk and overwrites its logits by their gradient, or None."""
        N = layer.features.shape[0]
        if N == 0 or self.loss.takes_layer or self.more or not kernels.pays(layer.features):
            return None
        function = kernels.losses_and_gradient(self.loss)
        if function is None:
            return None
        target, tensors = self.batch.target, tensors_of(self.loss)
        if isinstance(target, tuple) and not isinstance(target[2], Tensor):  # compiled code would take it as a constant
            target = target[0], target[1], torch.full((), target[2], device=layer.features.device)

        def call(z: Tensor, low: int, high: int, upstream: Tensor | None) -> Tensor:
            ones = z.new_ones(high - low, dtype=wide(z.dtype)) if upstream is None else upstream
            values: Tensor = function(z, rows_of(target, low, high), ones, _cut(tensors, low, high, N))
            return values

        return call

    def _chunk(
        self, layer: Layer, low: int, high: int, gradients: RowGradients | None, upstream: Tensor | None
    ) -> Tensor:
        features = layer.features[low:high]
        target = rows_of(self.batch.target, low, high)
        tensors = _cut(tensors_of(self.loss), low, high, layer.features.shape[0])
        named: dict[str, Any] = {"samples": tensors["samples"]} if "samples" in tensors else {}
        if self.loss.takes_layer:
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
        if self.loss.takes_layer:
            gradients.add_whole(low, high, found[0], found[1])
        else:
            gradients.add(layer, low, high, found[0])
        gradients.add_more(found[len(leaves) :])
        return per_sample.detach()


def _cut(tensors: dict[str, Tensor], low: int, high: int, N: int) -> dict[str, Tensor]:
    """A loss's tensors for the samples low..high-1. Drawn labels, `samples`, are (t,) for all samples, or (N, t)."""
    samples = tensors.get("samples")
    if samples is None or samples.dim() != 2:
        return tensors
    if samples.shape[0] != N:
        raise ValueError(f"samples must have shape (t,) or ({N}, t), got {tuple(samples.shape)}")
    return {**tensors, "samples": samples[low:high]}


# Losses of one label per sample, by the kernels for labels.


def takes(target: Target, loss: Loss, features: Tensor, K: int, rows: int) -> TypeGuard[Tensor]:
    """Whether the target is one label per sample, and the device has kernels for this loss and chunks of this size."""
    N, d = features.shape
    if kernels.row_kernels(features) is None or not suits_kernels(type(loss), N, d, K, rows):
        return False
    if not isinstance(target, Tensor) or target.shape != (N,) or target.dtype not in INTEGERS:
        return False
    if loss.couples_batch and not is_hinge(loss) and (autocast_dtype(features) or features.dtype) is torch.float16:
        return False  # a softmax over N K logits has entries that float16 cannot hold
    return kernels.has_row_loss(loss)


def by_kernels(target: Tensor, loss: Loss, features: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """The loss by the kernels, which take it."""
    found = kernels.row_loss(loss, len(weight), features.device)
    check_same_device(target, "target", features)
    label, options = target.long().contiguous(), loss.hyperparameters()
    if may_read(label):
        mine = torch.where(label == found.ignored, 0, label)
        check_label_range("target", mine, len(weight), options.get("ignore_index"))
    way = InOneChunk if rows >= len(label) else InChunks
    return fused(way(found, label, options.get("reduction", "mean"), rows), features, weight, bias, label)


class InOneChunk:
    """All logits are held until the backward pass, so the upstream gradient is known before the gradient is rounded."""

    def __init__(self, loss: RowLoss, label: Tensor, reduction: str, rows: int) -> None:
        from lastlayer.linear_loss.kernels import coupled, labels  # they need Triton

        self.loss, self.label, self.reduction, self.size = loss, label, reduction, rows
        self.kernels, self.coupled = labels, coupled

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        z = self._logits(layer)
        numbers = torch.empty(LINES, len(z), dtype=torch.float32, device=z.device)
        self.kernels.put_numbers(z, self.label, self.loss, numbers)
        share = None
        if self.loss.coupled:
            value, share = self.coupled.coupled(numbers, self.loss)
        elif self.reduction == "none":
            value = numbers[0].clone()  # no view, because the caller may write to it
        else:
            value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean")
        return value, (Once(z), numbers, share) if layer.wants_any else None

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, numbers, share = kept
        z: Tensor | None = once.take()
        if z is None:  # a second backward pass through the same graph
            z = self._logits(layer)
        self.kernels.put_gradient(z, self.label, self.loss, numbers, upstream.contiguous(), share)
        return Gradients.of_logits(layer, z)

    def _logits(self, layer: Layer) -> Tensor:
        N = len(layer.features)
        return layer.put_logits(layer.room(N), 0, N)


class InChunks(InOneChunk):
    """A chunk of logits at a time. The forward pass makes the gradient if the loss is a scalar.

    Otherwise the backward pass computes the logits again.
    """

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        gradients = RowGradients(layer) if layer.wants_any and self.reduction != "none" else None
        numbers = torch.empty(LINES, len(layer.features), dtype=torch.float32, device=layer.features.device)
        for low, high, z in layer.logits_in_chunks(self.size):
            self.kernels.put_numbers(z, self.label[low:high], self.loss, numbers[:, low:high])
            if gradients is not None:
                self.kernels.put_gradient(z, self.label[low:high], self.loss, numbers[:, low:high])
                gradients.add(layer, low, high, z)
        if self.reduction == "none":
            return numbers[0].clone(), (Once(None), numbers, None)
        value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean")
        return value, (Once(gradients), numbers, share)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, numbers, share = kept
        gradients: RowGradients | None = once.take()
        if gradients is None:  # one value per sample, or a second backward pass through the same graph
            gradients = RowGradients(layer)
            for low, high, z in layer.logits_in_chunks(self.size):
                each = upstream[low:high].contiguous() if share is None else None
                self.kernels.put_gradient(z, self.label[low:high], self.loss, numbers[:, low:high], each)
                gradients.add(layer, low, high, z)
        return gradients.finish(1.0 if share is None else upstream * share)
