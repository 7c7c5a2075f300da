"""How many samples each class of a long tail has: published totals, whole powers, edges."""

import math

import pytest
import torch

from lastlayer.tasks import long_tail_counts


@pytest.mark.parametrize(
    ("n_max", "classes", "imbalance", "total"),
    [
        (5000, 10, 10, 20431),
        (5000, 10, 50, 13996),
        (5000, 10, 100, 12406),
        (500, 100, 10, 19573),
        (500, 100, 50, 12608),
        (500, 100, 100, 10847),
    ],
)
def test_long_tail_totals_as_published(n_max, classes, imbalance, total):
    counts = long_tail_counts(n_max, classes, imbalance)
    assert counts.sum().item() == total
    assert counts[0].item() == n_max
    assert counts[-1].item() == n_max // imbalance


def test_whole_powers_keep_their_last_sample():
    # n_max * base^(-k) is whole for every k; floating powers fall just below for some of them.
    for base in (2, 3, 5, 7, 10):
        for classes in range(2, 9):
            counts = long_tail_counts(base ** (classes - 1), classes, base ** (classes - 1))
            assert counts.tolist() == [base ** (classes - 1 - k) for k in range(classes)]


def test_long_tail_counts_edges():
    assert long_tail_counts(7, 1, 100).tolist() == [7]
    assert long_tail_counts(7, 3, 1).tolist() == [7, 7, 7]
    assert long_tail_counts(5, 2, 10).tolist() == [5, 0]
    assert long_tail_counts(5, 2, 10).dtype == torch.int64
    for wrong in ((5, 0, 10), (-1, 2, 10), (5, 2, 0.01), (5, 2, math.nan)):
        with pytest.raises(ValueError, match="must be"):
            long_tail_counts(*wrong)
