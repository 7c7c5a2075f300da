"""Conditions on scores that decide how losses in normalised spaces train."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.tasks.inputs import check_pair


@dataclass(frozen=True)
class CriticalConditions:
    """The two critical conditions. `two` implies `one`.

    The positive score of a sample is the score of its label. All its other scores are called negative.
    """

    one: bool  # every sample's positive score exceeds its own negative scores
    two: bool  # all positive scores of the data set are above 0, and all negative scores are below 0
    share_one: Tensor  # share of samples whose positive score exceeds their own negative scores
    share_two: Tensor  # share of samples whose positive score is above 0 and whose negative scores are below 0


def critical_conditions(scores: Tensor, target: Tensor) -> CriticalConditions:
    """The critical conditions I and II on scores without bias, s = scale * cos(w_j, h).

        I:   s_n[y_n] > max_{j != y_n} s_n[j]  for every n
        II:  min_n s_n[y_n] > 0 > max_{n, j != y_n} s_n[j]

    If condition I holds for cross-entropy, or II for binary cross-entropy, the steps of gradient descent vanish as the
    scale grows.

    Args:
        scores: (N, K) scores without bias.
        target: (N,) labels of any integer dtype.

    Degenerate cases: with one class there are no negative scores. Then I holds, and II asks only for positive scores
    above 0. NaN meets no condition.

    Paper: Normalized Spaces 2025, theorems 5 and 6.
    Tests: tests/tasks/test_conditions.py::test_conditions_equal_the_loop

    Example:
        >>> result = critical_conditions(torch.tensor([[3.0, 1.0], [-1.0, 2.0]]), torch.tensor([0, 1]))
        >>> result.one, result.two, result.share_two.item()
        (True, False, 0.5)
    """
    scores, target = check_pair(scores, target, "scores")
    positive = scores.gather(1, target[:, None]).squeeze(1)  # (N,)
    negative = scores.scatter(1, target[:, None], -torch.inf).amax(dim=1)
    meets_one = positive > negative
    meets_two = (positive > 0) & (negative < 0)
    return CriticalConditions(
        one=bool(meets_one.all()),
        two=bool(meets_two.all()),
        share_one=meets_one.double().mean(),
        share_two=meets_two.double().mean(),
    )


def collapsed(cosines: Tensor, target: Tensor, tol: float) -> bool:
    """Whether every cosine is within `tol` of its value at neural collapse. This is the paper's stopping rule.

        |cos(w_y, h) - 1| <= tol  and  |cos(w_j, h) + 1/(K-1)| <= tol, j != y,  for every sample

    Args:
        cosines: (N, K) cosines of features and classifier rows.
        target: (N,) labels of any integer dtype.
        tol: the tolerance, 0 or more. The paper uses 0.001 for scales below 5, and 0.0035 for scales of 5 or more.

    Degenerate cases: with one class the second part is empty. NaN does not count as collapsed.

    Paper: Normalized Spaces 2025, equation 217.
    Tests: tests/tasks/test_conditions.py::test_collapsed_at_the_simplex_and_not_beyond

    Example:
        >>> collapsed(torch.tensor([[1.0, -0.999], [-1.0, 1.0]]), torch.tensor([0, 1]), tol=0.002)
        True
    """
    if not tol >= 0:
        raise ValueError(f"tol must be at least 0, got {tol}")
    return bool(collapse_gap(cosines, target) <= tol)


def collapse_gap(cosines: Tensor, target: Tensor) -> Tensor:
    """How far the worst cosine between a sample and a classifier row is from its value at neural collapse.

        max over samples of max(|cos(w_y, h) - 1|, max_{j != y} |cos(w_j, h) + 1/(K-1)|)

    Args:
        cosines: (N, K) cosines of features and classifier rows.
        target: (N,) labels of any integer dtype.

    Degenerate cases: NaN if a cosine is NaN. With one class the second part is empty.

    Paper: Normalized Spaces 2025, equation 217.
    Tests: tests/tasks/test_conditions.py::test_the_gap_is_the_largest_distance_from_collapse

    Example:
        >>> round(float(collapse_gap(torch.tensor([[1.0, -0.9], [-1.0, 1.0]]), torch.tensor([0, 1]))), 6)
        0.1
    """
    cosines, target = check_pair(cosines, target, "cosines")
    num_classes = cosines.shape[1]
    at_collapse = -1 / (num_classes - 1) if num_classes > 1 else 0.0
    gaps = (cosines.double() - at_collapse).abs()  # (N, K)
    positive = (cosines.gather(1, target[:, None]).double() - 1).abs()
    return gaps.scatter(1, target[:, None], positive).max()


@dataclass(frozen=True)
class Scores:
    """Mean and standard deviation of the N scores of the labels and of the N (K - 1) other scores."""

    positive_mean: Tensor
    positive_std: Tensor
    negative_mean: Tensor
    negative_std: Tensor


def scores(scores: Tensor, target: Tensor) -> Scores:
    """Mean and standard deviation of the label's scores and of all other scores.

    Args:
        scores: (N, K) scores without their bias.
        target: (N,) labels of any integer dtype.

    Degenerate cases: with one class there is no negative score, so its mean and deviation are NaN.

    Paper: Normalized Spaces 2025, table 7.
    Tests: tests/test_measures.py::test_values_are_those_of_the_functions

    Example:
        >>> spread = scores(torch.tensor([[1.0, -1.0], [-3.0, 1.0]]), torch.tensor([0, 1]))
        >>> float(spread.positive_mean), float(spread.negative_mean), float(spread.negative_std)
        (1.0, -2.0, 1.0)
    """
    scores, target = check_pair(scores, target, "scores")
    is_label = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, target[:, None], True)
    positive, negative = scores[is_label].double(), scores[~is_label].double()
    return Scores(*_mean_and_std(positive), *_mean_and_std(negative))


def _mean_and_std(values: Tensor) -> tuple[Tensor, Tensor]:
    mean = values.mean()
    return mean, (values - mean).square().mean().sqrt()
