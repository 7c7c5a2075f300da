"""How the claims of the paper on normalized spaces read and compare cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lastlayer.papers._evidence import Difference, Verdict, above, exact, welch
from lastlayer.papers._observations import Observations

PAPER = "normalized_scaling"
LOSSES = ("CE", "BCE")
Values = Mapping[int, float]


def mean(values: Values) -> float:
    """Over seeds."""
    return float(np.mean(list(values.values())))


def more(a: Values, b: Values, margin: float, what: str) -> Verdict:
    """Whether a exceeds b by a margin, each seed on its own."""
    return beyond(welch(a, b), margin, what)


def beyond(difference: Difference, margin: float, what: str) -> Verdict:
    """Whether a difference exceeds a margin: by its interval, or plainly where there is one seed."""
    if min(difference.count) >= 2:
        return above(difference, margin, what)
    return exact(difference.mean > margin, f"{what} {difference.mean:+.4g}, one seed")


def combinations(observed: Observations, *axes: str) -> Iterator[dict[str, str]]:
    """The combinations of some axes that were run, in the order of the file."""
    seen = dict.fromkeys(tuple((axis, row.labels[axis]) for axis in axes) for row in observed.rows)
    return (dict(arm) for arm in seen)


def spell(arm: Mapping[str, str]) -> str:
    """The labels of a cell in a line."""
    return " ".join(arm.values())


def failing(bad: list[str], of: int, what: str) -> Verdict:
    """Reproduced where no cell is bad; names those that are."""
    return exact(not bad, f"{what}: {of - len(bad)} of {of} hold" + (f"; not {', '.join(bad)}" if bad else ""))
