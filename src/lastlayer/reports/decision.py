"""Which losses are not shown to be worse than the best: one decision from two sources of noise.

A run's value differs from the true value of its loss for two reasons. Training is random: another seed gives another
network. And the test set is finite: other rows would give another number. Runs that are tested on the same rows share
the second noise, so that it mostly cancels in a difference of two losses.

Let run r of loss l have the value v_r = mu_l + a_r + t_r. Here a_r is the noise of training, with one variance for all
runs. t_r is the noise of the test set, with a known covariance matrix C (`of_rows`, `of_draws`, `of_shares`). A
difference of two losses is d = sum_r w_r v_r with fixed weights w. Its variance is

    w'Cw + s^2 (w'w + 2 overlap),

where s^2, the variance of training, is what the spread of seeds shows beyond C: with the projection P onto the
residuals of the runs, s^2 = max(0, (v'Pv - tr PC) / tr P). The degrees of freedom are Satterthwaite's. Few runs can
agree by chance. So the degrees of freedom are those that hold if s^2 is as large as its upper 80 % limit.

The best loss is compared with each of the others. A loss is shown to be worse if it is behind by more than the critical
value of Dunnett's one-sided test at 97.5 % times the standard error. With two losses this is the two-sided t-test at
5 %. With more losses it is Hsu's comparison with the best, at this stricter level. So even if all losses are equal, a
single best one is named in at most 5 % of cases.

Tests: tests/reports/test_decision.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LEVEL = 0.975  # of the one-sided comparisons with the best, for all of them together
POWER = 0.8  # probability with which a further test should show the difference that was measured
LIMIT = 0.8  # probability that the variance of training lies below its upper limit
UNLIKE = 0.05  # losses whose spreads would differ as much by chance with a smaller probability are not pooled


@dataclass(frozen=True)
class Noise:
    """How much the finite test set lets the values of runs vary.

    Attributes:
        covariance: of the values of the runs, (R, R).
        freedom: degrees of freedom of that estimate.
        rows: how many rows there are in all.
    """

    covariance: Array
    freedom: float
    rows: int


@dataclass(frozen=True)
class Rival:
    """The best loss compared with another one.

    Attributes:
        gap: value of the best minus value of this one, with the sign turned so that more is better.
        error: standard error of the gap.
        freedom: degrees of freedom.
        critical: how many standard errors the gap must exceed.
        from_rows, from_training: the two parts of the variance of the gap.
        lasting: the part of `from_training` that more seeds do not reduce, because the training sets of folds overlap.
            If there is one, each further seed tests on other rows.
    """

    gap: float
    error: float
    freedom: float
    critical: float
    from_rows: float
    from_training: float
    lasting: float = 0.0

    @property
    def is_worse(self) -> bool:
        """Whether this loss is shown to be worse than the best one."""
        return self.gap > self.critical * self.error

    @property
    def interval(self) -> tuple[float, float]:
        """What the gap may be, simultaneously for all rivals."""
        return self.gap - self.critical * self.error, self.gap + self.critical * self.error

    def factor(self, *, rows: bool) -> float:
        """How many times as many rows, or as many seeds, would show a gap of this size with a probability of 80 %.

        Infinite if no number would, because the other source of noise is too large, or the gap is 0 or less.
        """
        from scipy.special import ndtri

        if self.gap <= 0:
            return math.inf
        allowed = (self.gap / (self.critical + float(ndtri(POWER)))) ** 2
        total = self.from_rows + self.from_training
        stays = self.from_training if rows else self.lasting or self.from_rows
        return max(1.0, (total - stays) / (allowed - stays)) if allowed > stays else math.inf


@dataclass(frozen=True)
class Decision:
    """What can be said about the best loss.

    Attributes:
        means: value of each loss, the mean over its runs.
        best: the loss with the best mean.
        rivals: every other loss, compared with the best one.
        seeds: runs of the loss that has fewest.
        rows: on which the runs were tested.
        spread: standard deviation over the noise of training of all losses, without the noise of the test set.
        intervals: where the value of each loss lies with 95 % confidence, for each loss by itself. Losses share the
            noise of the test set, so two of them may differ although their intervals overlap. With one seed per loss
            nothing is known of the noise of training, and the intervals are those of the test set alone.
    """

    means: Mapping[str, float]
    best: str
    rivals: Mapping[str, Rival]
    seeds: int
    rows: int
    spread: float
    intervals: Mapping[str, tuple[float, float]]

    @property
    def not_worse(self) -> list[str]:
        """The losses that are not shown to be worse than the best one, itself included, in the order given."""
        return [name for name in self.means if name == self.best or not self.rivals[name].is_worse]

    @property
    def is_sure(self) -> bool:
        """Whether every other loss is shown to be worse."""
        return bool(self.rivals) and len(self.not_worse) == 1


def decide(
    values: Sequence[float],
    losses: Sequence[str],
    noise: Noise,
    *,
    higher_is_better: bool = True,
    folds: Sequence[Hashable] | None = None,
    overlap: float = 0.0,
) -> Decision:
    """Compare the best loss with every other one.

    Args:
        values: one per run, (R,).
        losses: the loss of each run.
        noise: of the finite test set, for the runs in this order.
        higher_is_better: the direction of the measure.
        folds: the part of the data on which each run was tested, if not all were tested on the same rows. Losses are
            then compared fold by fold.
        overlap: test rows per training row, if each fold was trained on the others: their training sets overlap, so
            that the noise of training does not average out over folds (Nadeau and Bengio, 2003). Otherwise 0.

    Raises:
        ValueError: if there is no run, a value is not finite, or the covariance does not fit.

    Example:
        >>> losses = ["ce", "ce", "bce", "bce"]
        >>> correct = [[1, 1, 1, 0] * 50, [1, 1, 0, 1] * 50, [1, 0, 0, 0] * 50, [0, 1, 0, 0] * 50]
        >>> decision = decide([0.75, 0.75, 0.25, 0.25], losses, of_rows(correct, losses))
        >>> decision.best, decision.is_sure
        ('ce', True)
    """
    names = list(dict.fromkeys(losses))
    v, loss = np.asarray(values, float), np.array([names.index(name) for name in losses])
    if not names or not np.isfinite(v).all():
        raise ValueError(f"a decision needs finite values of one run or more, got {list(values)}")
    if len(v) != len(loss) or noise.covariance.shape != (len(v), len(v)):
        raise ValueError(f"{len(v)} values, {len(loss)} losses and covariance {noise.covariance.shape} do not fit")
    training, alike = _training(v, loss, folds, noise.covariance), _spread_alike(v, loss, noise.covariance)
    counts = np.bincount(loss)
    means = np.bincount(loss, v) / counts
    sign = 1.0 if higher_is_better else -1.0
    best = int(np.argmax(sign * means))
    rivals = {}
    for other, name in enumerate(names):
        if other == best:
            continue
        weights = (loss == best) / counts[best] - (loss == other) / counts[other]
        from_rows = float(weights @ noise.covariance @ weights)
        share = float(weights @ weights) + 2 * overlap
        of_pair = training if alike else _training_of_pair(v, loss, folds, noise.covariance, (best, other))
        nu = _freedom(from_rows, share, of_pair, noise.freedom)
        rivals[name] = Rival(
            gap=float(sign * (means[best] - means[other])),
            error=math.sqrt(from_rows + share * of_pair.variance) if of_pair.freedom else math.inf,
            freedom=nu,
            critical=critical_value(len(names) - 1, nu),
            from_rows=from_rows,
            from_training=share * of_pair.variance,
            lasting=2 * overlap * of_pair.variance,
        )
    spread = math.sqrt(training.variance) if training.freedom else math.nan
    found = dict(zip(names, means.tolist(), strict=True))
    intervals = {}
    for own, name in enumerate(names):
        weights = (loss == own) / counts[own]
        from_rows, share = float(weights @ noise.covariance @ weights), float(weights @ weights) + overlap
        one = training
        if not alike and counts[own] > 1:
            mine = loss == own
            one = _training(v[mine], loss[mine], None, noise.covariance[np.ix_(mine, mine)])
        nu = _freedom(from_rows, share, one, noise.freedom) if one.freedom else noise.freedom
        width = critical_value(1, nu) * math.sqrt(from_rows + share * one.variance)
        intervals[name] = (found[name] - width, found[name] + width)
    return Decision(found, names[best], rivals, int(counts.min()), noise.rows, spread, intervals)


@dataclass(frozen=True)
class _Training:
    """The noise of training: its variance, and the mean square of residuals that it was found from."""

    variance: float
    mean_square: float
    expected: float  # the part of the mean square that the test set explains
    freedom: float  # of the mean square; 0 if nothing is known


def _training(v: Array, loss: NDArray[np.int64], folds: Sequence[Hashable] | None, C: Array) -> _Training:
    design = (loss[:, None] == np.unique(loss)).astype(float)
    if folds is not None:  # losses are compared within folds
        place = {fold: i for i, fold in enumerate(dict.fromkeys(folds))}
        design = np.hstack([design, np.eye(len(place))[[place[fold] for fold in folds]]])
    P = np.eye(len(v)) - design @ np.linalg.pinv(design)
    freedom = round(float(np.trace(P)))
    if not freedom:
        return _Training(0.0, 0.0, 0.0, 0)
    mean_square, expected = float(v @ P @ v) / freedom, float(np.sum(P * C)) / freedom
    return _Training(max(0.0, mean_square - expected), mean_square, expected, freedom)


def _spread_alike(v: Array, loss: NDArray[np.int64], C: Array) -> bool:
    """Whether one variance of training may stand for all losses: Bartlett's test of the spreads of their runs.

    A spread below what the test set explains is due to chance, and counts as what the test set explains.
    """
    from scipy.special import chdtrc

    each = [
        _training(v[mine], loss[mine], None, C[np.ix_(mine, mine)]) for mine in (loss == k for k in np.unique(loss))
    ]
    each = [one for one in each if one.freedom]
    if len(each) < 3:  # two losses are compared by their own runs in any case
        return True
    freedom = np.array([one.freedom for one in each])
    squares = np.array([max(one.mean_square, one.expected) for one in each])
    squares[squares < 1e-12 * float(np.mean(v**2))] = 0  # the seeds of a loss agree, but for rounding
    if not squares.all():
        return not squares.any()
    statistic = freedom.sum() * math.log(freedom @ squares / freedom.sum()) - freedom @ np.log(squares)
    correction = 1 + ((1 / freedom).sum() - 1 / freedom.sum()) / (3 * (len(each) - 1))
    return float(chdtrc(len(each) - 1, statistic / correction)) > UNLIKE


def _training_of_pair(
    v: Array, loss: NDArray[np.int64], folds: Sequence[Hashable] | None, C: Array, pair: tuple[int, int]
) -> _Training:
    """The noise of training of two losses from their own runs. Without folds, their spreads may differ (Welch)."""
    runs = np.isin(loss, pair)
    found = _training(
        v[runs],
        loss[runs],
        None if folds is None else [folds[i] for i in np.flatnonzero(runs).tolist()],
        C[np.ix_(runs, runs)],
    )
    if folds is not None or not found.freedom:
        return found
    each = [_training(v[mine], loss[mine], None, C[np.ix_(mine, mine)]) for mine in (loss == k for k in pair)]
    scatter = sum(one.mean_square**2 / one.freedom for one in each if one.freedom)
    return replace(found, freedom=sum(one.mean_square for one in each) ** 2 / scatter) if scatter else found


def _freedom(from_rows: float, share: float, training: _Training, of_rows: float) -> float:
    """Satterthwaite's degrees of freedom of a variance, if that of training is as large as its upper limit."""
    from scipy.special import gammaincinv

    if not training.freedom:
        return 0.0
    half = training.freedom / 2
    most = training.mean_square * half / float(gammaincinv(half, 1 - LIMIT))  # chi-squared, 2 gammaincinv(half, .)
    total = from_rows + share * max(most - training.expected, training.variance)
    scatter = (share * most) ** 2 / training.freedom + from_rows**2 / of_rows
    # On folds, what is taken out of the spread may be more than the rows put in. The variance never falls below that of
    # the rows, so that there are no fewer degrees of freedom than either source has.
    return max(total**2 / scatter, min(training.freedom, of_rows)) if scatter > 0 else math.inf


def critical_value(rivals: int, freedom: float, level: float = LEVEL) -> float:
    """How many standard errors the largest of several correlated t statistics stays below, with this probability.

    Dunnett's one-sided value: the differences of one loss with `rivals` others have correlation 1/2. With one rival
    this is the quantile of the t distribution.

    Example:
        >>> round(critical_value(1, 10), 3), round(critical_value(3, 10, 0.95), 2)
        (2.228, 2.34)
    """
    if math.isnan(freedom) or freedom <= 0:
        return math.inf
    return _critical_value(rivals, float(f"{min(freedom, 1e4):.3g}"), level)


@functools.lru_cache(4096)
def _critical_value(rivals: int, freedom: float, level: float) -> float:
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr, stdtrit

    if rivals == 1:
        return float(stdtrit(freedom, level))
    x, at_x = np.polynomial.hermite_e.hermegauss(60)  # the best loss's own error
    q, at_q = np.polynomial.legendre.leggauss(60)  # the quantile of the estimated standard error
    at_x, q, at_q = at_x / at_x.sum(), (q + 1) / 2, at_q / 2
    error = np.sqrt(2 * gammaincinv(freedom / 2, q) / freedom)

    def missing(c: float) -> float:
        below = ndtr(math.sqrt(2) * c * error[:, None] + x) ** rivals
        return float(at_q @ below @ at_x) - level

    return float(brentq(missing, 0.0, float(stdtrit(freedom, 1 - (1 - level) / rivals)) + 1e-6))


def of_rows(rows: ArrayLike, losses: Sequence[str], classes: ArrayLike | None = None, *, bounded: bool = True) -> Noise:
    """The noise of means over test rows, for runs that were tested on the same rows.

    If by chance few rows tell two losses apart, their difference seems to be known too well. So it counts as if there
    were two more rows: one that only the first loss gets right, and one that only the second gets right (Bonett and
    Price, 2012). In a mean over classes the two are shared out, and small classes get most.

    Args:
        rows: one value per run and row, (R, N), such as whether the prediction is right.
        losses: the loss of each run.
        classes: the class of each row, (N,), if the measure is the mean over classes of the mean in each class; None
            if it is the mean over rows.
        bounded: whether the values lie between 0 and 1. Otherwise no rows are added.
    """
    table, names = np.asarray(rows, float), np.asarray(losses)
    same = (names[:, None] == names).astype(float)
    strata = np.zeros(table.shape[1], int) if classes is None else np.unique(classes, return_inverse=True)[1]
    sizes = np.bincount(strata)
    added = 2 * bounded / sizes / (1 / sizes).sum()
    covariance = np.zeros((len(table), len(table)))
    for k, (n, more) in enumerate(zip(sizes, added, strict=True)):
        part = table[:, strata == k]
        centred = part - part.mean(1, keepdims=True)
        covariance += centred @ centred.T / max(n * (n - 1), 1) + same * more / 2 / (n + more) ** 2
    shares = 1 / sizes
    freedom = shares.sum() ** 2 / (shares**2 / np.maximum(sizes - 1, 1)).sum()
    return Noise(covariance / len(sizes) ** 2, float(freedom), table.shape[1])


def of_draws(draws: ArrayLike, rows: int) -> Noise:
    """The noise of any measure, from its values on resampled test rows.

    Args:
        draws: one value per run and resample, (R, B). All runs have the same resamples.
        rows: how many rows there are.
    """
    table = np.asarray(draws, float)
    return Noise(np.atleast_2d(np.cov(table)), table.shape[1] - 1, rows)


def of_shares(shares: Sequence[float], losses: Sequence[str], rows: int) -> Noise:
    """The noise of shares of right rows, if it is not known which rows are right. Seeds share it, losses do not.

    Losses err on the same rows more often than by chance. So two losses differ less by chance than this says.

    Args:
        shares: one per run, (R,).
        losses: the loss of each run.
        rows: how many rows there are.
    """
    names = np.asarray(losses)
    p = (np.asarray(shares, float) * rows + 1) / (rows + 2)  # a share of 1 has noise too
    deviation = np.sqrt(p * (1 - p) / rows)
    return Noise(np.outer(deviation, deviation) * (names[:, None] == names), max(rows - 1, 1), rows)


def over_folds(parts: Mapping[Hashable, Noise], folds: Sequence[Hashable]) -> Noise:
    """The noise of runs that were tested on different rows, fold by fold.

    Args:
        parts: the noise of the runs of each fold, in the order of `folds`.
        folds: the fold of each run.
    """
    covariance = np.zeros((len(folds), len(folds)))
    for fold, part in parts.items():
        members = [i for i, other in enumerate(folds) if other == fold]
        covariance[np.ix_(members, members)] = part.covariance
    return Noise(covariance, sum(part.freedom for part in parts.values()), sum(part.rows for part in parts.values()))
