"""Sums from which the measures follow and which can be merged. They are views of one flat float64 vector.

The sums of a class are about its `shift`, the first feature seen. The shift differs between ranks. To merge two sets,
the sums must be moved to a common shift, which needs count, sum and scatter together. That is why they form one vector.
Sums about zero could simply be added, but they would lose every digit of a spread that is 1e-8 of the offset.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.geometry._passes import Means, Spread, zero_safe_inverse
from lastlayer.geometry.collapse import whitening

ROWS = 4096
"""How many rows of a batch are converted to float64 at a time."""


@dataclass(frozen=True)
class Moments:
    """Views into a flat vector: the sums of the first pass, then those of the second."""

    count: Tensor  # (K,)
    nonzero: Tensor  # (K,) features that are not zero
    square: Tensor  # (K,) sum of |h - shift|^2
    shift: Tensor  # (K, d) the first feature seen of each class, or zero if there is none
    total: Tensor  # (K, d) sum of h - shift
    unit_sum: Tensor  # (K, d) sum of h / |h|
    scatter: Tensor  # (d, d) sum of (h - shift)(h - shift)'
    reference: Tensor  # (K,) class counts of the means that the second pass uses; zero before the second pass
    seen: Tensor  # (K,) samples seen in the second pass
    distance: Tensor  # (K,) sum of |h - class mean|
    centred_nonzero: Tensor  # (K,) features that differ from the global mean
    centred_unit_sum: Tensor  # (K, d) sum of (h - global mean) / |h - global mean|
    decided: Tensor  # (1,) samples for which a classifier has decided
    disagreements: Tensor  # (1,) samples for which its decision is not the class with the nearest mean

    @property
    def second(self) -> tuple[Tensor, ...]:
        return (self.seen, self.distance, self.centred_nonzero, self.centred_unit_sum, self.decided, self.disagreements)

    def drop_second_pass(self) -> None:
        for part in (self.reference, *self.second):
            part.zero_()


def _shapes(num_classes: int, dim: int) -> list[tuple[int, ...]]:
    row, table = (num_classes,), (num_classes, dim)
    return [row, row, row, table, table, table, (dim, dim), row, row, row, row, table, (1,), (1,)]


def size(num_classes: int, dim: int) -> int:
    """The length of the flat vector."""
    return sum(map(math.prod, _shapes(num_classes, dim)))


def view(flat: Tensor, num_classes: int, dim: int) -> Moments:
    """The parts of the flat vector, as views that share its memory."""
    shapes = _shapes(num_classes, dim)
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return Moments(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


def add(moments: Moments, features: Tensor, label: Tensor) -> None:
    """Add the samples of a batch to the sums of the first pass, in place. The CPU does not wait for the GPU."""
    for part, k in zip(torch.split(features, ROWS), torch.split(label, ROWS), strict=True):
        rows = part.to(torch.float64)  # (n, d)
        index = torch.arange(len(rows), device=rows.device)
        first = index.new_full(moments.count.shape, len(rows)).scatter_reduce_(0, k, index, "amin")[k]  # (n,)
        unseen = (moments.count[k] == 0)[:, None]
        shift = torch.where(unseen, rows[first], moments.shift[k])
        moments.shift.index_copy_(0, k, shift)
        residual = rows - shift
        norm = torch.linalg.vector_norm(rows, dim=1)
        moments.count.index_add_(0, k, torch.ones_like(norm))
        moments.nonzero.index_add_(0, k, (norm > 0).to(torch.float64))
        moments.square.index_add_(0, k, residual.square().sum(dim=1))
        moments.total.index_add_(0, k, residual)
        moments.unit_sum.index_add_(0, k, rows * zero_safe_inverse(norm)[:, None])
        moments.scatter.addmm_(residual.T, residual)


def merge(stacked: Tensor, *, num_classes: int, dim: int) -> Tensor:
    """Merge several flat vectors (n, size) into one: the sums over all samples."""
    result = stacked[0].clone()
    into = view(result, num_classes, dim)
    for other in stacked[1:]:
        _merge(into, view(other, num_classes, dim))
    return result


def _merge(into: Moments, other: Moments) -> None:
    untouched = bool((other.count == 0).all()) and bool((other.reference == 0).all())
    if untouched:
        return
    if torch.equal(into.reference, other.reference):
        for mine, theirs in zip(into.second, other.second, strict=True):
            mine += theirs
    elif bool((into.count == 0).all()) and bool((into.reference == 0).all()):
        into.reference.copy_(other.reference)
        for mine, theirs in zip(into.second, other.second, strict=True):
            mine.copy_(theirs)
    else:
        # The second passes used different means, so their sums cannot be added.
        into.drop_second_pass()
    has = (other.count > 0)[:, None]
    into.shift.copy_(torch.where((into.count == 0)[:, None] & has, other.shift, into.shift))
    # For each class, move the other's sums to this shift: h - shift = (h - other's shift) + step.
    step = torch.where(has, other.shift - into.shift, 0.0)
    cross = other.total + other.count[:, None] * step / 2
    into.scatter.add_(other.scatter).addmm_(cross.T, step).addmm_(step.T, cross)
    into.square.add_(other.square).add_(2 * (cross * step).sum(dim=1))
    into.total.add_(other.total).add_(other.count[:, None] * step)
    into.unit_sum.add_(other.unit_sum)
    into.nonzero.add_(other.nonzero)
    into.count.add_(other.count)


def means(moments: Moments, present: Tensor) -> Means:
    """The class means of the classes with the indices `present`, relative to the shift of the first of them."""
    count, shift = moments.count[present], moments.shift[present]
    mean = (shift - shift[0]) + moments.total[present] / count[:, None]
    return Means(count, shift[0], mean, moments.unit_sum[present], moments.nonzero[present])


def spread(moments: Moments, present: Tensor, centred: Tensor) -> Spread:
    """The sums about the class means, from the sums about the shifts. `centred` are the centred class means."""
    count, total = moments.count[present], moments.total[present]
    root = total / count.sqrt()[:, None]  # (K, d), its square is the part of the sums of squares due to the shifts
    square = (moments.square[present] - root.square().sum(dim=1)).clamp(min=0)
    whitener = whitening(centred)
    energy = ((whitener @ moments.scatter) * whitener).sum() - (root @ whitener.T).square().sum()
    return Spread(square, None, energy.clamp(min=0))


def refined(moments: Moments, present: Tensor, first: Spread) -> Spread:
    """The sums of the first pass together with those of the second."""
    decided = bool(moments.decided > 0)
    return Spread(
        first.square,
        moments.distance[present],
        first.energy,
        moments.centred_unit_sum[present],
        moments.centred_nonzero[present],
        moments.disagreements[0] if decided else None,
    )
