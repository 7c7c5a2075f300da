"""Losses of one label a sample by Triton kernels: all rows at once, or a chunk of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor

from lastlayer._core.labels import INTEGERS
from lastlayer.linear_loss._compiled import batch_kernels, kernels, label_kernels
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._label_losses import COUPLED, LINES, RowLoss, has_form, row_loss
from lastlayer.linear_loss._products import autocast_dtype, empty_rows
from lastlayer.linear_loss._rows import Once, logits_into
from lastlayer.linear_loss._sums import RowGradients
from lastlayer.linear_loss._target import chunks
from lastlayer.linear_loss.plan import FEWEST_ROWS, NARROW, ONE_PROGRAM, SPARSE, SPARSE_PAYS
from lastlayer.losses import Loss, Target
from lastlayer.losses.target import check_label_range, check_same_device, may_read


def takes(target: Target, name: str, loss: Loss, features: Tensor, K: int, rows: int) -> TypeGuard[Tensor]:
    """Whether the target is one label a sample and the device has kernels for the loss and for chunks of such rows."""
    N, d = features.shape
    if K < NARROW or N == 0 or kernels(features) is None:
        return False
    if not isinstance(target, Tensor) or target.shape != (N,) or target.dtype not in INTEGERS:
        return False
    if name in COUPLED and min(rows, ONE_PROGRAM) < N:
        return False
    if name == "batch-ce" and (autocast_dtype(features) or features.dtype) is torch.float16:
        return False  # a softmax of N K logits has entries that float16 has no place for
    if name in SPARSE and (N * d * K > SPARSE_PAYS or rows < min(N, FEWEST_ROWS)):
        return False  # single entries of a gradient cost less
    return has_form(name, loss)


def by_kernels(target: Tensor, name: str, loss: Loss, features: Tensor, K: int, rows: int) -> OneChunk | Chunks:
    """The loss by kernels, which take it."""
    found = row_loss(name, loss, K, features.device)
    check_same_device(target, "target", features)
    label = target.long().contiguous()
    options = loss.hyperparameters()
    if may_read(label):
        check_label_range("target", torch.where(label == found.ignored, 0, label), K, options.get("ignore_index"))
    if rows >= len(label):
        return OneChunk(found, label, options.get("reduction", "mean"))
    return Chunks(found, label, options["reduction"], rows)


class OneChunk:
    """All logits, held until the backward pass: what it multiplies by is known before the gradient is rounded."""

    def __init__(self, loss: RowLoss, label: Tensor, reduction: str) -> None:
        self.loss, self.label, self.reduction = loss, label, reduction
        self.kernels = label_kernels()

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        z = self._logits(layer)
        numbers = torch.empty(LINES, len(z), dtype=torch.float32, device=z.device)
        self.kernels.put_numbers(z, self.label, self.loss, numbers)
        share = None
        if self.loss.coupled:
            value, share = batch_kernels().coupled(numbers, self.loss)
        elif self.reduction == "none":
            value = numbers[0].clone()  # no view: the caller may write to it
        else:
            value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean")
        return value, (Once(z), numbers, share) if layer.wants_any else None

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, numbers, share = kept
        z: Tensor | None = once.take()
        if z is None:  # a graph that is kept asks again
            z = self._logits(layer)
        self.kernels.put_gradient(z, self.label, self.loss, numbers, upstream.contiguous(), share)
        return Gradients.of_logits(layer, z)

    def _logits(self, layer: Layer) -> Tensor:
        N = len(layer.features)
        return logits_into(empty_rows(N, layer.weight), layer, 0, N)


class Chunks:
    """Some logits at a time: a scalar's gradient in the forward pass; else they are computed again for it."""

    def __init__(self, loss: RowLoss, label: Tensor, reduction: str, rows: int) -> None:
        self.loss, self.label, self.reduction, self.size = loss, label, reduction, rows
        self.kernels = label_kernels()

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        gradients = RowGradients(layer) if layer.wants_any and self.reduction != "none" else None
        numbers = torch.empty(LINES, len(layer.features), dtype=torch.float32, device=layer.features.device)
        for some, z in self._logits(layer):
            self.kernels.put_numbers(z, self.label[some], self.loss, numbers[:, some])
            if gradients is not None:
                self._add(gradients, layer, some, z, numbers, None)
        if self.reduction == "none":
            return numbers[0].clone(), (Once(None), numbers, None)
        value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean")
        return value, (Once(gradients), numbers, share)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, numbers, share = kept
        gradients: RowGradients | None = once.take()
        if gradients is None:  # one value a sample, or a graph that is kept and asks again
            gradients = RowGradients(layer)
            for some, z in self._logits(layer):
                self._add(gradients, layer, some, z, numbers, upstream[some].contiguous() if share is None else None)
        return gradients.finish(1.0 if share is None else upstream * share)

    def _logits(self, layer: Layer) -> Iterator[tuple[slice, Tensor]]:
        """Some samples and their logits, in memory that the next ones will take."""
        buffer = empty_rows(self.size, layer.weight)
        for low, high in chunks(len(layer.features), self.size):
            yield slice(low, high), logits_into(buffer[: high - low], layer, low, high)

    def _add(
        self, gradients: RowGradients, layer: Layer, some: slice, z: Tensor, numbers: Tensor, upstream: Tensor | None
    ) -> None:
        """Put in the gradient of some samples, each times its upstream number."""
        self.kernels.put_gradient(z, self.label[some], self.loss, numbers[:, some], upstream)
        gradients.add(layer, some.start, some.stop, z)
