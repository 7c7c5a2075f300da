"""Histograms of scores, which can be merged by addition, and rankings computed from them.

A bin is the first `bits` bits of a float32, read as an integer that keeps the order. So bins are finer near zero, and
no range must be set. The order of scores in different bins is known. Scores in one bin count as tied. How much this
can change a result is computed from the counts.
"""

import torch
from torch import Tensor

from lastlayer.tasks._ranking import true_positives_needed


def score_bins(scores: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The bin of every score, and the number of scores that could share their bin with other values.

    Args:
        scores: any shape, any floating dtype; float64 is rounded to float32.
        bits: 2 to 32.

    Returns:
        int64 bins in 0..2^bits-1 in the order of the scores, and an int64 scalar.
    """
    single = scores.float() + 0.0  # turns -0.0 into 0.0: they are equal but have different bits
    pattern = single.view(torch.int32)
    # Read as integers, negative floats are in reverse order.
    ordered = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
    shared = (pattern & ((1 << (32 - bits)) - 1)) != 0
    if scores.dtype == torch.float64:
        shared |= single.double() != scores
    return (ordered >> (32 - bits)).long() + (1 << (bits - 1)), shared.sum()


def _descending(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The counts from the highest bin down, and their running sum."""
    counts = counts.flip(1)
    return counts, counts.cumsum(1)


def average_precision_bounds(positive: Tensor, everything: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Average precision with the scores of a bin as ties, and its smallest and largest possible value.

    Take the i-th of the p positives in a bin. In the worst case all negatives of the bin are above it. In the best case
    none is, and the positives are tied. The worst case is a sum of a concave function of i, and the trapezium rule is a
    lower bound of it.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.

    Returns:
        Three (K,) float64: value, lower bound, upper bound. NaN for a class without positives.
    """
    count, true = _descending(positive)
    _, reached = _descending(everything)
    above, false = (true - count).double(), (reached - true).double()
    false_above = false - (everything - positive).flip(1)

    def mean(precision: Tensor) -> Tensor:
        return torch.where(count > 0, count * precision, 0.0).sum(1) / true[:, -1]

    at_end = true.double() / reached
    first_at_worst = (above + 1) / (above + 1 + false)
    return mean(at_end), mean((first_at_worst + at_end) / 2), mean(true.double() / (true + false_above))


def precision_at_recall_bounds(positive: Tensor, everything: Tensor, recall: float) -> tuple[Tensor, Tensor]:
    """Best precision at a recall with the scores of a bin as ties, which is its lower bound, and its upper bound.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.
        recall: in (0, 1].

    Returns:
        Two (K,) float64. NaN for a class without positives.
    """
    _, true = _descending(positive)
    _, reached = _descending(everything)
    false_above = (reached - true) - (everything - positive).flip(1)
    allowed = true >= true_positives_needed(true[:, -1:], recall)
    empty = true[:, -1] == 0

    def best(precision: Tensor) -> Tensor:
        return torch.where(allowed, precision, 0.0).amax(1).masked_fill(empty, torch.nan)

    return best(true.double() / reached), best(true.double() / (true + false_above))


def pairs_won(scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The number of pairs with score > other divided by the number of others, and how far off it can be.

    Both arguments are counts (bins,). A tie counts half. The caller divides by the number of scores.
    """
    total = others.sum()
    below = others.cumsum(0) - others
    tied = (scores * others).sum().double()
    return ((scores * below).sum() + 0.5 * tied) / total, 0.5 * tied / total
