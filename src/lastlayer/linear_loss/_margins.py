"""Margin losses by chunks of rows: two logits a sample have a gradient, for which a large layer needs no product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.linear_loss._compiled import pays, row_kernels
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._picked import ClassSums
from lastlayer.linear_loss._products import add_product, empty_rows, input_gradient, logits_of, wide
from lastlayer.linear_loss._rows import logits_into
from lastlayer.linear_loss._target import Batch, chunks
from lastlayer.linear_loss.plan import eager_rows
from lastlayer.losses import Loss
from lastlayer.losses.selection import AtLabel
from lastlayer.losses.target import Labels

Entries = tuple[Tensor, Tensor, Tensor]  # samples, classes and dz, (m,) each
FEW_TIES = 8  # a row, up to which they are gathered and scattered one by one


class Margins:
    """max_margin and batch_max_margin of labels: two logits a sample have a gradient, the true and the best false one.

    The loss's own function is called on those two, (N, 2) with label 0. False logits that tie for the largest share
    its gradient: the samples where they do, many in half precision, are computed again.
    """

    def __init__(self, loss: Loss, batch: Batch, rows: int) -> None:
        self.loss, self.batch, self.size = loss, batch, rows
        self.coupled = "reduction" not in loss.hyperparameters()

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        N = layer.features.shape[0]
        found: list[list[tuple[Tensor, ...]]] = [[] for _ in self.batch.labels]
        found_kernels = row_kernels(layer.features, len(layer.weight))
        size = self.size if found_kernels is not None else self._eager_size(layer)
        buffer = empty_rows(min(size, N), layer.weight)
        for low, high in chunks(N, size):
            z = logits_into(buffer[: high - low], layer, low, high)
            for parts, labels in zip(found, self.batch.labels, strict=True):
                index = labels.index[low:high]
                if found_kernels is not None:
                    values, classes, ties = found_kernels.best(z, index.squeeze(1))
                    true = at_least_float32(z.gather(1, index))
                    parts.append((torch.cat([true, values.unsqueeze(1)], 1), classes, ties))
                else:
                    parts.append(best_false(z, index))
        kept = []
        value: Tensor | None = None
        for parts, labels in zip(found, self.batch.labels, strict=True):
            pairs, best_class, ties = (torch.cat(column) for column in zip(*parts, strict=True))
            with torch.enable_grad():
                part = self._loss(pairs.requires_grad_(), labels)
                value = part if value is None else value + part
            kept.append((pairs, best_class, ties))
        assert value is not None  # there is a label
        if self.coupled:
            return value.detach(), (value, kept)
        with torch.enable_grad():
            value = self.batch.reduce(value)
        return value.detach(), (value, kept)

    def _loss(self, pairs: Tensor, labels: Labels) -> Tensor:
        zero = torch.zeros(pairs.shape[0], dtype=torch.long, device=pairs.device)
        options = self.loss.hyperparameters()
        if self.coupled:
            coupled: Tensor = labels.share * type(self.loss).function(pairs, zero, **options)
            return coupled
        per_sample = type(self.loss).function(pairs, zero, margin=options["margin"], reduction="none")
        return self.batch.counted_part(labels, per_sample)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        value, parts = kept
        slopes = torch.autograd.grad(value, [pairs for pairs, _, _ in parts], upstream, retain_graph=True)
        every = torch.arange(layer.features.shape[0], device=upstream.device)
        entries: list[Entries] = []
        dense = None
        for (_, best_class, ties), slope, labels in zip(parts, slopes, self.batch.labels, strict=True):
            index, tied = labels.index.squeeze(1), ties > 1
            entries.append((every, index, slope[:, 0]))
            entries.append((every, best_class, torch.where(tied, 0.0, slope[:, 1])))
            again = (tied & (slope[:, 1] != 0)).nonzero().squeeze(1)
            for low, high in chunks(again.numel(), self._eager_size(layer)) if again.numel() else ():
                some = again[low:high]
                dz = self._shared_among_ties(layer, some, index, slope[:, 1])
                row, column = dz.nonzero().unbind(1)
                if row.numel() <= FEW_TIES * some.numel():
                    entries.append((some[row], column, dz[row, column]))
                    continue
                dense = Gradients.zeros(layer) if dense is None else dense
                add_rows(dense, layer, some, dz)
        return add_entries(dense, layer, entries)

    def _eager_size(self, layer: Layer) -> int:
        """Samples of a chunk that no kernel takes."""
        return eager_rows(self.size, len(layer.weight)) if pays(layer.features) else self.size

    def _shared_among_ties(self, layer: Layer, some: Tensor, index: Tensor, slope: Tensor) -> Tensor:
        """The gradient of all logits of some samples, whose largest false ones tie."""
        z = logits_of(layer.features[some], layer.weight, layer.bias)
        z = z.scatter_(1, index[some].unsqueeze(1), float("-inf"))
        ties = (z == z.amax(1, keepdim=True)).to(z.dtype)
        return ties.mul_((slope[some] / ties.sum(1)).unsqueeze(1))


def add_rows(gradients: Gradients, layer: Layer, some: Tensor, dz: Tensor) -> None:
    """Put in the gradient dz (n, K) of the logits of some samples."""
    if gradients.features is not None:
        gradients.features.index_add_(0, some, input_gradient(dz, layer.weight).to(gradients.features.dtype))
    if gradients.weight is not None:
        add_product(gradients.weight, dz, layer.features[some])
    if gradients.bias is not None:
        gradients.bias += dz.sum(0)


def add_entries(dense: Gradients | None, layer: Layer, entries: list[Entries]) -> Gradients:
    """Gradients of the layer for single entries of that of the logits: a gather and a scatter."""
    found = Gradients() if dense is None else dense
    dtype = wide(layer.weight.dtype)
    if layer.wants_features:
        features = torch.zeros_like(layer.features, dtype=dtype) if found.features is None else found.features
        for rows, classes, dz in entries:
            features.index_add_(0, rows, dz.to(dtype).unsqueeze(1) * layer.weight[classes])
        found.features = features
    every_class = torch.cat([classes for _, classes, _ in entries])
    if layer.wants_weight:
        sums = ClassSums(layer.weight, every_class)
        first = 0
        for rows, _, dz in entries:
            sums.add(first, dz.to(dtype).unsqueeze(1) * layer.features[rows])
            first += len(rows)
        found.weight = sums.add_to(found.weight)
    if layer.wants_bias and layer.bias is not None:
        bias = torch.zeros_like(layer.bias, dtype=dtype) if found.bias is None else found.bias
        found.bias = bias.index_add_(0, every_class, torch.cat([dz for _, _, dz in entries]).to(dtype))
    return found


def best_false(z: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The true logit and the largest other (n, 2), where that is, and how many there are."""
    false = AtLabel(index).fill(at_least_float32(z), float("-inf"))
    true = at_least_float32(z.gather(1, index))
    values, classes = false.max(1, keepdim=True)
    return torch.cat([true, values], 1), classes.squeeze(1), (false == values).sum(1)
