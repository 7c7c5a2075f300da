"""The published claims: what decides each one, the kinds of criterion there are, and the verdict.

The module of a paper has one function per claim, marked with `check`. It takes the observations of the artifacts that
the claim needs and returns a `Verdict`, or yields several that must all hold. It makes them with a few kinds of
criterion: `above` and `equivalent` for a difference of two groups of runs, `redrawn` for a statement on their means,
`counted` for a number of cases, and `exact` for a computation without noise.
"""

import csv
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lastlayer.papers.engine.artifact import FOLDER, PAPERS, SIZES, Size
from lastlayer.papers.engine.store import NotRunError, Store
from lastlayer.reports.statistics import CONFIDENCE, Difference

Outcome = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
Group = Mapping[int, float] | Collection[float]  # the values of a group of runs, by seed or as a list
DRAWS = 10_000  # of the means, for a statement about them


@dataclass(frozen=True)
class Verdict:
    """What the observations say about a claim."""

    outcome: Outcome
    detail: str  # the numbers behind it, in one line
    difference: float | None = None  # the main effect, if there is one
    interval: tuple[float, float] | None = None  # of the difference
    size: str = ""  # of the observations that it rests on

    def but(self, outcome: Outcome, more: str) -> "Verdict":
        """The same evidence with another outcome, and something to add to the detail."""
        return dataclasses.replace(self, outcome=outcome, detail=self.detail + more)


Criterion = Callable[..., Verdict | Iterable[Verdict]]


@dataclass(frozen=True)
class Claim:
    """One published claim and how it is decided: one line of claims.csv, which was written before any run."""

    id: str  # number of the paper and of the claim, such as 000-01
    paper: str
    artifact: str  # where in the paper it stands
    claim: str  # what the paper says
    criterion: str  # what decides it, fixed before any run
    minimal_experiment: str  # the least that can decide it
    data: str
    changed: str = ""  # how and why the criterion was changed or made exact


@dataclass(frozen=True)
class _Check:
    decide: Criterion
    needs: tuple[str, ...]
    if_run: tuple[str, ...]


_CHECKS: dict[str, _Check] = {}


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the papers.

    Example:
        >>> len(claims())
        60
    """
    return tuple(Claim(**line) for line in csv.DictReader((FOLDER / "claims.csv").read_text().splitlines()))


def check(claim: str, *needs: str, if_run: tuple[str, ...] = ()) -> Callable[[Criterion], Criterion]:
    """Decorator for the function that decides a claim.

    The function takes the observations of each artifact that the claim needs; without one of them the claim is not run.
    Then it takes those of the artifacts in `if_run`, with None for one that has not been run.
    """
    if claim not in {one.id for one in claims()}:
        raise ValueError(f"there is no claim {claim} in claims.csv")

    def add(decide: Criterion) -> Criterion:
        _CHECKS[claim] = _Check(decide, needs, if_run)
        return decide

    return add


def needs(claim: str) -> tuple[str, ...]:
    """The artifacts from which a claim is decided."""
    found = _check(claim)
    return (*found.needs, *found.if_run)


def judge(claim: str, store: Store) -> Verdict:
    """The verdict on a claim, from the largest size that has all it needs.

    If no size has, the verdict is `not run` and says what is missing.
    """
    verdicts = [_judge(claim, store, largest) for largest in SIZES[:0:-1]]
    return next((verdict for verdict in verdicts if verdict.outcome != "not run"), verdicts[0])


def _judge(claim: str, store: Store, largest: Size) -> Verdict:
    found = _check(claim)
    try:
        shown = [store.evidence(name, largest) for name in found.needs]
        sizes = [store.size_of_evidence(name, largest) for name in found.if_run]
        more = [size and store.read(name, size) for name, size in zip(found.if_run, sizes, strict=True)]
        made = found.decide(*shown, *more)
        verdict = made if isinstance(made, Verdict) else all_of(list(made))
    except NotRunError as missing:
        return Verdict("not run", str(missing))
    judged = [one.size for one in (*shown, *more) if one is not None]
    return dataclasses.replace(verdict, size=" and ".join(dict.fromkeys(judged)))


def _check(claim: str) -> _Check:
    for paper in PAPERS:
        importlib.import_module(f"lastlayer.papers.{paper}")
    return _CHECKS[claim]


# Kinds of criterion


def above(difference: Difference, margin: float = 0.0, what: str = "") -> Verdict:
    """Reproduced if the whole 95 % interval is above the margin, not reproduced if it is below, else inconclusive."""
    return _of_difference(of_interval(difference.interval(), margin), difference, what)


def of_interval(interval: tuple[float, float], margin: float = 0.0) -> Outcome:
    """The outcome of `above` for the interval of any quantity."""
    low, high = interval
    return "reproduced" if low > margin else "not reproduced" if high < margin else "inconclusive"


def equivalent(difference: Difference, margin: float, what: str = "") -> Verdict:
    """Two one-sided tests at 5 %: reproduced if the 90 % interval is within the margin, not if it is outside."""
    low, high = difference.interval(0.9)
    within, outside = -margin < low and high < margin, low > margin or high < -margin
    return _of_difference("reproduced" if within else "not reproduced" if outside else "inconclusive", difference, what)


def _of_difference(outcome: Outcome, difference: Difference, what: str) -> Verdict:
    low, high = difference.interval()
    seeds = " and ".join(map(str, dict.fromkeys(difference.count)))
    text = f"{what} {difference.mean:+.4g} [{low:.4g}, {high:.4g}], {seeds} seeds".lstrip()
    return Verdict(outcome, text, difference.mean, (low, high))


def mean(group: Group) -> float:
    """The mean over the seeds of a group of runs."""
    return float(_array(group).mean())


def _array(group: Group) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = group.values() if isinstance(group, Mapping) else group
    return np.asarray(values if isinstance(values, np.ndarray) else list(values), float)


def redrawn(holds: Callable[[list[float]], bool], groups: Iterable[Group], detail: str) -> Verdict:
    """The verdict on a statement about the means of groups of runs, such as which group has the highest.

    It is decided if 95 % of draws of the means agree with the runs as they are, and inconclusive otherwise. A mean is
    drawn from its t distribution, mean + std / sqrt(n) t(n - 1). Drawing the seeds again with replacement would show
    too little of their spread if they are few: with three seeds each, a quarter of the comparisons of equals would be
    decided. A single run is taken to spread as much as the widest of the other groups. If all groups are single runs,
    nothing is decided. `holds` is given one mean per group.
    """
    arrays = [_array(group) for group in groups]
    means = [float(array.mean()) for array in arrays]
    if any(map(math.isnan, means)):
        return Verdict("inconclusive", f"{detail}, with what is not a number")
    as_it_is = holds(means)
    widest = max((float(array.std(ddof=1)) for array in arrays if len(array) > 1), default=None)
    if widest is None:
        return Verdict("inconclusive", f"{detail}, one seed")
    generator = np.random.default_rng(0)
    drawn = []
    for middle, array in zip(means, arrays, strict=True):
        deviation = float(array.std(ddof=1)) if len(array) > 1 else widest
        drawn.append(middle + deviation / math.sqrt(len(array)) * generator.standard_t(max(len(array) - 1, 1), DRAWS))
    agree = sum(holds(one) == as_it_is for one in np.stack(drawn, 1).tolist())
    if agree >= CONFIDENCE * DRAWS:
        return exact(as_it_is, detail)
    return Verdict("inconclusive", f"{detail}, so in {100 * agree // DRAWS}% of draws of the means")


def counted(holds: int, of: int, needed: int, what: str) -> Verdict:
    """Reproduced if at least so many of the cases hold."""
    return exact(holds >= needed, f"{what}: {holds} of {of}, {needed} needed")


def exact(holds: bool, detail: str) -> Verdict:
    """The verdict on a statement that is decided without noise."""
    return Verdict("reproduced" if holds else "not reproduced", detail)


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """The worst outcome of all parts, and the difference of the first part that has one."""
    if not parts:
        return Verdict("not run", "none of what decides it was run")
    outcomes = {part.outcome for part in parts}
    worst_first: tuple[Outcome, ...] = ("not reproduced", "inconclusive", "not run", "reproduced")
    outcome = next(one for one in worst_first if one in outcomes)
    first = next((part for part in parts if part.difference is not None), parts[0])
    return Verdict(outcome, "; ".join(part.detail for part in parts), first.difference, first.interval)
