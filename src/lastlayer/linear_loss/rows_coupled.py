"""Losses whose rows need more than a loss per row: one softmax over the batch, and hinges on two logits per row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.batch import Batch
from lastlayer.linear_loss.layer import Gradients, Layer, Once, RowGradients
from lastlayer.linear_loss.picked import ClassSums
from lastlayer.linear_loss.plan import eager_rows
from lastlayer.linear_loss.products import chunks, input_gradient, logits_of, put_product
from lastlayer.losses import Loss
from lastlayer.losses.selection import AtLabel
from lastlayer.losses.target import Labels

Entries = tuple[Tensor, Tensor, Tensor]  # samples, classes and dz, (m,) each
FEW_TIES = 8  # ties per row up to which they are gathered and scattered one by one


class BatchSoftmax:
    """Batch cross-entropy: one softmax over all logits of the batch, a chunk of rows at a time.

    The exponentials are taken against a reference, which is the largest logit of the first chunk. If a later chunk has
    a logit that is larger by more than `room`, that logit is the new reference, and the sums so far shrink accordingly.
    """

    def __init__(self, batch: Batch, rows: int) -> None:
        self.batch, self.size = batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Once]:
        value, found = self._stream(layer)
        return value, Once(found)

    def backward(self, layer: Layer, kept: Once, upstream: Tensor) -> Gradients:
        found = kept.take() or self._stream(layer)[1]  # again, if this is a second pass through the same graph
        assert found is not None  # a gradient is wanted
        gradients, total = found
        return gradients.finish(upstream / total)

    def _stream(self, layer: Layer) -> tuple[Tensor, tuple[RowGradients, Tensor] | None]:
        h = layer.features
        N, dtype = h.shape[0], wide(h.dtype)
        fast = kernels.row_kernels(h, len(layer.weight))
        gradients = RowGradients(layer, wide_features=True) if layer.wants_any else None
        if N == 0:
            if gradients is not None:
                gradients.add(layer, 0, 0, h.new_zeros(0, layer.weight.shape[0]))
            nothing = torch.ones((), dtype=dtype, device=h.device)
            return nothing * float("nan"), None if gradients is None else (gradients, nothing)
        room = 0.0 if h.dtype is torch.float16 else 40.0  # float32 and bfloat16 hold e^40 and its sums
        reference: Tensor | None = None
        total, true, mass = (torch.zeros((), dtype=dtype, device=h.device) for _ in range(3))
        seen = []
        step = kernels.compiled("batch cross-entropy", exponentials) if kernels.pays(h) else None
        for low, high, z in layer.logits_in_chunks(self.size):
            if fast is not None:
                nowhere = torch.full((high - low,), -1, device=h.device)
                largest, sums = fast.sums(z, nowhere)
                top = largest.max()
            else:
                top = z.amax().to(dtype)
            if reference is None:
                reference = top
            elif fast is not None or bool(top - reference > room):
                before, reference = reference, torch.where(top - reference > room, top, reference)
                shrink = (before - reference).exp()  # kernels skip a factor of 1, so the CPU need not read it
                total, true = total * shrink, true + (before - reference) * mass
                if gradients is not None:
                    gradients.shrink(shrink)
            part, share = self._true(z, reference, low, high)
            true, mass = true + part, mass + share
            seen.append((low, high, reference))
            if fast is not None:
                fast.put_exponentials(z, reference)
                total = total + (sums * (largest - reference).exp()).sum()
                if gradients is not None:
                    gradients.add(layer, low, high, z)
                continue
            try:
                terms, partial = (step or exponentials)(z, reference)
            except kernels.CompilationError:
                step = None
                terms, partial = exponentials(layer.put_logits(z, low, high), reference)
            total = total + partial
            if gradients is not None:
                gradients.add(layer, low, high, terms)
        assert reference is not None  # N >= 1
        value = total.log() - math.log(N) - true / N
        value = value + reference * (1 - mass / N)
        if gradients is None:
            return value, None
        if gradients.features is not None:
            for low, high, then in seen:
                gradients.features[low:high] *= (then - reference).exp()
        self._subtract_true(layer, gradients, total)
        return value, (gradients, total)

    def _true(self, z: Tensor, reference: Tensor, low: int, high: int) -> tuple[Tensor, Tensor | float]:
        """sum t (z - reference) and sum t of the samples low..high-1. With labels the second is exactly their count."""
        if self.batch.probabilities is not None:
            t = self.batch.probabilities[low:high].to(reference.dtype)
            return (t * (at_least_float32(z) - reference)).sum(), t.sum()
        found = torch.zeros_like(reference)
        for labels in self.batch.labels:
            share = labels.share[low:high] if isinstance(labels.share, Tensor) and labels.share.dim() else labels.share
            own = at_least_float32(z.gather(1, labels.index[low:high]).squeeze(1))
            found = found + (share * (own - reference)).sum()
        return found, float(high - low)

    def _subtract_true(self, layer: Layer, gradients: RowGradients, total: Tensor) -> None:
        """Subtract t / N from the gradient of the logits, which will be divided by the total."""
        h, N = layer.features, layer.features.shape[0]
        if self.batch.probabilities is not None:
            for low, high in chunks(N, self.size):
                t = self.batch.probabilities[low:high].to(wide(h.dtype)) * (total / -N)
                before = None if gradients.features is None else gradients.features[low:high].clone()
                gradients.add(layer, low, high, t)
                if gradients.features is not None and before is not None:
                    gradients.features[low:high] += before
            return
        for labels in self.batch.labels:
            dz = (labels.share * (total / -N)).to(wide(h.dtype)).expand(N)
            index = labels.index.squeeze(1)
            if gradients.features is not None:
                gradients.features += dz.unsqueeze(1) * layer.weight[index]
            if gradients.weight is not None:
                gradients.weight.add_at(index, dz.unsqueeze(1) * h)
            if gradients.bias is not None:
                gradients.bias.index_add_(0, index, dz)


def exponentials(z: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """exp(z - reference) in the memory of z, and their sum in float32 or better."""
    if z.dtype is reference.dtype and not torch.compiler.is_compiling():
        return z, z.sub_(reference).exp_().sum()
    terms = (at_least_float32(z) - reference).exp()
    z.copy_(terms)
    return z, terms.sum()


class Hinges:
    """Hinge losses of labels: in each row two logits have a gradient, the true one and the largest false one.

    So a large layer needs no products for the gradient. The loss's own function is called on the two logits, (N, 2),
    with label 0. False logits that tie for the largest share its gradient, so samples with ties are computed again.
    """

    def __init__(self, loss: Loss, batch: Batch, rows: int) -> None:
        self.loss, self.batch, self.size = loss, batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        found: list[list[tuple[Tensor, ...]]] = [[] for _ in self.batch.labels]
        fast = kernels.row_kernels(layer.features, len(layer.weight))
        for low, high, z in layer.logits_in_chunks(self.size if fast is not None else self._eager_size(layer)):
            for parts, labels in zip(found, self.batch.labels, strict=True):
                index = labels.index[low:high]
                values, classes, ties = fast.best(z, index.squeeze(1)) if fast is not None else best_false(z, index)
                true = at_least_float32(z.gather(1, index))
                parts.append((torch.cat([true, values.unsqueeze(1)], 1), classes, ties))
        kept = [tuple(torch.cat(column) for column in zip(*parts, strict=True)) for parts in found]
        with torch.enable_grad():
            each = [
                self._loss(pairs.requires_grad_(), labels)
                for (pairs, _, _), labels in zip(kept, self.batch.labels, strict=True)
            ]
            value = sum(each[1:], each[0])
            value = value if self.loss.couples_batch else self.batch.reduce(value)
        return value.detach(), (value, kept)

    def _loss(self, pairs: Tensor, labels: Labels) -> Tensor:
        zero = torch.zeros(pairs.shape[0], dtype=torch.long, device=pairs.device)
        options = self.loss.hyperparameters()
        if self.loss.couples_batch:
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
                if dense.features is not None:
                    dense.features.index_add_(0, some, input_gradient(dz, layer.weight).to(dense.features.dtype))
                if dense.weight is not None:
                    put_product(dense.weight, dz, layer.features[some], add=True)
                if dense.bias is not None:
                    dense.bias += dz.sum(0)
        return add_entries(dense, layer, entries)

    def _eager_size(self, layer: Layer) -> int:
        """Samples in a chunk that is not computed by kernels."""
        return eager_rows(self.size, len(layer.weight)) if kernels.pays(layer.features) else self.size

    def _shared_among_ties(self, layer: Layer, some: Tensor, index: Tensor, slope: Tensor) -> Tensor:
        """The gradient of all logits of some samples whose largest false logits tie."""
        z = logits_of(layer.features[some], layer.weight, layer.bias)
        z = z.scatter_(1, index[some].unsqueeze(1), float("-inf"))
        ties = (z == z.amax(1, keepdim=True)).to(z.dtype)
        return ties.mul_((slope[some] / ties.sum(1)).unsqueeze(1))


def add_entries(dense: Gradients | None, layer: Layer, entries: list[Entries]) -> Gradients:
    """The gradients of the layer from single entries of the logits' gradient, by a gather and a scatter."""
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
    """The largest logit of a class other than the label, one such class, and how many there are, (n,) each."""
    false = AtLabel(index).fill(at_least_float32(z), float("-inf"))
    values, classes = false.max(1)
    return values, classes, (false == values.unsqueeze(1)).sum(1)
