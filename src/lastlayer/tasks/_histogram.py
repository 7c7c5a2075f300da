"""Score histograms that sums can merge, and what they tell about a ranking. Tests:
tests/tasks/test_metrics.py.

A bin is the first `bits` bits of a float32 read as an ordered integer, so bins are finer near zero and need
no range set beforehand. The order of scores in different bins is known, that of scores in one bin is not:
they count as tied, and the difference this can make is computed from the very counts.
"""

import torch
from torch import Tensor

from lastlayer.tasks._ranking import true_positives_needed


def score_bins(scores: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The bin of every score, and how many scores share their bin with other values.

    Args:
        scores: any shape, any floating dtype; float64 is rounded to float32.
        bits: 2 to 32.

    Returns:
        int64 bins in 0..2^bits-1, ascending with the score, and an int64 scalar.
    """
    single = scores.float() + 0.0  # -0.0 equals 0.0 but has other bits
    pattern = single.view(torch.int32)
    # Negative floats order backwards as integers.
    ordered = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
    shared = (pattern & ((1 << (32 - bits)) - 1)) != 0
    if scores.dtype == torch.float64:
        shared |= single.double() != scores
    return (ordered >> (32 - bits)).long() + (1 << (bits - 1)), shared.sum()


def _descending(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Counts from the highest bin down, and their running sum."""
    counts = counts.flip(1)
    return counts, counts.cumsum(1)


def average_precision_bounds(positive: Tensor, everything: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Average precision with bins as ties, and the least and most it can be for the scores behind them.

    The i-th of a bin's p positives has, at worst, all of the bin's negatives above it, and at best none, with
    the positives tied. The worst is a sum of a concave function of i, which the trapezium bounds from below.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.

    Returns:
        Three (K,) float64: value, lower bound, upper bound; NaN without positives.
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
    """Best precision at recall with bins as ties, which is also the least it can be, and the most it can be.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.
        recall: in (0, 1].

    Returns:
        Two (K,) float64; NaN without positives.
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
    """Share of pairs with score > other, ties half, from (bins,) counts, and how far the exact share may be.

    The shares are relative to `others` alone; dividing by the number of scores is the caller's.
    """
    total = others.sum()
    below = others.cumsum(0) - others
    tied = (scores * others).sum().double()
    return ((scores * below).sum() + 0.5 * tied) / total, 0.5 * tied / total
