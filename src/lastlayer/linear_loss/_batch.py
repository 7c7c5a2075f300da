"""Batch cross-entropy by chunks of rows: one softmax over all logits of the batch, streaming."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.linear_loss._compiled import CompilationError, compiled, pays, row_kernels
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._products import empty_rows, narrow, wide
from lastlayer.linear_loss._rows import Once, logits_into
from lastlayer.linear_loss._sums import RowGradients
from lastlayer.linear_loss._target import Batch, chunks


class BatchCrossEntropy:
    """One softmax over all logits of the batch, streaming.

    The exponentials are taken against the largest logit of the first chunk. When a chunk brings one that is larger by
    more than `room`, it is the new reference, and the sums so far shrink by the difference.
    """

    def __init__(self, batch: Batch, rows: int) -> None:
        self.batch, self.size = batch, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Once[tuple[RowGradients, Tensor]] | None]:
        value, found = self._stream(layer)
        return value, None if found is None else Once(found)

    def _stream(self, layer: Layer) -> tuple[Tensor, tuple[RowGradients, Tensor] | None]:
        h = layer.features
        N, dtype = h.shape[0], wide(h.dtype)
        fast = row_kernels(h, len(layer.weight))
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
        buffer = empty_rows(min(self.size, N), layer.weight)
        step = compiled("batch cross-entropy", exponentials) if pays(h) else None
        for low, high in chunks(N, self.size):
            z = logits_into(buffer[: high - low], layer, low, high)
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
                shrink = (before - reference).exp()  # kernels pass over sums times 1: nothing waits to know of it
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
            except CompilationError:
                step = None
                terms, partial = exponentials(logits_into(z, layer, low, high), reference)
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
        """sum t (z - reference) and sum t of some samples; exactly their number where the target is labels."""
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
        """Take t / N from the gradient of the logits, which is yet to be divided by the total."""
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
