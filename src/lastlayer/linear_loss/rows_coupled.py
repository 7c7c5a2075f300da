"""Rows whose gradient is more than each row's own: one softmax over the batch, and hinges on two logits per row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, narrow, wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.batch import Batch, chunks
from lastlayer.linear_loss.layer import Gradients, Layer, Once, RowGradients
from lastlayer.linear_loss.picked import ClassSums
from lastlayer.linear_loss.plan import eager_rows
from lastlayer.linear_loss.products import add_product, input_gradient, logits_of
from lastlayer.losses import Loss
from lastlayer.losses.selection import AtLabel
from lastlayer.losses.target import Labels

Entries = tuple[Tensor, Tensor, Tensor]  # samples, classes and dz, (m,) each
FEW_TIES = 8  # per row, up to which they are gathered and scattered one by one


class BatchSoftmax:
    """Batch cross-entropy: one softmax over all logits of the batch, a chunk of rows at a time.

    The exponentials are taken against a reference, the largest logit of the first chunk. If a later chunk has a logit
    that is larger by more than `room`, that is the new reference, and the sums so far shrink by the difference.
    """

    def __init__(self, batch: Batch, rows: int) -> None:
        self.batch, self.size = batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Once[tuple[RowGradients, Tensor]] | None]:
        value, found = self._stream(layer)
        return value, None if found is None else Once(found)

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
        room = 0.0 if h.dtype is torch.float16 else 40.0  # e^40 and its sums are within float32 and bfloat16
        reference: Tensor | None = None
        total, true, mass = (torch.zeros((), dtype=dtype, device=h.device) for _ in range(3))
        seen = []
        buffer = layer.room(min(self.size, N))
        step = kernels.compiled("batch cross-entropy", exponentials) if kernels.pays(h) else None
        for low, high in chunks(N, self.size):
            z = layer.put_logits(buffer, low, high)
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
                shrink = (before - reference).exp()  # kernels leave sums times 1 alone, so nothing has to wait for it
                total, true = total * shrink, true + (before - reference) * mass
                if gradients is not None:
                    if gradients.weight is not None:
                        gradients.weight.shrink(shrink)
                    if gradients.bias is not None:
                        gradients.bias *= shrink
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

    def backward(self, layer: Layer, kept: Once[tuple[RowGradients, Tensor]], upstream: Tensor) -> Gradients:
        found = kept.take() or self._stream(layer)[1]  # a graph that is kept asks again
        assert found is not None  # a gradient is wanted
        gradients, total = found
        return gradients.finish(upstream / total)

    def _true(self, z: Tensor, reference: Tensor, low: int, high: int) -> tuple[Tensor, Tensor | float]:
        """sum t (z - reference) and sum t of some samples. With labels the second is exactly their number."""
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
        """Take t / N from the gradient of the logits, which is still to be divided by the total."""
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
    """exp(z - reference) in the place of z, and their sum in float32 or better."""
    if z.dtype is reference.dtype and not torch.compiler.is_compiling():
        return z, z.sub_(reference).exp_().sum()
    terms = (at_least_float32(z) - reference).exp()
    z.copy_(narrow(terms, z.dtype))
    return z, terms.sum()


class Hinges:
    """Hinge losses of labels: in each row two logits have a gradient, the true one and the largest false one.

    A large layer then needs no products for the gradient. The loss's own function is called on the two, (N, 2), with
    label 0. False logits that tie for the largest share its gradient. Samples with such ties, of which half precision
    has many, are computed again.
    """

    def __init__(self, loss: Loss, batch: Batch, rows: int) -> None:
        self.loss, self.batch, self.size = loss, batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        N = layer.features.shape[0]
        found: list[list[tuple[Tensor, ...]]] = [[] for _ in self.batch.labels]
        found_kernels = kernels.row_kernels(layer.features, len(layer.weight))
        size = self.size if found_kernels is not None else self._eager_size(layer)
        buffer = layer.room(min(size, N))
        for low, high in chunks(N, size):
            z = layer.put_logits(buffer, low, high)
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
        if self.loss.couples_batch:
            return value.detach(), (value, kept)
        with torch.enable_grad():
            value = self.batch.reduce(value)
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
                add_rows(dense, layer, some, dz)
        return add_entries(dense, layer, entries)

    def _eager_size(self, layer: Layer) -> int:
        """Samples in a chunk that no kernel takes."""
        return eager_rows(self.size, len(layer.weight)) if kernels.pays(layer.features) else self.size

    def _shared_among_ties(self, layer: Layer, some: Tensor, index: Tensor, slope: Tensor) -> Tensor:
        """The gradient of all logits of some samples whose largest false ones tie."""
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
    """Gradients of the layer for single entries of the logits' gradient: a gather and a scatter."""
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
