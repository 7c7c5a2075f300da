"""The published claims: what decides each one, and the verdict from what was observed.

claims.csv was written before any run. Its columns are id, paper, artifact, claim, criterion, minimal_experiment, data
and changed. The last one says how and why a criterion is not the one first written, or how it was made exact.

The module of a paper has one function per claim, marked with `check`. It takes the observations of the artifacts that
the claim needs and returns a `Verdict`, or yields several that must all hold. `engine/verdicts.py` has the kinds of
criterion that it chooses from.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lastlayer.papers.engine.artifact import FOLDER, PAPERS, SIZES
from lastlayer.papers.engine.store import NotRunError, Store
from lastlayer.papers.engine.verdicts import Verdict, all_of

Criterion = Callable[..., Verdict | Iterable[Verdict]]


@dataclass(frozen=True)
class Claim:
    """One published claim and how it is decided.

    Attributes:
        id: paper and number.
        paper: number of the paper.
        artifact: where in the paper it stands.
        claim: what the paper says.
        criterion: what decides it, fixed before any run.
        minimal_experiment: the least that can decide it.
        data: the data that it needs.
        changed: how and why the criterion was changed or made exact, if it was.
    """

    id: str
    paper: str
    artifact: str
    claim: str
    criterion: str
    minimal_experiment: str
    data: str
    changed: str = ""


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

    Args:
        claim: its id.
        needs: artifacts. The function takes the observations of each. Without one of them the claim is not run.
        if_run: artifacts that come after these. In the place of one that has not been run the function gets None.
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
    verdicts = [_judge(claim, store.up_to(largest)) for largest in SIZES[:0:-1]]
    return next((verdict for verdict in verdicts if verdict.outcome != "not run"), verdicts[0])


def _judge(claim: str, store: Store) -> Verdict:
    found = _check(claim)
    try:
        shown = [store.evidence(name) for name in found.needs]
        more = [store.evidence(name) if store.size_of_evidence(name) else None for name in found.if_run]
        made = found.decide(*shown, *more)
        verdict = made if isinstance(made, Verdict) else all_of(list(made))
    except NotRunError as missing:
        return Verdict("not run", str(missing))
    sizes = [one.size for one in (*shown, *more) if one is not None]
    return dataclasses.replace(verdict, size=" and ".join(dict.fromkeys(sizes)))


def _check(claim: str) -> _Check:
    for paper in PAPERS:
        importlib.import_module(f"lastlayer.papers.{paper}")
    return _CHECKS[claim]
