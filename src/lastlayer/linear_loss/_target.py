"""Targets cut by rows or by classes, and what a mean over the batch divides by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lastlayer.losses import Loss, Target
from lastlayer.losses.selection import normaliser
from lastlayer.losses.target import Labels, is_probabilities, read


@dataclass(frozen=True)
class Batch:
    """The target of one call, checked against logits that need not exist."""

    target: Target
    labels: tuple[Labels, ...]  # empty for class probabilities
    probabilities: Tensor | None  # (N, K)
    class_weight: Tensor | None  # (K,)
    reduction: str
    divisor: Tensor | None  # of the mean; None where nothing is divided
    counted: Tensor | None  # whether any sample counts at all

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
        """For each label of a sample, its place in the tile and its share, (N, 1) each; share 0 where not in the tile.

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
    """(low, high) of every chunk; of nothing, one empty chunk, so that the loss still sees its arguments."""
    for low in range(0, max(count, 1), size):
        yield low, min(low + size, count)


def rows_of(target: Target, low: int, high: int) -> Target:
    """The target of some samples."""
    if not isinstance(target, tuple):
        return target[low:high]
    first, second, lam = target
    return first[low:high], second[low:high], lam[low:high] if isinstance(lam, Tensor) and lam.dim() else lam


def read_batch(loss: Loss, target: Target, N: int, K: int, features: Tensor, dtype: torch.dtype) -> Batch:
    """Check a target as the loss itself would, against (N, K) logits that take up no memory."""
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
        read(logits, target, ignore_index=ignore_index)  # says what is wrong
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
