"""Losses of one label a sample by Triton kernels: all rows at once, or a chunk of them at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss._compiled import kernels, label_kernels
from lastlayer.linear_loss._function import Algorithm, Gradients, Layer
from lastlayer.linear_loss._label_losses import LINES, RowLoss, row_loss
from lastlayer.linear_loss._rows import Once, logits_buffer, logits_into
from lastlayer.linear_loss._sums import RowGradients
from lastlayer.linear_loss._target import chunks
from lastlayer.linear_loss.plan import SPARSE
from lastlayer.losses import Loss, Target
from lastlayer.losses._target import check_label_range, check_same_device, may_read

SPARSE_PAYS = 2**38  # N d K, from which single entries of a gradient gain more over products than their search costs


def by_kernels(name: str, loss: Loss, target: Target, features: Tensor, K: int, rows: int) -> Algorithm | None:
    """The loss by kernels, where the device has them and it is of one label a sample; else None."""
    N, d = features.shape
    if kernels(features) is None or N == 0 or not isinstance(target, Tensor) or target.shape != (N,):
        return None
    if target.dtype is torch.bool or target.is_floating_point() or target.is_complex():
        return None
    if name in SPARSE and N * d * K > SPARSE_PAYS:
        return None
    found = row_loss(name, loss, K, features.device)
    if found is None:
        return None
    check_same_device(target, "target", features)
    label = target.long().contiguous()
    if may_read(label):
        check_label_range("target", torch.where(label == found.ignored, 0, label), K, found.ignored)
    reduction: str = loss.hyperparameters()["reduction"]
    return OneChunk(found, label, reduction) if rows >= N else Chunks(found, label, reduction, rows)


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
        if self.reduction == "none":
            value = numbers[0]
        else:
            value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean").unbind()
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
        return logits_into(logits_buffer(layer, N), layer, 0, N)


class Chunks:
    """Some logits at a time: a scalar's gradient in the forward pass; else they are computed again for it."""

    def __init__(self, loss: RowLoss, label: Tensor, reduction: str, rows: int) -> None:
        self.loss, self.label, self.reduction, self.size = loss, label, reduction, rows
        self.kernels = label_kernels()

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        gradients = RowGradients(layer) if layer.wants_any and self.reduction != "none" else None
        numbers = self._chunks(layer, gradients, None)
        if self.reduction == "none":
            return numbers[0], None
        value, share = self.kernels.reduced(numbers, self.label, self.loss, self.reduction == "mean").unbind()
        return value, None if gradients is None else (Once(gradients), share)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, share = (None, None) if kept is None else kept
        gradients: RowGradients | None = None if once is None else once.take()
        if gradients is None:  # one value a sample, or a graph that is kept and asks again
            gradients = RowGradients(layer)
            self._chunks(layer, gradients, upstream.contiguous() if share is None else None)
        return gradients.finish(1.0 if share is None else upstream * share)

    def _chunks(self, layer: Layer, gradients: RowGradients | None, upstream: Tensor | None) -> Tensor:
        """The numbers of every sample; its gradient, times its upstream number, goes into the gradients."""
        N = len(layer.features)
        buffer = logits_buffer(layer, self.size)
        numbers = torch.empty(LINES, N, dtype=torch.float32, device=buffer.device)
        for low, high in chunks(N, self.size):
            z, label, some = logits_into(buffer[: high - low], layer, low, high), self.label[low:high], slice(low, high)
            self.kernels.put_numbers(z, label, self.loss, numbers[:, some])
            if gradients is not None:
                own = None if upstream is None else upstream[some]
                self.kernels.put_gradient(z, label, self.loss, numbers[:, some], own)
                gradients.add(layer, low, high, z)
        return numbers
