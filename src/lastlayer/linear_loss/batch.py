"""The target of one call: checked, cut by rows or by tiles of classes, and what a mean over the batch divides by."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import wide
from lastlayer.linear_loss.layer import Layer
from lastlayer.linear_loss.products import WIDTH, logits_of
from lastlayer.linear_loss.sharded import Shard
from lastlayer.losses import Loss, Target
from lastlayer.losses.selection import normaliser
from lastlayer.losses.target import Labels, is_probabilities, read

MANY = 4096  # classes, of which a tile more is little


@dataclass(frozen=True)
class Batch:
    """The target of one call, checked against logits that need not exist."""

    target: Target
    labels: tuple[Labels, ...]  # empty for class probabilities
    probabilities: Tensor | None  # (N, K)
    class_weight: Tensor | None  # (K,)
    reduction: str
    divisor: Tensor | None  # of the mean; None if nothing is divided
    counted: Tensor | None  # whether any sample counts at all

    @property
    def has_one_share(self) -> bool:
        """Whether the target is labels, and each label holds the same part of all samples."""
        return bool(self.labels) and not any(isinstance(x.share, Tensor) and x.share.dim() for x in self.labels)

    def reduce(self, per_sample: Tensor) -> Tensor:
        """The reduction, with torch's divisor: over the whole batch, whatever it was cut into."""
        if self.reduction == "none":
            return per_sample
        total = per_sample.sum()
        return total if self.divisor is None else total / self.divisor

    def reduce_counted(self, per_sample: Tensor) -> Tensor:
        """The reduction; a wholly ignored sample gets no gradient, even where the divisor is 0."""
        if self.labels:
            counts = torch.stack([labels.valid for labels in self.labels]).any(0)
            per_sample = torch.where(counts, per_sample, 0.0)
        return self.reduce(per_sample)

    def counted_part(self, labels: Labels, part: Tensor) -> Tensor:
        """Losses (N,) of one label of each sample, times its class weight and its share; 0 where it is ignored."""
        if self.class_weight is not None:
            part = part * self.class_weight[labels.index.squeeze(1)]
        return torch.where(labels.valid, labels.share * part, 0.0)

    def factor(self) -> Tensor | float:
        """What the gradient of the sum is multiplied by; 0 rather than infinite where no sample counts."""
        if self.divisor is None or self.counted is None:
            return 1.0
        return torch.where(self.counted, 1 / self.divisor, 0.0)

    def mass(self, dtype: torch.dtype) -> Tensor:
        """How much of each sample's labels counts, (N,): 1 but for ignored ones."""
        shares = [labels.valid.to(dtype) * labels.share for labels in self.labels]
        return sum(shares[1:], shares[0])

    def entries(self, low: int, high: int, K: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """For each label of a sample, its place in the tile and its share, (N, 1) each; share 0 if not in the tile.

        A label that is no class stays out of range in the first and in the last tile, so that the device raises.
        """
        for labels in self.labels:
            index, share = labels.index - low, (labels.valid.to(dtype) * labels.share).unsqueeze(1)
            if low > 0:
                share = share * (index >= 0)
                index = index.clamp(min=0)
            if high < K:
                share = share * (labels.index < high)
                index = index.clamp(max=high - low - 1)
            yield index, share

    def probabilities_of(self, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """The class probabilities of a tile, (N, high - low)."""
        assert self.probabilities is not None
        return self.probabilities[:, low:high].to(dtype)


def chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(low, high) of every chunk. Of nothing there is one empty chunk, so that the loss still sees its arguments."""
    for low in range(0, max(count, 1), size):
        yield low, min(low + size, count)


def rows_of(target: Target, low: int, high: int) -> Target:
    """The target of some samples."""
    if not isinstance(target, tuple):
        return target[low:high]
    first, second, lam = target
    return first[low:high], second[low:high], lam[low:high] if isinstance(lam, Tensor) and lam.dim() else lam


def read_batch(loss: Loss, target: Target, N: int, K: int, features: Tensor, dtype: torch.dtype) -> Batch:
    """Check a target as the loss itself would, against logits (N, K) that take up no memory."""
    logits = torch.zeros((), dtype=dtype, device=features.device).expand(N, K)
    options: dict[str, Any] = loss.hyperparameters()
    class_weight = options.get("class_weight") if "class_weight" in options else options.get("weight")
    reduction = options.get("reduction", "sum")
    ignore_index = options.get("ignore_index")
    as_probabilities = not isinstance(target, tuple) and is_probabilities(target, logits, "logits")
    # Only the labels are read here: class probabilities in half precision would be copied, all N x K of them.
    stand_in = torch.zeros(N, dtype=torch.long, device=features.device) if as_probabilities else target
    problem = read(logits, stand_in, weight=class_weight, ignore_index=ignore_index, reduction=reduction)
    if as_probabilities and ignore_index is not None and ignore_index >= 0:
        read(logits, target, ignore_index=ignore_index)  # raises
    divisor = counted = None
    if as_probabilities:
        divisor, counted = logits.new_full((), N), logits.new_full((), N > 0, dtype=torch.bool)
    else:
        divisor = torch.as_tensor(normaliser(problem), device=features.device)
        counted = torch.stack([labels.valid.any() for labels in problem.labels]).any()
    if reduction != "mean":
        divisor = None
    return Batch(
        target,
        () if as_probabilities else problem.labels,
        target if as_probabilities else None,  # type: ignore[arg-type]
        problem.weight,
        reduction,
        divisor,
        counted,
    )


def wanted_numbers(loss: Loss, batch: Batch, path: str, learnable: Collection[str]) -> list[Tensor]:
    """The loss's own tensors that want a gradient and get one on a path; ValueError for those that would not."""
    parts = batch.target if isinstance(batch.target, tuple) else (batch.target,)
    if torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in parts):
        raise ValueError(f"the target wants a gradient, which path={path!r} does not give: detach it, or plan 'dense'")
    options: dict[str, Any] = loss.hyperparameters()
    found = {k: v for k, v in options.items() if isinstance(v, Tensor) and v.requires_grad and torch.is_grad_enabled()}
    for name in found:
        if name not in learnable or name in ("weight", "class_weight"):
            raise ValueError(f"{name} of the loss wants a gradient, which path={path!r} does not give: plan 'dense'")
    if options.get("group") is not None:
        raise ValueError(f"the loss couples the batch over ranks by its group, path={path!r} does not: plan 'dense'")
    return list(found.values())


def check_numbers(loss: Loss, features: Tensor, K: int) -> None:
    """Let the loss check its own hyperparameters, on no samples."""
    loss(features.new_empty(0, K), torch.empty(0, dtype=torch.long, device=features.device))


@dataclass(frozen=True)
class Tiles:
    """How the classes are cut, and the target's numbers on a tile, q_k = t_k w_k, with t smoothed.

    Labels are gathered and scattered, so that nothing of the size of a tile is made of them.
    """

    batch: Batch
    size: int
    K: int
    smoothing: float = 0.0
    offset: Tensor | None = None  # (K,), added to the scores
    others: bool = False  # whether the log-sum leaves the label out
    shard: Shard | None = None  # which of the K classes the layer holds; None is all

    @property
    def held(self) -> tuple[int, int]:
        """The first of the classes that the layer holds, and the first after them."""
        return (0, self.K) if self.shard is None else (self.shard.start, self.shard.stop)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(low, high) of every tile, counted from the first class; of a shard, only the tiles of its classes.

        If there are many classes, those past the last whole width get a tile of their own: they would slow down others.
        """
        start, stop = self.held
        rest = (stop - start) % WIDTH if stop - start > MANY else 0
        for low, high in chunks(stop - start - rest, self.size):
            yield start + low, start + high
        if rest:
            yield stop - rest, stop

    def own(self, low: int, high: int) -> slice:
        """Where the classes low..high-1 are in the layer."""
        start, _ = self.held
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
        """sum_k q_k of each sample over the classes first..last-1, by default all K, (N,)."""
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
        """sum_k q_k (s_k - shift) over a tile, with one shift per sample, (N,)."""
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
        """sum_k z_k^2 of each sample over the classes of all ranks, (N,), from the logits, without a gradient."""
        total = torch.zeros(layer.features.shape[0], dtype=wide(layer.weight.dtype), device=layer.weight.device)
        for low, high in self:
            total += torch.linalg.vector_norm(self.scores(layer, None, low, high)[0], dim=1).square()
        return total if self.shard is None else self.shard.add(total)

    def add(self, ds: Tensor, coefficient: Tensor, low: int, high: int) -> None:
        """ds += coefficient q over a tile, with one coefficient per sample, (N,)."""
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
