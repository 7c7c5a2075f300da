"""Our numbers beside the published ones, a line for each combination of labels and a pair for each column."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from lastlayer.papers.engine.artifact import FOLDER, Artifact, GridCell, Labels
from lastlayer.papers.engine.store import NotRunError, Observations, read_spec
from lastlayer.reports.statistics import spread

AVERAGE = "Average"  # the label of a mean over an axis, as printed
Missing = Literal["not run", "no result", "none"]


@dataclass(frozen=True)
class Printed:
    """One number of the paper."""

    labels: Labels
    column: str
    value: float
    std: float | None

    def is_at(self, labels: Labels) -> bool:
        """Whether the paper prints it for these labels. It may print fewer, or leave some empty."""
        return all(labels.get(name) == value for name, value in self.labels.items() if value)


@dataclass(frozen=True)
class Pair:
    """One place of the table: ours (NaN without a number) and what the paper prints (None where it prints nothing).

    If ours has no number, `missing` says why: "not run"; "no result", because the runs failed or learned nothing; or
    "none", because the number is undefined, such as the accuracy in a group without classes.
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
    entries: Mapping[str, Pair]


def published(artifact: Artifact) -> list[Printed]:
    """What the paper prints, as packaged; empty where it prints no numbers.

    Example:
        >>> from lastlayer.papers import artifact
        >>> published(artifact("sln.table1"))[0].value
        91.81
    """
    if artifact.published is None:
        return []
    text = (FOLDER / artifact.paper / "published" / artifact.published).read_text()
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
    """The table: what was run at this size, in the order of the grid, averages, then what only the paper has."""
    printed = published(artifact)
    used: set[int] = set()
    made = []
    for labels, found in (*_observed(artifact, observations), *_averages(artifact, observations)):
        entries = {}
        for title, ours in found.items():
            match = next((p for p in printed if p.column == title and p.is_at(labels)), None)
            if match is not None:
                used.add(id(match))
            entries[title] = _entry(ours, match)
        made.append(Line(labels, entries))
    rest: dict[tuple[tuple[str, str], ...], dict[str, Pair]] = {}
    for number in printed:
        if id(number) not in used:
            rest.setdefault(tuple(number.labels.items()), {})[number.column] = _entry(_Ours({}, "not run"), number)
    return [*made, *(Line(dict(labels), entries) for labels, entries in rest.items())]


@dataclass(frozen=True)
class _Ours:
    """The values that are numbers, by seed, and what to say if there is none."""

    values: Mapping[int, float]
    missing: Missing


def _observed(artifact: Artifact, observations: Observations) -> Iterator[tuple[Labels, dict[str, _Ours]]]:
    cells = artifact.grid(observations.size).cells
    places = {frozenset(cell.labels.items()): (cell.labels, cell.columns) for cell in cells}
    for row in observations.rows:  # of a computation, or of an `observe` function
        places.setdefault(frozenset(row.labels.items()), (row.labels, artifact.columns))
    for labels, columns in places.values():
        yield labels, {title: _ours(observations, labels, spec) for title, spec in columns.items()}


def _averages(artifact: Artifact, observations: Observations) -> Iterator[tuple[Labels, dict[str, _Ours]]]:
    """The mean over all points of the axis that the paper averages over; none where the grid has only some of them."""
    axis = artifact.average
    if axis is None:
        return
    groups: dict[tuple[tuple[str, str], ...], list[GridCell]] = {}
    for cell in artifact.grid(observations.size).cells:
        groups.setdefault(tuple({**cell.labels, axis: AVERAGE}.items()), []).append(cell)
    for labels, cells in groups.items():
        if len(cells) < len(artifact.axes[axis]):
            continue
        yield dict(labels), {
            title: _mean([_ours(observations, cell.labels, cell.columns[title]) for cell in cells])
            for title in artifact.columns
        }  # fmt: skip


def _mean(parts: Sequence[_Ours]) -> _Ours:
    """By seed, of the seeds that every part has a number of."""
    seeds = set.intersection(*(set(part.values) for part in parts))
    values = {seed: fmean(part.values[seed] for part in parts) for seed in sorted(seeds)}
    absent = {part.missing for part in parts if not part.values} or {"not run"}  # no seed has all
    reasons: tuple[Missing, ...] = ("not run", "no result", "none")
    return _Ours(values, next(reason for reason in reasons if reason in absent))


def _ours(observations: Observations, labels: Labels, spec: str) -> _Ours:
    if not any(row.labels == labels for row in observations.rows):
        return _Ours({}, "not run")
    try:
        rows = [row for row in observations.final(**labels) if row.labels == labels]
    except NotRunError:
        rows = []
    values = {row.seed: read_spec(spec, row.values) for row in rows}
    kept = {seed: value for seed, value in values.items() if not math.isnan(value)}
    return _Ours(kept, "none" if rows else "no result")


def _entry(ours: _Ours, match: Printed | None) -> Pair:
    mean, std = spread(list(ours.values.values()))
    value, deviation = (None, None) if match is None else (match.value, match.std)
    return Pair(mean, std, len(ours.values), value, deviation, None if ours.values else ours.missing)
