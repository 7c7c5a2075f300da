"""Which differences between groups of runs are more than noise: the spread over seeds, without that of the test set.

Two rules, by how many seeds two groups share:

- fewer than five: no test is trusted. A group is within noise of the best where the difference of their means is at
  most two standard errors of it, 2 sqrt(s_a^2 / n_a + s_b^2 / n_b). A standard deviation below the median one of the
  column counts as the median: three seeds can agree by chance, and would then have no noise at all. With one seed
  there is no standard deviation, and nothing is said.
- five or more: two-sided t-test on the differences paired by seed, corrected by Holm over all groups compared with
  the best one in the same column; within noise where the corrected p is 0.05 or more. The best is chosen from the
  same numbers, which favours it a little; a winner must beat the second best too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

ENOUGH_SEEDS = 5
LEVEL = 0.05


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation with n - 1 in the denominator; NaN for what too few values leave undefined.

    Example:
        >>> spread([1.0, 3.0])
        (2.0, 1.4142135623730951)
    """
    if not values:
        return math.nan, math.nan
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 and math.isfinite(mean) else math.nan


def within_two_errors(a: Sequence[float], b: Sequence[float], least: float = 0.0) -> bool | None:
    """Whether the means differ by at most two standard errors of their difference; None where one has no spread.

    Args:
        a, b: values of two groups.
        least: what either standard deviation is raised to where it is below.

    Example:
        >>> within_two_errors([0.9, 0.9], [0.91, 0.91]), within_two_errors([0.9, 0.9], [0.91, 0.91], least=0.01)
        (False, True)
    """
    if len(a) < 2 or len(b) < 2:
        return None
    (mean_a, std_a), (mean_b, std_b) = spread(a), spread(b)
    std_a, std_b = max(std_a, least), max(std_b, least)
    return abs(mean_a - mean_b) <= 2 * math.sqrt(std_a**2 / len(a) + std_b**2 / len(b))


def paired_p(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Two-sided p-value of Student's t-test on the differences over the seeds that both have.

    t = mean(d) / (std(d) / sqrt(n)), with n - 1 degrees of freedom. Differences that are all zero give 1, differences
    that are all the same and not zero give 0.

    Args:
        a, b: values by seed, with at least two seeds in common.

    Example:
        >>> round(paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.0, 2: 2.5}), 4)
        0.0572
    """
    from scipy.special import stdtr

    differences = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    mean, std = spread(differences)
    if std == 0 or mean == 0:
        return 1.0 if mean == 0 else 0.0
    t = mean / (std / math.sqrt(len(differences)))
    return float(2 * stdtr(len(differences) - 1, -abs(t)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the i-th smallest of m times (m - i + 1), never below the one before it, at most 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = highest
    return corrected


def f_ratio(groups: Sequence[Sequence[float]]) -> float:
    """How much groups differ relative to their noise: the F ratio of a one-way analysis of variance.

    Infinite where groups differ without any noise, 0 where nothing differs, NaN where no group has two values.

    Example:
        >>> f_ratio([[1.0, 2.0], [3.0, 4.0]])
        8.0
    """
    groups = [group for group in groups if group]
    count = sum(len(group) for group in groups)
    if len(groups) < 2 or count == len(groups):
        return math.nan
    grand = float(np.mean(np.concatenate([np.asarray(group) for group in groups])))
    between = sum(len(group) * (float(np.mean(group)) - grand) ** 2 for group in groups) / (len(groups) - 1)
    within = sum(float(np.sum((np.asarray(group) - np.mean(group)) ** 2)) for group in groups) / (count - len(groups))
    if within == 0:
        return math.inf if between > 0 else 0.0
    return between / within
