"""The target of one call, checked. How it is cut by rows and by tiles of classes, and which classes this rank holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lastlayer._core.precision import wide
from lastlayer._core.ranks import Group, sum_over_ranks
from lastlayer.linear_loss.layer import Layer
from lastlayer.linear_loss.products import WIDTH, chunks, logits_of
from lastlayer.losses import Loss, Target
from lastlayer.losses.selection import normaliser
from lastlayer.losses.target import Labels, is_probabilities, read

MANY = 4096  # classes from which one more tile costs little


@dataclass(frozen=True)
class Batch:
    """The target of one call, checked against logits that need not exist."""

    target: Target
    labels: tuple[Labels, ...]  # empty for class probabilities
    probabilities: Tensor | None  # (N, K)
    class_weight: Tensor | None  # (K,)
    reduction: str
    divisor: Tensor | None  # of the mean; None if nothing is divided

    def reduce(self, per_sample: Tensor) -> Tensor:
        """The reduction. As in torch, the mean divides by a number of the whole batch, not of a part."""
        if self.reduction == "none":
            return per_sample
        total = per_sample.sum()
        return total if self.divisor is None else total / self.divisor

    def reduce_counted(self, per_sample: Tensor) -> Tensor:
        """The reduction. A wholly ignored sample gets no gradient, even if the divisor is 0."""
        if self.labels:
            counts = torch.stack([labels.valid for labels in self.labels]).any(0)
            per_sample = torch.where(counts, per_sample, 0.0)
        return self.reduce(per_sample)

    def counted_part(self, labels: Labels, part: Tensor) -> Tensor:
        """Losses (N,) of one label per sample, times its class weight and its share. 0 if the label is ignored."""
        if self.class_weight is not None:
            part = part * self.class_weight[labels.index.squeeze(1)]
        return torch.where(labels.valid, labels.share * part, 0.0)

    def factor(self) -> Tensor | float:
        """The number that multiplies the gradient of the sum. It is 0, not infinite, if no sample counts."""
        if self.divisor is None:
            return 1.0
        counts = torch.stack([labels.valid for labels in self.labels]).any() if self.labels else self.divisor > 0
        return torch.where(counts, 1 / self.divisor, 0.0)

    def mass(self, dtype: torch.dtype) -> Tensor:
        """The share of each sample's labels that counts, (N,): 1 unless some are ignored."""
        shares = [labels.valid.to(dtype) * labels.share for labels in self.labels]
        return sum(shares[1:], shares[0])

    def entries(self, low: int, high: int, K: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """For each label of a sample, its place in the tile and its share, (N, 1) each. Outside the share is 0.

        If a label is no class, its place stays out of range in the first and in the last tile, so the device raises.
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


def rows_of(target: Target, low: int, high: int) -> Target:
    """The target of the samples low..high-1."""
    if not isinstance(target, tuple):
        return target[low:high]
    first, second, lam = target
    return first[low:high], second[low:high], lam[low:high] if isinstance(lam, Tensor) and lam.dim() else lam


def read_batch(loss: Loss, target: Target, N: int, K: int, features: Tensor, dtype: torch.dtype) -> Batch:
    """Check a target as the loss itself would, against logits (N, K) that take no memory."""
    logits = torch.zeros((), dtype=dtype, device=features.device).expand(N, K)
    options: dict[str, Any] = loss.hyperparameters()
    class_weight = options.get("class_weight", options.get("weight"))
    reduction = options.get("reduction", "sum")
    ignore_index = options.get("ignore_index")
    probabilities = target if not isinstance(target, tuple) and is_probabilities(target, logits, "logits") else None
    # Only labels are read here: reading class probabilities in half precision would copy all N x K of them.
    labels = target if probabilities is None else torch.zeros(N, dtype=torch.long, device=features.device)
    problem = read(logits, labels, weight=class_weight, ignore_index=ignore_index, reduction=reduction)
    if probabilities is not None and ignore_index is not None and ignore_index >= 0:
        read(logits, target, ignore_index=ignore_index)  # raises
    divisor = None
    if reduction == "mean":
        count = normaliser(problem) if probabilities is None else logits.new_full((), N)
        divisor = torch.as_tensor(count, device=features.device)
    found = problem.labels if probabilities is None else ()
    return Batch(target, found, probabilities, problem.weight, reduction, divisor)


def wanted_numbers(loss: Loss, batch: Batch, path: str, learnable: Collection[str]) -> list[Tensor]:
    """The loss's own tensors that need a gradient. ValueError if this path does not give one of them its gradient."""
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
class Shard:
    """The classes start..stop-1 of K that this rank holds, if the weight is split by class over a process group.

    Features, target and loss are the same on every rank. Each rank sums over its own classes, and the sum over ranks
    is the sum over all classes. The loss is made of such sums, so it is the same on every rank, and so is its gradient
    with respect to them. Each rank passes this gradient on to its own classes. In this way it finds one part of the
    gradient of what all ranks share, such as the features. These parts are summed once.
    """

    group: Group
    start: int
    stop: int
    K: int

    def total(self, part: Tensor) -> Tensor:
        """The sum over ranks. Each rank keeps the gradient of its own part."""
        return sum_over_ranks(part, self.group, sum_gradients=False)

    def shared(self, values: Tensor) -> Tensor:
        """The values, which are the same on every rank. Their gradient is the sum over ranks."""
        return sum_over_ranks(values, self.group, sum_values=False)

    def add(self, values: Tensor) -> Tensor:
        """The sum over ranks in place, without history."""
        dist.all_reduce(values, group=self.group)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over ranks in place, without history."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values


def read_shard(group: Group, features: Tensor, weight: Tensor) -> Shard:
    """The classes of this rank, from the sizes that all ranks send. If they do not fit, every rank raises the same."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("group needs torch.distributed: call torch.distributed.init_process_group on every rank first")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group: call linear_loss on the ranks of the group alone")
    mine = torch.tensor([*weight.shape, features.shape[0]], device=weight.device)
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, mine, group=group)
    counts, widths, samples = (list(column) for column in zip(*(size.tolist() for size in sizes), strict=True))
    if len(set(widths)) > 1 or len(set(samples)) > 1:
        raise ValueError(
            f"every rank must give the same samples and its own classes: the ranks have N = {samples} and d = {widths}"
        )
    if 0 in counts:
        raise ValueError(f"every rank must hold at least one class, the ranks hold {counts}: use a smaller group")
    return Shard(group, sum(counts[:rank]), sum(counts[: rank + 1]), sum(counts))


@dataclass(frozen=True)
class Tiles:
    """How the classes are cut, and the numbers of the target on a tile: q_k = t_k w_k, where t is smoothed.

    Labels are gathered and scattered, so they need nothing of the size of a tile.
    """

    batch: Batch
    size: int
    K: int
    smoothing: float = 0.0
    offset: Tensor | None = None  # (K,), added to the scores
    others: bool = False  # whether the log-sum leaves the label out
    shard: Shard | None = None  # which of the K classes the layer holds; None means all

    @property
    def held(self) -> tuple[int, int]:
        """The first class that the layer holds, and the first one after its classes."""
        return (0, self.K) if self.shard is None else (self.shard.start, self.shard.stop)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(low, high) of every tile of the classes that the layer holds, counted from the first of all K classes.

        If there are many classes, those past the last whole width get a tile of their own. They would slow down others.
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
        """Logits of the classes of a tile, and the scores made from them."""
        own = self.own(low, high)
        z = logits_of(layer.features, layer.weight[own], None if layer.bias is None else layer.bias[own])
        s = z if factor is None else z * factor.unsqueeze(1)
        return z, s if self.offset is None else s + self.offset[low:high]

    def summed(self, s: Tensor, low: int, high: int) -> Tensor:
        """The scores over which the log-sum runs."""
        if not self.others:
            return s
        for index, share in self.batch.entries(low, high, self.K, s.dtype):
            s = s.scatter(1, index, torch.where(share > 0, float("-inf"), s.gather(1, index)))
        return s

    def probabilities(self, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """The smoothed class probabilities of a tile, (N, high - low)."""
        assert self.batch.probabilities is not None
        return (1 - self.smoothing) * self.batch.probabilities[:, low:high].to(dtype) + self.smoothing / self.K

    def mass(self, N: int, dtype: torch.dtype, first: int = 0, last: int | None = None) -> Tensor:
        """sum_k q_k of each sample over the classes first..last-1, (N,). By default over all K."""
        last = self.K if last is None else last
        weight = self.batch.class_weight
        total: Tensor | int = last - first if weight is None else weight[first:last].sum()
        if self.batch.probabilities is not None:
            mass = self.batch.probabilities.new_zeros(N, dtype=dtype)
            for low, high in chunks(last - first, self.size):
                t = self.batch.probabilities[:, first + low : first + high].to(dtype)
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
            terms = self.probabilities(low, high, s.dtype) * (s - shift.unsqueeze(1))
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
            q = self.probabilities(low, high, ds.dtype)
            ds += coefficient.unsqueeze(1) * (q if weight is None else q * weight)
            return
        for index, share in self.batch.entries(low, high, self.K, ds.dtype):
            own = share if weight is None else share * weight[index]
            ds.scatter_add_(1, index, (1 - self.smoothing) * own * coefficient.unsqueeze(1))
        if self.smoothing:
            evenly = self.smoothing / self.K * (self.batch.mass(ds.dtype) * coefficient).unsqueeze(1)
            ds += evenly if weight is None else evenly * weight


def times_share(share: Tensor, values: Tensor) -> Tensor:
    """share values, but 0 if the share is 0: then the value is that of a class at the edge of the tile, maybe -inf."""
    return torch.where(share == 0, 0.0, share * values)
