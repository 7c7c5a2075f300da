"""Tiles of classes: every sample, a few classes at a time; the logits are computed again for the gradient.

A loss of the softmax family is a function of a few numbers a sample: the log-sum of its scores and their sum weighted
by the target. Those are computed tile by tile, with a gradient; the loss itself is then ordinary code on (N,) tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer, refuse_second_derivatives
from lastlayer.linear_loss._products import WIDTH, in_full_precision, logits_of, narrow, wide
from lastlayer.linear_loss._shards import Shard
from lastlayer.linear_loss._target import Batch, chunks
from lastlayer.losses import ArcMarginLoss, LargeMarginLoss, Loss
from lastlayer.losses.arc_margin import enlarge_angle
from lastlayer.losses.large_margin import row_norms, shrink
from lastlayer.losses.selection import softplus
from lastlayer.losses.soft_logit_norm import resolve_tau
from lastlayer.losses.target import Labels

MANY = 4096  # classes, of which a tile more is little


@dataclass(frozen=True)
class Tiles:
    """How the classes are cut, and the target's numbers q_k = t_k w_k, with t smoothed, on a tile.

    Labels are gathered and scattered: nothing of the size of a tile is made of them.
    """

    batch: Batch
    size: int
    K: int
    smoothing: float = 0.0
    offset: Tensor | None = None  # (K,), added to the scores
    others: bool = False  # whether the log-sum leaves the label out
    shard: Shard | None = None  # which of the K classes the layer holds; None is all

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(low, high) of every tile, counted from the first class; of a shard, those of its classes.

        Of many classes those past the last whole width are a tile of their own: they would slow down a whole one.
        """
        start, stop = (0, self.K) if self.shard is None else (self.shard.start, self.shard.stop)
        rest = (stop - start) % WIDTH if stop - start > MANY else 0
        for low, high in chunks(stop - start - rest, self.size):
            yield start + low, start + high
        if rest:
            yield stop - rest, stop

    def own(self, low: int, high: int) -> slice:
        """Where classes are in the layer."""
        start = 0 if self.shard is None else self.shard.start
        return slice(low - start, high - start)

    def scores(self, layer: Layer, factor: Tensor | None, low: int, high: int) -> tuple[Tensor, Tensor]:
        """Logits of some classes, and the scores made from them."""
        own = self.own(low, high)
        z = logits_of(layer.features, layer.weight[own], None if layer.bias is None else layer.bias[own])
        s = z if factor is None else z * factor.unsqueeze(1)
        if self.offset is not None:
            s = s + self.offset[low:high]
        return z, s

    def summed(self, s: Tensor, low: int, high: int) -> Tensor:
        """The scores that the log-sum runs over."""
        if not self.others:
            return s
        for index, share in self.batch.entries(low, high, self.K, s.dtype):
            s = s.scatter(1, index, torch.where(share > 0, float("-inf"), s.gather(1, index)))
        return s

    def mass(self, N: int, dtype: torch.dtype, first: int = 0, last: int | None = None) -> Tensor:
        """sum_k q_k of each sample over the classes first..last-1, all K if not said, (N,)."""
        last = self.K if last is None else last
        weight = self.batch.class_weight
        total: Tensor | int = last - first if weight is None else weight[first:last].sum()
        if self.batch.probabilities is not None:
            mass = self.batch.probabilities.new_zeros(N, dtype=dtype)
            for low, high in chunks(last - first, self.size):
                t = self.batch.probabilities_of(first + low, first + high, dtype)
                mass += t.sum(1) if weight is None else t @ weight[first + low : first + high]
            return (1 - self.smoothing) * mass + self.smoothing / self.K * total
        parts = []
        for labels, (_, share) in zip(self.batch.labels, self.batch.entries(first, last, self.K, dtype), strict=True):
            own = share if weight is None else share * weight[labels.index]
            evenly = self.smoothing / self.K * total * (labels.valid.to(dtype) * labels.share)
            parts.append((1 - self.smoothing) * own.squeeze(1) + evenly)
        return sum(parts[1:], parts[0])

    def dot(self, s: Tensor, shift: Tensor, low: int, high: int) -> Tensor:
        """sum_k q_k (s_k - shift) over a tile, with one shift a sample, (N,)."""
        weight = None if self.batch.class_weight is None else self.batch.class_weight[low:high]
        if self.batch.probabilities is not None:
            q = (1 - self.smoothing) * self.batch.probabilities_of(low, high, s.dtype) + self.smoothing / self.K
            terms = q * (s - shift.unsqueeze(1))
            return terms.sum(1) if weight is None else terms @ weight
        found = torch.zeros_like(shift)
        for index, share in self.batch.entries(low, high, self.K, s.dtype):
            own = times_share(share, s.gather(1, index) - shift.unsqueeze(1))
            found = found + (1 - self.smoothing) * (own if weight is None else own * weight[index]).squeeze(1)
        if self.smoothing:
            evenly = (s - shift.unsqueeze(1)).sum(1) if weight is None else (s - shift.unsqueeze(1)) @ weight
            found = found + self.smoothing / self.K * self.batch.mass(s.dtype) * evenly
        return found

    def squared_norms(self, layer: Layer) -> Tensor:
        """sum_k z_k^2 of each sample over the classes of all ranks, (N,), from the logits and without a gradient."""
        total = torch.zeros(layer.features.shape[0], dtype=wide(layer.weight.dtype), device=layer.weight.device)
        for low, high in self:
            total += torch.linalg.vector_norm(self.scores(layer, None, low, high)[0], dim=1).square()
        return total if self.shard is None else self.shard.add(total)

    def add(self, ds: Tensor, coefficient: Tensor, low: int, high: int) -> None:
        """ds += coefficient q over a tile, with one coefficient a sample, (N,)."""
        weight = None if self.batch.class_weight is None else self.batch.class_weight[low:high]
        if self.batch.probabilities is not None:
            q = (1 - self.smoothing) * self.batch.probabilities_of(low, high, ds.dtype) + self.smoothing / self.K
            ds += coefficient.unsqueeze(1) * (q if weight is None else q * weight)
            return
        for index, share in self.batch.entries(low, high, self.K, ds.dtype):
            own = share if weight is None else share * weight[index]
            ds.scatter_add_(1, index, (1 - self.smoothing) * own * coefficient.unsqueeze(1))
        if self.smoothing:
            evenly = self.smoothing / self.K * (self.batch.mass(ds.dtype) * coefficient).unsqueeze(1)
            ds += evenly if weight is None else evenly * weight


def times_share(share: Tensor, values: Tensor) -> Tensor:
    """share values. A label of another tile reads the class at the edge, whose logit may be -inf: 0 times it is 0."""
    return torch.where(share == 0, 0.0, share * values)


@dataclass(frozen=True)
class Statistics:
    """What the softmax losses need of each sample, (N,) each; with s the scores, M their largest and q = t w."""

    log_sum: Tensor  # log sum_k exp(s_k - M)
    dot: Tensor  # sum_k q_k (s_k - M)
    largest: Tensor  # M, without gradient: the losses are such that it cancels
    mass: Tensor  # sum_k q_k


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tiles: Tiles,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factor: Tensor | None,
        slope: Tensor | None,
    ) -> tuple[Tensor, ...]:
        layer = Layer(features, weight, bias)
        largest: Tensor | None = None
        for low, high in tiles:
            z, s = tiles.scores(layer, factor, low, high)
            if largest is None:
                # The target's sum is taken against the first tile's largest score: against 0, a large part common to
                # all scores would take its digits.
                first = s.amax(1)
                first = torch.where(first == float("-inf"), 0.0, first)
                largest = torch.full_like(first, torch.finfo(s.dtype).min)
                total, dot, weighted = (torch.zeros_like(first) for _ in range(3))
            dot += tiles.dot(s, first, low, high)
            s = tiles.summed(s, low, high)
            before, largest = largest, torch.maximum(largest, s.amax(1))
            shrinking = (before - largest).exp()
            total = total * shrinking + s.sub_(largest.unsqueeze(1)).exp_().sum(1)
            if slope is not None:
                weighted = weighted * shrinking + s.mul_(z).sum(1)
        assert largest is not None  # K >= 1
        mass = tiles.mass(features.shape[0], dot.dtype)
        if tiles.shard is None:
            dot += mass * (first - largest)
        else:
            here, largest = largest, tiles.shard.largest(largest.clone())
            total, weighted = total * (here - largest).exp(), weighted * (here - largest).exp()
            dot += tiles.mass(len(dot), dot.dtype, tiles.shard.start, tiles.shard.stop) * (first - largest)
            parts = [total, dot] if slope is None else [total, dot, weighted]
            total, dot, *rest = tiles.shard.add(torch.stack(parts)).unbind()
            weighted = rest[0] if rest else weighted
        log_sum = total.clamp(min=torch.finfo(total.dtype).tiny).log()  # one class has no others
        ctx.tiles = tiles
        mean = true = None
        if factor is not None and slope is not None:
            mean = weighted / total
            true = torch.where(factor > 0, (dot + mass * largest) / factor, 0.0)
        ctx.save_for_backward(features, weight, bias, factor, log_sum, largest, slope, mean, true)
        ctx.mark_non_differentiable(largest, mass)
        return log_sum, dot, largest, mass

    @staticmethod
    def backward(ctx: Any, d_log_sum: Tensor, d_dot: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        features, weight, bias, factor, log_sum, largest, slope, mean, true = ctx.saved_tensors
        needs, tiles = ctx.needs_input_grad, ctx.tiles
        layer = Layer(features, weight, bias, needs[1], needs[2], needs[3])
        with in_full_precision(features):
            gradients = Gradients.by_classes(layer)
            d_factor = d_norms2 = None
            if slope is not None:  # known without a pass over the classes
                d_factor = d_log_sum * mean + d_dot * true
                d_norms2 = (d_factor * slope).unsqueeze(1)
            elif needs[4]:
                d_factor = torch.zeros_like(factor)
            for low, high in tiles:
                z, s = tiles.scores(layer, factor, low, high)
                # Not less their sum: rounded to the digits of a large M, it would take those of p - 1.
                ds = tiles.summed(s, low, high).sub(largest.unsqueeze(1)).sub_(log_sum.unsqueeze(1)).exp_()
                ds.mul_(d_log_sum.unsqueeze(1))
                tiles.add(ds, d_dot, low, high)
                if d_factor is not None and d_norms2 is None:
                    d_factor += (ds * z).sum(1)
                dz = ds if factor is None else ds.mul_(factor.unsqueeze(1))
                if d_norms2 is not None:
                    dz.addcmul_(z, d_norms2, value=2)
                gradients.put_classes(layer, tiles.own(low, high), dz)
            if d_factor is not None and d_norms2 is None and tiles.shard is not None:
                tiles.shard.add(d_factor)
        given = ((gradients.features, features), (gradients.weight, weight), (gradients.bias, bias))
        return None, *(None if g is None else narrow(g, like.dtype) for g, like in given), d_factor, None


def statistics(
    tiles: Tiles,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factor: Tensor | None = None,
    slope: Tensor | None = None,
) -> Statistics:
    """Of scores s = factor z + offset, the numbers that every softmax loss is made of.

    Args:
        tiles: how to cut, and the target.
        features, weight, bias: (N, d), (K, d), (K,).
        factor: one number a sample, (N,), with a gradient; None is 1.
        slope: d factor / d ||z||^2, (N,), where the factor is a function of the logits' norm, whose part of the
            gradient is then put in here; without offset and shares.
    """
    return Statistics(*_Statistics.apply(tiles, features, weight, bias, factor, slope))  # type: ignore[no-untyped-call]


def cross_entropy(found: Statistics) -> Tensor:
    """sum_k q_k (log sum_j exp(s_j) - s_k), (N,)."""
    return found.mass * found.log_sum - found.dot


def self_norm(found: Statistics, alpha: float) -> Tensor:
    """Cross-entropy plus alpha times the square of the log-partition."""
    return cross_entropy(found) + found.mass * alpha * (found.log_sum + found.largest).square()


def batch_cross_entropy(found: Statistics) -> Tensor:
    """The batch's log-partition from the rows' own, less the mean true score and log m: a scalar."""
    m = found.largest.shape[0]
    top = found.largest.max()
    below = found.largest - top
    partition = (found.log_sum + below).logsumexp(0)
    true = (found.dot + found.mass * below).sum()
    return partition - torch.full_like(top, m).log() - true / m + top * (1 - found.mass.sum() / m)


def against_others(
    module: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Focal, soft-margin, arc-margin or large-margin of labels, (N,).

    These see the false logits through their log-sum alone. So the loss's own function is called on two logits a sample,
    the true one and that log-sum, or what it makes of the true one is set against it. The log-sum is taken over the
    false logits, not as a difference, which would lose the digits of a confident sample. A mixed pair has two sets of
    false logits and costs twice.
    """
    options = module.hyperparameters()
    dtype = wide(features.dtype)
    scale = options["scale"] if isinstance(module, ArcMarginLoss) else 1.0
    if isinstance(module, LargeMarginLoss):  # multiplies in float32, as its function does
        features, weight = features.to(dtype), weight.to(dtype)
    factor = None
    if isinstance(module, ArcMarginLoss):
        factor = features.new_ones(len(features), dtype=dtype) * scale
    zero = torch.zeros(len(features), dtype=torch.long, device=features.device)
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        label = Labels(labels.index.squeeze(1), None)  # alone, whole and unweighted
        tiles = Tiles(replace(batch, labels=(label,), class_weight=None), size, weight.shape[0], others=True)
        found = statistics(tiles, features, weight, bias, factor)
        if isinstance(module, LargeMarginLoss):
            norms = row_norms(features) * row_norms(weight[index])
            margined = shrink(found.dot + found.largest, norms, options["margin"], options["lam"])
            part = softplus(found.log_sum - (margined - found.largest))
        elif isinstance(module, ArcMarginLoss):
            margined = scale * enlarge_angle((found.dot + found.largest) / scale, options["margin"])
            part = softplus(found.log_sum - (margined - found.largest))
        else:
            pair = torch.stack([found.dot, found.log_sum], 1)  # less the largest, of which differences know nothing
            mine = {name: value for name, value in options.items() if name not in ("weight", "ignore_index")}
            part = type(module).function(pair, zero, **{**mine, "reduction": "none"})
        value = value + batch.counted_part(labels, part)
    return torch.as_tensor(value)


def soft_factor(norms2: Tensor, gamma: float, tau: float | None, K: int) -> Tensor:
    """1 / (tau ||z||^gamma) of SLN from ||z||^2, (N,); 0 at a zero row, with gradient 0."""
    tau = resolve_tau(tau, K, gamma)
    nonzero = norms2 > 0
    return torch.where(nonzero, torch.where(nonzero, norms2, 1.0).pow(-gamma / 2) / tau, 0.0)
