"""Spread within classes relative to the distance between class means: the intra-inter ratio and CDNV."""

import torch
from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry._inputs import prepare
from lastlayer.geometry._passes import first_pass, second_pass


def intra_inter_ratio(features: Tensor, target: Tensor) -> Tensor:
    r"""The mean distance of features to their class mean, divided by the mean distance between class means.

        mean_n |h_n - h_{y_n}|  /  mean_{i != j} |h_i - h_j|

    These are distances, not their squares. The ratio is 0 at neural collapse. The gradient is 0 at a feature that
    equals its class mean.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Degenerate cases: with one sample in every class the result is 0. With one class it is NaN. If all class means are
    equal, it is infinite, or NaN if all samples are equal too.

    Paper: SLN 2025, section 5.2.
    Tests: tests/geometry/test_spread.py::test_agrees_with_reference

    Example:
        >>> features = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> float(intra_inter_ratio(features, torch.tensor([0, 0, 1, 1])))
        0.1
    """
    with full_precision(features):
        samples = prepare(features, target)
        means = first_pass(samples)
        spread = second_pass(samples, means)
        assert spread.distance is not None
        return ratio_of(spread.distance, means.count, pair_distances(means.mean))


def class_distance_variance(features: Tensor, target: Tensor) -> Tensor:
    r"""The class-distance normalised variance (CDNV): the variance within two classes over their squared distance.

        mean_{i < j} (v_i + v_j) / (2 |h_i - h_j|^2),   v_k = mean_{x in k} |h - h_k|^2

    It is 0 at neural collapse. It uses differences of class means, so two close classes lose no digits.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Degenerate cases: with one sample in every class the result is 0. With one class it is NaN. If two classes have the
    same mean, it is infinite, or NaN if neither of them has any spread.

    Paper: Galanti et al. 2022.
    Tests: tests/geometry/test_spread.py::test_agrees_with_reference

    Example:
        >>> features = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> float(class_distance_variance(features, torch.tensor([0, 0, 1, 1])))
        0.01
    """
    with full_precision(features):
        samples = prepare(features, target)
        means = first_pass(samples)
        spread = second_pass(samples, means)
        return variance_of(spread.square, means.count, pair_distances(means.mean))


def ratio_of(distance: Tensor, count: Tensor, pair_distance: Tensor) -> Tensor:
    if len(count) < 2:
        return distance.new_tensor(torch.nan)
    return distance.sum() / count.sum() / pair_distance.mean()


def variance_of(square: Tensor, count: Tensor, pair_distance: Tensor) -> Tensor:
    size = len(count)
    if size < 2:
        return square.new_tensor(torch.nan)
    variance = square / count
    first = torch.repeat_interleave(variance, torch.arange(size - 1, -1, -1, device=square.device))
    second = torch.cat([variance[i:] for i in range(1, size)])
    return ((first + second) / pair_distance.square()).mean() / 2


def pair_distances(mean: Tensor) -> Tensor:
    """|m_i - m_j| for i < j. Computed from differences, since products would lose the distance of two close means."""
    return torch.pdist(mean)
