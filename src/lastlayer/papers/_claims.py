"""The published claims: their criteria, written down before any run, and the verdict on each from what was observed.

claims.csv holds id, paper, artifact, claim, criterion, minimal_experiment, data and changed (how and why a criterion is
not the one first written, or how it was made exact; empty where it stands as it was). Each paper's module has one
function for each of its claims, which reads a `Store` and returns a `Verdict`. A criterion on means over seeds that
names no interval is inconclusive where fewer than 95 % of draws of the means agree with it (`_evidence.redrawn`).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from lastlayer.papers._artifact import PAPERS, SIZES
from lastlayer.papers._evidence import Verdict
from lastlayer.papers._observations import NotRunError, Store

Check = Callable[[Store], Verdict]
_CHECKS: dict[str, tuple[Check, tuple[str, ...]]] = {}


@dataclass(frozen=True)
class Claim:
    """One published claim and how it is decided.

    Attributes:
        id: paper and number.
        paper: its number.
        artifact: where in the paper.
        claim: what the paper says.
        criterion: what decides it, fixed before any run.
        minimal_experiment: the least that can decide it.
        data: what it needs.
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


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the papers.

    Example:
        >>> len(claims())
        60
    """
    text = (files("lastlayer.papers") / "claims.csv").read_text()
    return tuple(Claim(**line) for line in csv.DictReader(text.splitlines()))


def check(claim: str, *needs: str) -> Callable[[Check], Check]:
    """Decorator: the function that decides a claim from the observations of the artifacts it needs."""

    def add(function: Check) -> Check:
        _CHECKS[claim] = (function, needs)
        return function

    return add


def needs(claim: str) -> tuple[str, ...]:
    """The artifacts a claim is decided from."""
    _load_checks()
    return _CHECKS[claim][1]


def judge(claim: str, store: Store) -> Verdict:
    """The verdict on a claim, from the largest size that has all it needs.

    `not run` where none has, saying what is missing.
    """
    _load_checks()
    function, artifacts = _CHECKS[claim]
    verdicts = []
    for largest in SIZES[:0:-1]:
        counting = store.up_to(largest)
        try:
            verdict = function(counting)
        except NotRunError as missing:
            verdict = Verdict("not run", str(missing))
        else:
            sizes = [size for name in artifacts if (size := counting.size_of_evidence(name)) is not None]
            verdict = dataclasses.replace(verdict, size=" and ".join(dict.fromkeys(sizes)))
        if verdict.outcome != "not run":
            return verdict
        verdicts.append(verdict)
    return verdicts[0]


def _load_checks() -> None:
    for paper in PAPERS:
        importlib.import_module(f"lastlayer.papers.{paper}")
