"""Statistics behind the verdicts: differences with intervals, and how an interval decides.

Values come by seed, as `Observations.values` gives them. Intervals are two-sided at 95 % unless said otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Outcome = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
LEVEL = 0.95
DRAWS = 10_000


@dataclass(frozen=True)
class Verdict:
    """What the observations say of a claim.

    Attributes:
        outcome: one of four words.
        detail: the numbers behind it, in one line.
        difference: the main effect, where there is one.
        interval: of the difference.
        size: of the observations it rests on.
    """

    outcome: Outcome
    detail: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    size: str = ""

    def but(self, outcome: Outcome, more: str) -> Verdict:
        """The same evidence with another outcome and something to add."""
        return dataclasses.replace(self, outcome=outcome, detail=self.detail + more)


@dataclass(frozen=True)
class Difference:
    """Mean of a minus mean of b, with a t interval; degrees of freedom are kept so that another level can be asked."""

    mean: float
    error: float
    freedom: float
    count: tuple[int, int]

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Two-sided confidence interval; infinite where there are too few values for a spread."""
        if not math.isfinite(self.error) or self.freedom <= 0:
            return -math.inf, math.inf
        from scipy.special import stdtrit

        half = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, margin: float = 0.0) -> float:
        """One-sided p-value of the hypothesis that the difference is at most the margin."""
        if not math.isfinite(self.error) or self.freedom <= 0:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > margin else 1.0
        from scipy.special import stdtr

        return float(stdtr(self.freedom, -(self.mean - margin) / self.error))


def welch(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Difference of two groups of runs with their own variances (Welch's degrees of freedom).

    Example:
        >>> welch({0: 2.0, 1: 4.0}, {0: 1.0, 1: 1.0}).mean
        2.0
    """
    x, y = np.array(list(a.values())), np.array(list(b.values()))
    mean = float(x.mean() - y.mean())
    if len(x) < 2 or len(y) < 2:
        return Difference(mean, math.inf, 0, (len(x), len(y)))
    u, v = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    freedom = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1)) if u + v > 0 else len(x) + len(y) - 2
    return Difference(mean, math.sqrt(u + v), float(freedom), (len(x), len(y)))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Difference over the seeds (or splits) that both have.

    Example:
        >>> paired({0: 2.0, 1: 4.0}, {0: 1.0, 1: 2.0}).mean
        1.5
    """
    d = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if len(d) < 2:
        return Difference(float(d.mean()) if len(d) else math.nan, math.inf, 0, (len(d), len(d)))
    return Difference(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d)), len(d) - 1, (len(d), len(d)))


def above(difference: Difference, margin: float = 0.0, what: str = "") -> Verdict:
    """Reproduced where the whole interval lies above the margin, not where it lies below, inconclusive between."""
    low, high = difference.interval()
    outcome: Outcome = "reproduced" if low > margin else "not reproduced" if high < margin else "inconclusive"
    return _said(outcome, difference, what)


def equivalent(difference: Difference, margin: float, what: str = "") -> Verdict:
    """Two one-sided tests at 5 %: reproduced where the 90 % interval is within the margin, not where it is outside."""
    low, high = difference.interval(0.9)
    outcome: Outcome = "inconclusive"
    if -margin < low and high < margin:
        outcome = "reproduced"
    elif low > margin or high < -margin:
        outcome = "not reproduced"
    return _said(outcome, difference, what)


def counted(holds: int, of: int, needed: int, what: str = "") -> Verdict:
    """Reproduced where at least so many of the cases hold."""
    outcome: Outcome = "reproduced" if holds >= needed else "not reproduced"
    return Verdict(outcome, f"{what + ': ' if what else ''}{holds} of {of}, {needed} needed")


def exact(holds: bool, detail: str) -> Verdict:
    """The verdict on a claim that a computation decides without noise."""
    return Verdict("reproduced" if holds else "not reproduced", detail)


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Reproduced where every part is, not reproduced where one is not; the first part's difference is the main one."""
    if not parts:
        return Verdict("not run", "none of what decides it was run")
    outcomes = {part.outcome for part in parts}
    outcome: Outcome = "reproduced"
    for worse in ("not run", "inconclusive", "not reproduced"):
        if worse in outcomes:
            outcome = worse
    first = next((part for part in parts if part.difference is not None), parts[0])
    return Verdict(outcome, "; ".join(part.detail for part in parts), first.difference, first.interval)


def holm_above(differences: Mapping[str, Difference], margin: float = 0.0) -> dict[str, float]:
    """One-sided p-values of differences above a margin, corrected by Holm over all of them."""
    from lastlayer.reports.statistics import holm

    corrected = holm([one.p_above(margin) for one in differences.values()])
    return dict(zip(differences, corrected, strict=True))


def spearman(x: Iterable[float], y: Iterable[float]) -> float:
    """Rank correlation; ties share their mean rank; NaN where all are tied.

    Example:
        >>> round(spearman([1, 2, 3], [1, 4, 9]), 9)
        1.0
    """
    u, v = _centred_ranks(list(x)), _centred_ranks(list(y))
    size = math.sqrt(_dot(u, u)) * math.sqrt(_dot(v, v))
    return _dot(u, v) / size if size else math.nan


def _centred_ranks(values: list[float]) -> list[float]:
    """From the sorted values, which for the few here takes a fifth of NumPy's time; all NaN where one is."""
    if any(map(math.isnan, values)):
        return [math.nan] * len(values)
    ordered = sorted(values)
    return [(bisect_left(ordered, one) + bisect_right(ordered, one) - len(values)) / 2 for one in values]


def _dot(a: list[float], b: list[float]) -> float:
    return float(sum(map(operator.mul, a, b)))


def sign_test(differences: Iterable[float]) -> float:
    """One-sided p-value that positive and negative are equally likely; zeros are left out.

    Example:
        >>> sign_test([1.0, 2.0, 3.0])
        0.125
    """
    signs = [value > 0 for value in differences if value != 0]
    as_many = range(sum(signs), len(signs) + 1)
    return sum(math.comb(len(signs), positive) for positive in as_many) / (1 << len(signs))


def bootstrap(
    statistic: Callable[..., float], *groups: Sequence[float], draws: int = 4000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval at 95 % of a statistic of several groups, each drawn again with replacement."""
    generator = np.random.default_rng(seed)
    arrays = [np.asarray(group, float) for group in groups]
    values = [
        statistic(*(array[generator.integers(0, len(array), len(array))] for array in arrays)) for _ in range(draws)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def redrawn(
    holds: Callable[[Sequence[float]], bool], groups: Iterable[Mapping[int, float] | Collection[float]], detail: str
) -> Verdict:
    """The verdict on a statement about the means of groups of runs, such as which is the highest.

    Decided where 95 % of draws of the means agree with the runs as they are, inconclusive where fewer do. A mean is
    drawn from its t distribution, mean + std / sqrt(n) t(n - 1). Seeds drawn again with replacement would show too
    little of the spread of a few: with three seeds each, a quarter of the comparisons of equals would be decided. A
    single run is taken to spread as much as the widest of the other groups; where all are single, nothing is decided.
    """
    arrays = [np.array([*(group.values() if isinstance(group, Mapping) else group)], float) for group in groups]
    means = [float(array.mean()) for array in arrays]
    if any(map(math.isnan, means)):
        return Verdict("inconclusive", f"{detail}, with what is not a number")
    said = holds(means)
    spread = [float(array.std(ddof=1)) for array in arrays if len(array) > 1]
    if not spread:
        return Verdict("inconclusive", f"{detail}, one seed")
    generator = np.random.default_rng(0)
    drawn = []
    for mean, array in zip(means, arrays, strict=True):
        deviation = float(array.std(ddof=1)) if len(array) > 1 else max(spread)
        drawn.append(mean + deviation / math.sqrt(len(array)) * generator.standard_t(max(len(array) - 1, 1), DRAWS))
    agree = sum(holds(one) == said for one in np.stack(drawn, 1).tolist())
    if agree >= LEVEL * DRAWS:
        return exact(said, detail)
    return Verdict("inconclusive", f"{detail}, so in {100 * agree // DRAWS}% of draws of the means")


def _said(outcome: Outcome, difference: Difference, what: str) -> Verdict:
    low, high = difference.interval()
    a, b = difference.count
    seeds = f"{a} seeds" if a == b else f"{a} and {b} seeds"
    text = f"{what + ' ' if what else ''}{difference.mean:+.4g} [{low:.4g}, {high:.4g}], {seeds}"
    return Verdict(outcome, text, difference.mean, (low, high))
