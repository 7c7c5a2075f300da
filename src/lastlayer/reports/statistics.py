"""Statistics of runs: the spread over seeds, differences with their intervals, and tests.

Values come by seed: a mapping from the seed of a run to its value. The noise is that of the seeds.

The papers' claims are judged by these. Which loss to choose is decided by `lastlayer.reports.decision`, which also
knows the noise of the test set.

Tests: tests/reports/test_statistics.py.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95  # of intervals, unless another level is asked for

# scipy.stats takes half a second to import: every function that needs it imports it when it is called.


@dataclass(frozen=True)
class Difference:
    """The mean of one group of runs minus the mean of another, as a t distribution.

    Attributes:
        mean: of the first minus of the second.
        error: standard error of the difference; infinite if there are too few values to know it.
        freedom: degrees of freedom of the t distribution.
        count: how many values each group has.
    """

    mean: float
    error: float
    freedom: float
    count: tuple[int, int]

    def interval(self, level: float = CONFIDENCE) -> tuple[float, float]:
        """Two-sided confidence interval; infinite if there are too few values."""
        if not self._has_spread():
            return -math.inf, math.inf
        if self.error == 0:
            return self.mean, self.mean
        from scipy.stats import t

        low, high = t.interval(level, self.freedom, self.mean, self.error)
        return float(low), float(high)

    def p_above(self, margin: float = 0.0) -> float:
        """One-sided p-value of the hypothesis that the difference is at most the margin; 1 if nothing is known."""
        if not self._has_spread():
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > margin else 1.0
        from scipy.stats import t

        return float(t.sf((self.mean - margin) / self.error, self.freedom))

    def p_unequal(self) -> float:
        """Two-sided p-value of the hypothesis that there is no difference; 1 if nothing is known."""
        if self.mean == 0 or not self._has_spread():
            return 1.0
        if self.error == 0:
            return 0.0
        from scipy.stats import t

        return float(2 * t.sf(abs(self.mean) / self.error, self.freedom))

    def _has_spread(self) -> bool:
        return math.isfinite(self.error) and self.freedom > 0


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation, with n - 1 in the denominator. If there are too few values, they are NaN.

    Example:
        >>> spread([1.0, 3.0])
        (2.0, 1.4142135623730951)
    """
    if not values:
        return math.nan, math.nan
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 and math.isfinite(mean) else math.nan


def welch(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Difference of two groups of runs whose variances may differ (Welch's t-test).

    Example:
        >>> welch({0: 2.0, 1: 4.0}, {0: 1.0, 1: 1.0}).mean
        2.0
    """
    x, y = np.array(list(a.values())), np.array(list(b.values()))
    mean, count = float(x.mean() - y.mean()), (len(x), len(y))
    if min(count) < 2:
        return Difference(mean, math.inf, 0, count)
    u, v = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    if u + v == 0:
        return Difference(mean, 0.0, len(x) + len(y) - 2, count)
    # scipy's ttest_ind gives the same, but warns of groups whose values agree to the last digits.
    freedom = float((u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1)))
    return Difference(mean, math.sqrt(u + v), freedom, count)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Difference of two groups over the seeds (or splits) that both have: t = mean(d) / (std(d) / sqrt(n)).

    Example:
        >>> difference = paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.0, 2: 2.5})
        >>> round(difference.mean, 4), round(difference.p_unequal(), 4)
        (0.6667, 0.0572)
    """
    d = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if len(d) < 2:
        return Difference(float(d.mean()) if len(d) else math.nan, math.inf, 0, (len(d), len(d)))
    return Difference(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d)), len(d) - 1, (len(d), len(d)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the i-th smallest of m p-values times (m - i + 1), never below the one before, at most 1.

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


def holm_above(differences: Mapping[str, Difference], margin: float = 0.0) -> dict[str, float]:
    """One-sided p-values of differences above a margin, corrected by Holm over all of them."""
    corrected = holm([one.p_above(margin) for one in differences.values()])
    return dict(zip(differences, corrected, strict=True))


def sign_test(differences: Iterable[float]) -> float:
    """One-sided p-value of the hypothesis that positive and negative are equally likely; zeros are left out.

    Example:
        >>> round(sign_test([1.0, 2.0, 3.0]), 9)
        0.125
    """
    signs = [value > 0 for value in differences if value != 0]
    if not signs:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(sum(signs), len(signs), alternative="greater").pvalue)


def spearman(x: Iterable[float], y: Iterable[float]) -> float:
    """Rank correlation; ties share their mean rank; NaN if all values of one are tied.

    Example:
        >>> round(spearman([1, 2, 3], [1, 4, 9]), 9)
        1.0
    """
    u, v = _centred_ranks(list(x)), _centred_ranks(list(y))
    size = math.sqrt(_dot(u, u)) * math.sqrt(_dot(v, v))
    return _dot(u, v) / size if size else math.nan


def _centred_ranks(values: list[float]) -> list[float]:
    """Ranks from the sorted values, a fifth of NumPy's time for the few values here; all NaN if one value is NaN."""
    if any(map(math.isnan, values)):
        return [math.nan] * len(values)
    ordered = sorted(values)
    return [(bisect_left(ordered, one) + bisect_right(ordered, one) - len(values)) / 2 for one in values]


def _dot(a: list[float], b: list[float]) -> float:
    return float(sum(map(operator.mul, a, b)))


def bootstrap(
    statistic: Callable[..., float], *groups: Sequence[float], draws: int = 4000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval at 95 % of a statistic of several groups, each of which is resampled with replacement."""
    generator = np.random.default_rng(seed)
    arrays = [np.asarray(group, float) for group in groups]
    values = [
        statistic(*(array[generator.integers(0, len(array), len(array))] for array in arrays)) for _ in range(draws)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
