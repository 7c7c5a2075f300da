"""Labels: every integer dtype, one per sample, and which of them are no class. Long tails: totals and edges."""

import math

import pytest
import torch

from lastlayer._core.labels import INTEGERS, check_classes, long_tail_counts, outside, read_labels


@pytest.mark.parametrize("dtype", sorted(INTEGERS, key=str))
def test_every_integer_dtype_is_read_as_int64(dtype: torch.dtype) -> None:
    read = read_labels(torch.tensor([2, 0, 1]).to(dtype), 3)
    assert read.dtype == torch.int64
    assert read.tolist() == [2, 0, 1]


def test_what_is_no_label_is_named() -> None:
    with pytest.raises(TypeError, match="target must be a tensor of class labels, got list"):
        read_labels([0, 1], 2)  # type: ignore[arg-type]
    for wrong in (torch.zeros(2), torch.zeros(2, dtype=torch.bool)):
        with pytest.raises(TypeError, match=r"y must hold class labels in an integer dtype, got torch\.\w+: argmax\?"):
            read_labels(wrong, 2, name="y", instead=": argmax?")
    for shape in ((3,), (2, 1), ()):
        with pytest.raises(ValueError, match=r"target must have shape \(2,\), one label per row, got"):
            read_labels(torch.zeros(shape, dtype=torch.int64), 2)


@pytest.mark.parametrize(("labels", "found"), [([], None), ([0, 2], None), ([1, 3], 3), ([-1, 9], -1), ([7, 3], 7)])
def test_a_label_that_is_no_class_is_found(labels: list[int], found: int | None) -> None:
    given = torch.tensor(labels, dtype=torch.int64)
    assert outside(given, 3) == found
    if found is None:
        check_classes(given, 3)
        return
    with pytest.raises(ValueError, match=rf"y has the label {found}, but there are 3 classes: .* 0\.\.2; drop it$"):
        check_classes(given, 3, name="y", instead="; drop it")


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
    # n_max * base^(-k) is whole for every k, but some powers in floating point are slightly smaller.
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
