"""large-margin of labels by kernels: from three numbers a sample, like any loss against the other classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss._compiled import kernels, label_kernels
from lastlayer.linear_loss._function import Gradients, Layer, fused
from lastlayer.linear_loss._label_losses import Kind
from lastlayer.linear_loss._picked import ClassSums
from lastlayer.linear_loss._products import narrow, padded, pieces, put_product, wide
from lastlayer.linear_loss._rows import Once
from lastlayer.linear_loss._sums import RowGradients
from lastlayer.linear_loss._target import Batch, chunks
from lastlayer.losses import Loss
from lastlayer.losses._classes import softplus
from lastlayer.losses.large_margin import row_norms, shrink


def large_margin(module: Loss, batch: Batch, rows: int, features: Tensor, weight: Tensor) -> Tensor:
    """The loss of labels, a chunk of samples at a time."""
    options = module.hyperparameters()
    feature_norms = row_norms(features)
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        others, true, class_norms = fused(Numbers(index, rows), features, weight, None, index).unbind()
        margined = shrink(true, feature_norms * class_norms, options["margin"], options["lam"])
        value = value + batch.counted_part(labels, softplus(others - margined))
    return batch.reduce_counted(torch.as_tensor(value))


class Numbers:
    """Of each sample the log-sum of the false logits, the true one, and the norm of its class's row, (3, N) in float32.

    The logits are float32, as in the loss's own function: a GPU multiplies half precision into it at full speed. Those
    of one chunk of all samples are held, for the gradient to be put in their place; of several they are computed again.
    """

    def __init__(self, label: Tensor, rows: int) -> None:
        self.label, self.size = label, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        held = None
        parts = []
        for some, z in self._logits(layer):
            label = self.label[some]
            true = z.gather(1, label.unsqueeze(1)).squeeze(1)
            parts.append(torch.stack([*kernels(z).sums(z, label), true]))
            if len(z) == len(self.label) and layer.wants_any:
                held = z
        largest, total, true = torch.cat(parts, 1)
        norms = row_norms(layer.weight[self.label])
        return torch.stack([largest + total.log(), true, norms]), (Once(held), largest, total, norms)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, largest, total, norms = kept
        d_others, d_true, d_norms = upstream
        slope = d_others / torch.where(total == 0, 1.0, total)  # with one class there are no others
        put = label_kernels().put_slopes
        z: Tensor | None = once.take()
        if z is not None:
            put(z, self.label, Kind.SOFTMAX, largest, slope, d_true)
            found = Gradients.of_logits(layer, narrow(z, layer.weight.dtype))
        else:
            gradients = RowGradients(layer)
            for some, z in self._logits(layer):
                put(z, self.label[some], Kind.SOFTMAX, largest[some], slope[some], d_true[some])
                gradients.add(layer, some.start, some.stop, narrow(z, layer.weight.dtype))
            found = gradients.finish(1.0)
        if layer.wants_weight:
            along = d_norms / torch.where(norms == 0, 1.0, norms)
            sums = ClassSums(layer.weight, self.label)
            sums.add(0, along.unsqueeze(1) * layer.weight[self.label])
            found.weight = sums.add_to(found.weight)
        return found

    def _logits(self, layer: Layer) -> Iterator[tuple[slice, Tensor]]:
        """Some samples and their logits, in memory that the next ones will take."""
        N, K = len(self.label), len(layer.weight)
        buffer = torch.empty(min(self.size, N), padded(K), dtype=wide(layer.weight.dtype), device=layer.weight.device)
        for low, high in chunks(N, self.size):
            z, features = buffer[: high - low, :K], layer.features[low:high]
            for some in pieces(high - low, features.shape[1], K):
                put_product(z[:, some], features.T, layer.weight[some].T)
            yield slice(low, high), z
