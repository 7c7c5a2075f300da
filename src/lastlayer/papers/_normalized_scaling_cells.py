"""How the claims of the paper on normalized spaces read and compare cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lastlayer.papers._evidence import Difference, Verdict, above, all_of, exact, welch
from lastlayer.papers._observations import Observations

PAPER = "normalized_scaling"
LOSSES = ("CE", "BCE")
CLASSES = 10  # of MNIST, CIFAR-10 and the digits
_OPEN = {"not reproduced": "not", "inconclusive": "not clearly"}
Values = Mapping[int, float]


def mean(values: Values) -> float:
    """Over seeds."""
    return float(np.mean(list(values.values())))


def more(a: Values, b: Values, margin: float, what: str) -> Verdict:
    """Whether a exceeds b by a margin, their seeds not paired."""
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


def holding(parts: Sequence[Verdict], what: str) -> Verdict:
    """Reproduced where every cell is; names those that are not, or not clearly."""
    named = {outcome: [part.detail for part in parts if part.outcome == outcome] for outcome in _OPEN}
    held = len(parts) - sum(map(len, named.values()))
    others = [f"{_OPEN[outcome]} {', '.join(cells)}" for outcome, cells in named.items() if cells]
    return Verdict(all_of(parts).outcome, "; ".join([f"{what}: {held} of {len(parts)} hold", *others]))
