"""Tiles of classes: every sample, a few classes at a time. The logits are computed again for the gradient.

A loss of the softmax family is a function of a few numbers per sample: the log-sum of its scores, and the sum of its
scores weighted by the target. These numbers are computed tile by tile, with a gradient. The loss itself is then
ordinary code on (N,) tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import wide
from lastlayer.linear_loss.batch import Batch, Shard, Tiles, check_numbers, times_share, wanted_numbers
from lastlayer.linear_loss.layer import Gradients, Layer, fused
from lastlayer.linear_loss.picked import SquaredError, SquaredNorms, drawn_losses
from lastlayer.linear_loss.plan import called
from lastlayer.linear_loss.rows_coupled import BatchSoftmax
from lastlayer.losses import Loss
from lastlayer.losses.forms import BinaryForm, DrawnForm, OthersForm, SoftmaxForm, SquaresForm, Sums
from lastlayer.losses.selection import softplus
from lastlayer.losses.target import Labels, read_class_vector


def by_classes(
    loss: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None, shard: Shard | None
) -> Tensor:
    """The loss, a tile of classes at a time. With a shard, only the classes that this rank holds."""
    form, layer = loss.class_form, (features, weight, bias)
    options: dict[str, Any] = loss.hyperparameters()
    if form is None or (isinstance(form, DrawnForm) and (options["samples"] is None or not batch.labels)):
        raise ValueError(f"{called(loss)} has no form by tiles of classes: path 'rows' takes it, as does 'dense'")
    if form.labels_alone and not batch.labels:
        raise ValueError(f"{called(loss)} of class probabilities has no form by tiles of classes: path 'rows' takes it")
    wanted_numbers(loss, batch, "classes", form.learnable)
    K = weight.shape[0] if shard is None else shard.K
    if not loss.takes_layer and not isinstance(form, DrawnForm):  # these check their numbers when they use them
        check_numbers(loss, features, K)
    tiles = Tiles(batch, size, K, options.get("label_smoothing", 0.0), shard=shard)
    match form:
        case DrawnForm():
            return batch.reduce_counted(drawn_losses(form, loss, batch, *layer))
        case OthersForm():
            return batch.reduce_counted(_against_others(form, loss, batch, size, *layer))
        case SquaresForm():
            return batch.reduce_counted(fused(SquaredError(batch, size, options["kappa"], options["beta"]), *layer))
        case BinaryForm():
            return batch.reduce_counted(_binary(tiles, options, *layer))
        case SoftmaxForm():
            if loss.couples_batch and len(features) == 0:
                return fused(BatchSoftmax(batch, 1), *layer)
            value = form.value(_softmax(form, tiles, options, *layer), options)
            return value if loss.couples_batch else batch.reduce_counted(value)
    raise TypeError(f"linear_loss does not know the form {type(form).__name__}")


def _softmax(
    form: SoftmaxForm, tiles: Tiles, options: dict[str, Any], features: Tensor, weight: Tensor, bias: Tensor | None
) -> Sums:
    """The sums from which a loss of the softmax family follows."""
    (N, d), K, dtype = features.shape, tiles.K, wide(features.dtype)
    factor = slope = None
    if form.norm is not None:
        gamma, tau = form.norm(options, K)
        by_gram = 2 * d * (N + K) <= 3 * N * K  # else W^T W and its gradient cost more than a pass over the logits
        if by_gram:
            norms2 = fused(SquaredNorms(tiles.size), features, weight, bias)
            norms2 = norms2 if tiles.shard is None else tiles.shard.total(norms2)
        else:
            with torch.no_grad():
                norms2 = tiles.squared_norms(Layer(features, weight, bias))
        nonzero = norms2 > 0
        factor = torch.where(nonzero, torch.where(nonzero, norms2, 1.0).pow(-gamma / 2) / tau, 0.0)
        if not by_gram:
            slope = (-gamma / 2 * factor / torch.where(nonzero, norms2, 1.0)).detach()
    elif form.temperature is not None:
        temperature = options[form.temperature]
        if isinstance(temperature, Tensor) or temperature != 1.0:
            factor = torch.ones(N, dtype=dtype, device=features.device) / temperature
    if form.offset is not None:
        tiles = replace(tiles, offset=form.offset(options, features.new_empty(0, K, dtype=dtype)))
    return sums_over_classes(tiles, features, weight, bias, factor, slope)


def sums_over_classes(
    tiles: Tiles,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factor: Tensor | None = None,
    slope: Tensor | None = None,
) -> Sums:
    """The sums of the scores s = factor z + offset from which every softmax loss follows. The factor is (N,), or None.

    `slope` is d factor / d ||z||^2, (N,), if the factor is a function of the logits' norm. The gradient then contains
    its part too. Not together with an offset or shares.
    """
    more = () if factor is None else (factor,)
    algorithm = SoftmaxSums(tiles, None if factor is None else factor.detach(), slope)
    log_sum, dot, largest, mass = fused(algorithm, features, weight, bias, *more).unbind()
    return Sums(log_sum, dot, largest.detach(), mass.detach())


class SoftmaxSums:
    """The sums as one tensor (4, N)."""

    def __init__(self, tiles: Tiles, factor: Tensor | None, slope: Tensor | None) -> None:
        self.tiles, self.factor, self.slope = tiles, factor, slope

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        tiles, factor, slope, shard = self.tiles, self.factor, self.slope, self.tiles.shard
        largest: Tensor | None = None
        for low, high in tiles:
            z, s = tiles.scores(layer, factor, low, high)
            if largest is None:
                # The target's sum is taken against the first tile's largest score. Against 0 it would lose digits if
                # all scores have a large part in common.
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
        mass = tiles.mass(len(dot), dot.dtype)
        if shard is None:
            dot += mass * (first - largest)
        else:
            here, largest = largest, shard.largest(largest.clone())
            total, weighted = total * (here - largest).exp(), weighted * (here - largest).exp()
            dot += tiles.mass(len(dot), dot.dtype, shard.start, shard.stop) * (first - largest)
            parts = [total, dot] if slope is None else [total, dot, weighted]
            total, dot, *rest = shard.add(torch.stack(parts)).unbind()
            weighted = rest[0] if rest else weighted
        log_sum = total.clamp(min=torch.finfo(total.dtype).tiny).log()  # one class has no others
        mean = true = None
        if factor is not None and slope is not None:
            mean = weighted / total
            true = torch.where(factor > 0, (dot + mass * largest) / factor, 0.0)
        return torch.stack([log_sum, dot, largest, mass]), (log_sum, largest, mean, true)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        tiles, factor, slope = self.tiles, self.factor, self.slope
        log_sum, largest, mean, true = kept
        d_log_sum, d_dot, *_ = upstream
        gradients = Gradients.by_classes(layer)
        d_factor = d_norms2 = None
        if slope is not None:  # known without a pass over the classes
            d_factor = d_log_sum * mean + d_dot * true
            d_norms2 = (d_factor * slope).unsqueeze(1)
        elif factor is not None and layer.wants_more:
            d_factor = torch.zeros_like(factor)
        for low, high in tiles:
            z, s = tiles.scores(layer, factor, low, high)
            # Not s - (largest + log_sum): if largest is large, that sum is rounded, and p - 1 loses its digits.
            ds = tiles.summed(s, low, high).sub(largest.unsqueeze(1)).sub_(log_sum.unsqueeze(1)).exp_()
            ds.mul_(d_log_sum.unsqueeze(1))
            tiles.add(ds, d_dot, low, high)
            if d_factor is not None and d_norms2 is None:
                d_factor += (ds * z).sum(1)
            dz = ds if factor is None else ds.mul_(factor.unsqueeze(1))
            if d_norms2 is not None:
                dz.addcmul_(z, d_norms2, value=2)
            gradients.put_classes(layer, tiles.own(low, high), dz)
        if d_factor is not None:
            if d_norms2 is None and tiles.shard is not None:
                tiles.shard.add(d_factor)
            gradients.more = [d_factor]
        return gradients


def _against_others(
    form: OthersForm, loss: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """A loss that depends on the false logits through their log-sum alone, (N,). A mixed pair costs twice as much.

    The log-sum is taken over the false logits. As a difference it would lose digits for a confident sample.
    """
    options = loss.hyperparameters()
    if loss.takes_layer:  # multiplies in float32, as its function does
        features, weight = features.to(wide(features.dtype)), weight.to(wide(weight.dtype))
    factor = None
    if form.scale is not None:
        factor = features.new_ones(len(features), dtype=wide(features.dtype)) * options[form.scale]
    zero = torch.zeros(len(features), dtype=torch.long, device=features.device)
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        label = Labels(index, None)  # alone, whole and unweighted
        tiles = Tiles(replace(batch, labels=(label,), class_weight=None), size, weight.shape[0], others=True)
        found = sums_over_classes(tiles, features, weight, bias, factor)
        if form.replaced is not None:
            norms = torch.linalg.vector_norm(features, dim=1) * torch.linalg.vector_norm(weight[index], dim=1)
            true = form.replaced(found.dot + found.largest, norms if loss.takes_layer else None, options)
            part = softplus(found.log_sum - (true - found.largest))
        else:
            pair = torch.stack([found.dot, found.log_sum], 1)  # minus the largest, which does not change the loss
            mine = {name: value for name, value in options.items() if name not in ("weight", "ignore_index")}
            part = type(loss).function(pair, zero, **{**mine, "reduction": "none"})
        value = value + batch.counted_part(labels, part)
    return torch.as_tensor(value)


def _binary(tiles: Tiles, options: dict[str, Any], features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Binary cross-entropy, (N,)."""
    dtype, pos_weight = wide(features.dtype), options["pos_weight"]
    if pos_weight is not None:
        pos_weight = read_class_vector(pos_weight, "pos_weight", features.new_empty(0, tiles.K, dtype=dtype))
    per_sample = fused(BinarySums(tiles, pos_weight), features, weight, bias)
    per_sample = per_sample if tiles.shard is None else tiles.shard.total(per_sample)
    return per_sample if tiles.batch.class_weight is None else per_sample * tiles.mass(len(features), dtype)


class BinarySums:
    """sum_j [a_j t_j softplus(-z_j) + (1 - t_j) softplus(z_j)] of each sample over the classes of this rank, (N,)."""

    def __init__(self, tiles: Tiles, pos_weight: Tensor | None) -> None:
        self.tiles, self.pos_weight = tiles, pos_weight

    def forward(self, layer: Layer) -> tuple[Tensor, None]:
        total = torch.zeros(layer.features.shape[0], dtype=wide(layer.weight.dtype), device=layer.weight.device)
        for low, high in self.tiles:
            z, _ = self.tiles.scores(layer, None, low, high)
            total += self._combine(low, high, softplus(z), lambda at: softplus(-at), z).sum(1)
        return total, None

    def backward(self, layer: Layer, kept: None, upstream: Tensor) -> Gradients:
        gradients = Gradients.by_classes(layer)
        for low, high in self.tiles:
            z, _ = self.tiles.scores(layer, None, low, high)
            slope = self._combine(low, high, torch.sigmoid(z), lambda at: -torch.sigmoid(-at), z)
            gradients.put_classes(layer, self.tiles.own(low, high), slope.mul_(upstream.unsqueeze(1)))
        return gradients

    def _combine(
        self, low: int, high: int, negative: Tensor, positive: Callable[[Tensor], Tensor], z: Tensor
    ) -> Tensor:
        """a_j t_j positive(z_j) + (1 - t_j) negative_j over a tile, (N, high - low). Overwrites the negative part."""
        batch, smoothing, K = self.tiles.batch, self.tiles.smoothing, self.tiles.K
        factor = None if self.pos_weight is None else self.pos_weight[low:high].to(z.dtype)
        if batch.probabilities is not None:
            t = self.tiles.probabilities(low, high, z.dtype)
            return t * (positive(z) if factor is None else factor * positive(z)) + (1 - t) * negative
        mass = batch.mass(z.dtype).unsqueeze(1)
        own = [
            (index, (1 - smoothing) * share, negative.gather(1, index), positive(z.gather(1, index)))
            for index, share in batch.entries(low, high, K, z.dtype)
        ]
        terms = negative.mul_((1 - smoothing / K) * mass)
        if smoothing:
            terms += smoothing / K * mass * (positive(z) if factor is None else factor * positive(z))
        # In this order: the false term leaves exactly before the true one, which may be far smaller, is added.
        for index, share, false, _ in own:
            terms.scatter_add_(1, index, -times_share(share, false))
        for index, share, _, true in own:
            terms.scatter_add_(1, index, times_share(share, true if factor is None else true * factor[index]))
        return terms
