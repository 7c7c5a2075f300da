"""Our numbers beside the published ones, a line for each combination of labels and a pair for each column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from lastlayer.papers._artifact import Artifact, Labels
from lastlayer.papers._observations import NotRunError, Observations, read_spec
from lastlayer.reports.noise import spread

Missing = Literal["not run", "no result", "none"]


@dataclass(frozen=True)
class Printed:
    """One number of the paper."""

    labels: Labels
    column: str
    value: float
    std: float | None


@dataclass(frozen=True)
class Entry:
    """One place of the table: ours (NaN without a number) and what the paper prints (None where it prints nothing).

    Where ours has no number, `missing` says why: not run; no result, of runs that failed or learned nothing; or none,
    of finished runs for which there is no such number, as the accuracy in a group that no class belongs to.
    """

    mean: float
    std: float
    count: int
    published: float | None
    published_std: float | None
    missing: Missing | None


@dataclass(frozen=True)
class Line:
    """One combination of labels and its entries by column."""

    labels: Labels
    entries: Mapping[str, Entry]


def published(artifact: Artifact) -> list[Printed]:
    """What the paper prints, as packaged; empty where it prints no numbers.

    Example:
        >>> from lastlayer.papers import artifact
        >>> published(artifact("sln.table1"))[0].value
        91.81
    """
    if artifact.published is None:
        return []
    text = (files("lastlayer.papers") / "published" / artifact.published).read_text()
    return [
        Printed(
            {name: text for name, text in line.items() if name not in ("column", "value", "std")},
            line["column"],
            float(line["value"]),
            float(line["std"]) if line.get("std") else None,
        )
        for line in csv.DictReader(text.splitlines())
    ]


def lines(artifact: Artifact, observations: Observations) -> list[Line]:
    """The table: what was run at this size, in the order of the grid, then what only the paper has."""
    printed = published(artifact)
    used: set[int] = set()
    made = []
    for labels, columns in _combinations(artifact, observations):
        entries = {}
        for title, spec in columns.items():
            ours, missing = _ours(observations, labels, spec)
            match = next((p for p in printed if p.column == title and _agree(p.labels, labels)), None)
            if match is not None:
                used.add(id(match))
            entries[title] = _entry(ours, missing, match)
        made.append(Line(labels, entries))
    rest: dict[tuple[tuple[str, str], ...], dict[str, Entry]] = {}
    for number in printed:
        if id(number) not in used:
            rest.setdefault(tuple(number.labels.items()), {})[number.column] = _entry([], "not run", number)
    return [*made, *(Line(dict(labels), entries) for labels, entries in rest.items())]


def _combinations(artifact: Artifact, observations: Observations) -> Iterator[tuple[Labels, Mapping[str, str]]]:
    if artifact.compute is None:
        grid = artifact.grid(observations.size)
        yield from ((cell.labels, cell.columns) for cell in grid.cells)
        known = [dict(cell.labels) for cell in grid.cells]
    else:
        known = []
    for row in observations.rows:  # of a computation, or of an `observe` function
        if dict(row.labels) not in known:
            known.append(dict(row.labels))
            yield row.labels, artifact.columns


def _ours(observations: Observations, labels: Labels, spec: str) -> tuple[list[float], Missing]:
    """The values that are numbers, and what to say if there is none."""
    if not any(row.labels == labels for row in observations.rows):
        return [], "not run"
    try:
        rows = [row for row in observations.final(**labels) if row.labels == labels]
    except NotRunError:
        rows = []
    values = [read_spec(spec, row.values) for row in rows]
    return [value for value in values if not math.isnan(value)], "none" if rows else "no result"


def _entry(ours: list[float], missing: Missing, match: Printed | None) -> Entry:
    mean, std = spread(ours)
    value, deviation = (None, None) if match is None else (match.value, match.std)
    return Entry(mean, std, len(ours), value, deviation, None if ours else missing)


def _agree(printed: Labels, labels: Labels) -> bool:
    return all(labels.get(name) == value for name, value in printed.items() if value)
