"""Chunks of rows: every class of a few samples at a time, for every loss.

A scalar's gradient is computed in the forward pass, while a chunk's logits are at hand, and multiplied by the upstream
number in the backward pass. One value a sample has one upstream number a sample, which must enter before the sum over
samples that makes the weight's gradient; the logits are then computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._picked import add_entries
from lastlayer.linear_loss._products import input_gradient, logits_of, wide
from lastlayer.linear_loss._target import Batch
from lastlayer.losses import LargeMarginLoss, Loss


def chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(low, high) of every chunk; of nothing, one empty chunk, so that the loss still sees its arguments."""
    for low in range(0, max(count, 1), size):
        yield low, min(low + size, count)


class RowChunks:
    """Any per-sample loss, by its own function on a chunk's logits."""

    def __init__(self, loss: Loss, batch: Batch, rows: int, more: list[Tensor]) -> None:
        self.loss, self.batch, self.size, self.more = loss, batch, rows, more
        self.from_features = isinstance(loss, LargeMarginLoss)

    def forward(self, layer: Layer) -> tuple[Tensor, Gradients | None]:
        once = self.batch.reduction != "none" and layer.wants_any
        gradients = Gradients.zeros(layer) if once else None
        values = []
        for low, high in chunks(layer.features.shape[0], self.size):
            values.append(self._chunk(layer, low, high, gradients, None))
        return self.batch.reduce(torch.cat(values)), gradients

    def backward(self, layer: Layer, kept: Gradients | None, upstream: Tensor) -> Gradients:
        if kept is not None:
            return kept.times(upstream * self.batch.factor())
        gradients = Gradients.zeros(layer)
        for low, high in chunks(layer.features.shape[0], self.size):
            self._chunk(layer, low, high, gradients, upstream[low:high])
        return gradients

    def _chunk(self, layer: Layer, low: int, high: int, gradients: Gradients | None, upstream: Tensor | None) -> Tensor:
        features = layer.features[low:high]
        target = self.batch.rows(low, high)
        leaves: list[Tensor]
        if self.from_features:  # the angle to the true class needs more than the logits
            total = wide(layer.weight.dtype)
            leaves = [features.detach().to(total), layer.weight.detach().to(total)]
            inputs: tuple[Any, ...] = (*leaves, target)
        else:
            leaves = [logits_of(features, layer.weight, layer.bias)]
            inputs = (leaves[0], target)
        if gradients is None:
            return self._call(inputs, low, high, layer.features.shape[0])
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            per_sample = self._call(inputs, low, high, layer.features.shape[0])
        ones = torch.ones_like(per_sample) if upstream is None else upstream
        found = torch.autograd.grad(per_sample, [*leaves, *self.more], ones, allow_unused=True, materialize_grads=True)
        if self.from_features:
            if gradients.features is not None:
                gradients.features[low:high] = found[0]
            if gradients.weight is not None:
                gradients.weight += found[1]
        else:
            gradients.add_rows(layer, low, high, found[0])
        extra = found[len(leaves) :]
        gradients.more = [a + b for a, b in zip(gradients.more, extra, strict=True)] if gradients.more else list(extra)
        return per_sample.detach()

    def _call(self, inputs: tuple[Any, ...], low: int, high: int, N: int) -> Tensor:
        named: dict[str, Any] = {"reduction": "none"}
        samples = getattr(self.loss, "samples", None)  # of nce: drawn labels, (t,) for all or (N, t)
        if isinstance(samples, Tensor) and samples.dim() == 2:
            if samples.shape[0] != N:
                raise ValueError(f"samples must have shape (t,) or ({N}, t), got {tuple(samples.shape)}")
            named["samples"] = samples[low:high]
        return self.loss(*inputs, **named)  # type: ignore[no-any-return]


class BatchCrossEntropy:
    """One softmax over all logits of the batch, streaming.

    The exponentials are taken against the largest logit seen so far; when a chunk brings a larger one, the sums so far
    shrink by the difference. Each chunk's own rows are brought to the last maximum at the end.
    """

    def __init__(self, batch: Batch, rows: int) -> None:
        self.batch, self.size = batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Gradients | None]:
        h, w = layer.features, layer.weight
        N = h.shape[0]
        dtype = wide(h.dtype)
        gradients = Gradients.zeros(layer, sum_features=True) if layer.wants_any else None
        if N == 0:
            return torch.full((), float("nan"), dtype=dtype, device=h.device), gradients
        largest = torch.full((), float("-inf"), dtype=dtype, device=h.device)
        total, true, mass = (torch.zeros((), dtype=dtype, device=h.device) for _ in range(3))
        seen = []
        for low, high in chunks(N, self.size):
            z = logits_of(h[low:high], w, layer.bias)
            before, largest = largest, torch.maximum(largest, z.amax())
            shrink = torch.where(before == float("-inf"), 0.0, (before - largest).exp())
            true = true + torch.where(mass == 0, 0.0, (before - largest) * mass)
            z -= largest
            part, weight_of_part = self._true(z, low, high)
            true, mass = true + part, mass + weight_of_part
            terms = z.exp_()
            total = total * shrink + terms.sum()
            seen.append((low, high, largest))
            if gradients is not None:
                if gradients.weight is not None:
                    gradients.weight *= shrink
                if gradients.bias is not None:
                    gradients.bias *= shrink
                gradients.add_rows(layer, low, high, terms)
        if gradients is not None:
            if gradients.features is not None:
                for low, high, then in seen:
                    gradients.features[low:high] *= (then - largest).exp()
            gradients = gradients.times(1 / total)
            self._subtract_true(layer, gradients)
        value = total.log() - torch.tensor(float(N), dtype=dtype, device=h.device).log() - true / N
        return value + largest * (1 - mass / N), gradients

    def backward(self, layer: Layer, kept: Gradients, upstream: Tensor) -> Gradients:
        return kept.times(upstream)

    def _true(self, z: Tensor, low: int, high: int) -> tuple[Tensor, Tensor | float]:
        """sum t z and sum t of some samples; exactly their number where the target is labels."""
        if self.batch.probabilities is not None:
            t = self.batch.probabilities[low:high].to(z.dtype)
            return (t * z).sum(), t.sum()
        found = z.new_zeros(())
        for labels in self.batch.labels:
            share = labels.share[low:high] if isinstance(labels.share, Tensor) and labels.share.dim() else labels.share
            found = found + (share * z.gather(1, labels.index[low:high]).squeeze(1)).sum()
        return found, float(high - low)

    def _subtract_true(self, layer: Layer, gradients: Gradients) -> None:
        h, N = layer.features, layer.features.shape[0]
        if self.batch.probabilities is not None:
            more = Gradients.zeros(layer, sum_features=True)
            for low, high in chunks(N, self.size):
                t = self.batch.probabilities[low:high].to(wide(h.dtype))
                more.add_rows(layer, low, high, t / -N)
            for name in ("features", "weight", "bias"):
                if (total := getattr(gradients, name)) is not None:
                    total += getattr(more, name)
            return
        for labels in self.batch.labels:
            share = torch.as_tensor(labels.share, dtype=wide(h.dtype), device=h.device).expand(N)
            add_entries(gradients, layer, labels.index.squeeze(1), share / -N)


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
        for low, high in chunks(N, self.size):
            z = logits_of(layer.features[low:high], layer.weight, layer.bias)
            for parts, labels in zip(found, self.batch.labels, strict=True):
                index = labels.index[low:high]
                true = z.gather(1, index)
                z.scatter_(1, index, float("-inf"))
                best = z.max(1, keepdim=True)
                tied = (z == best.values).sum(1) > 1
                z.scatter_(1, index, true)
                parts.append((torch.cat([true, best.values], 1), best.indices.squeeze(1), tied))
        kept = []
        value: Tensor | None = None
        for parts, labels in zip(found, self.batch.labels, strict=True):
            pairs, best_class, tied = (torch.cat(column) for column in zip(*parts, strict=True))
            with torch.enable_grad():
                part = self._loss(pairs.requires_grad_(), labels)
                value = part if value is None else value + part
            kept.append((pairs, best_class, tied))
        assert value is not None  # there is a label
        if self.coupled:
            return value.detach(), (value, kept)
        with torch.enable_grad():
            value = self.batch.reduce(value)
        return value.detach(), (value, kept)

    def _loss(self, pairs: Tensor, labels: Any) -> Tensor:
        zero = torch.zeros(pairs.shape[0], dtype=torch.long, device=pairs.device)
        options = self.loss.hyperparameters()
        if self.coupled:
            coupled: Tensor = labels.share * type(self.loss).function(pairs, zero, **options)
            return coupled
        per_sample = type(self.loss).function(pairs, zero, margin=options["margin"], reduction="none")
        if self.batch.class_weight is not None:
            per_sample = per_sample * self.batch.class_weight[labels.index.squeeze(1)]
        return torch.where(labels.valid, labels.share * per_sample, 0.0)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        value, parts = kept
        gradients = Gradients.zeros(layer, sum_features=True)
        slopes = torch.autograd.grad(value, [pairs for pairs, _, _ in parts], upstream, retain_graph=True)
        for (_, best_class, tied), slope, labels in zip(parts, slopes, self.batch.labels, strict=True):
            index = labels.index.squeeze(1)
            add_entries(gradients, layer, index, slope[:, 0])
            alone = torch.where(tied, 0.0, slope[:, 1])
            add_entries(gradients, layer, best_class, alone)
            again = (tied & (slope[:, 1] != 0)).nonzero().squeeze(1)
            for low, high in chunks(again.numel(), self.size):
                self._share_among_ties(gradients, layer, again[low:high], index, slope[:, 1])
        return gradients

    def _share_among_ties(self, gradients: Gradients, layer: Layer, some: Tensor, index: Tensor, slope: Tensor) -> None:
        rows = layer.features[some]
        z = logits_of(rows, layer.weight, layer.bias).scatter_(1, index[some].unsqueeze(1), float("-inf"))
        ties = (z == z.amax(1, keepdim=True)).to(z.dtype)
        dz = ties * (slope[some].unsqueeze(1) / ties.sum(1, keepdim=True))
        if gradients.features is not None:
            gradients.features.index_add_(0, some, input_gradient(dz, layer.weight).to(gradients.features.dtype))
        if gradients.weight is not None:
            gradients.weight.addmm_(dz.T, rows.to(dz.dtype))
        if gradients.bias is not None:
            gradients.bias += dz.sum(0)
