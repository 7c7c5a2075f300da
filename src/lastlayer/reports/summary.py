"""Run folders as numbers: groups of runs that differ only in their seed, and for each measure a column.

Tests: tests/reports/test_summary.py.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastlayer.measures import MEASURES, Measure
from lastlayer.reports.collect import Run, RunSet
from lastlayer.reports.columns import SPLITS, Column, Split, TableCell, compared
from lastlayer.reports.labels import labels_of
from lastlayer.reports.statistics import spread

# Trials that share a machine slow each other down: a shorter time is not a better one.
SECONDS = Measure("seconds", "seconds", "wall-clock time of training and measuring", None, (), "", ".1f")

DECISIONS = (
    "accuracy", "auprc", "precision_at_90", "precision_at_99", "violation_rate", "ece",
    "auroc", "oscr", "many", "medium", "few",
)  # fmt: skip
"""What matters about the decisions, measured on test."""
FEATURES = ("nc1", "nc2", "nc3", "compactness", "separability", "intra_inter_ratio")
"""What matters about the features, measured on train, where a collapse happens."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    key: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def done(self) -> dict[int, Run]:
        """The finished runs by seed."""
        return {run.seed: run for run in self.runs if run.status == "done" and run.seed is not None}

    @property
    def trial(self) -> Mapping[str, Any]:
        """The settings; defaults are written out if one of the runs has them."""
        written = [run.trial for run in self.runs if run.trial and run.status != "missing"]
        chosen = written[0] if written else self.key
        return {name: value for name, value in chosen.items() if name != "seed"}


@dataclass(frozen=True)
class Summary:
    """A comparison as numbers."""

    title: str
    command: str
    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    """By split, then in the order of the registry."""
    notes: tuple[str, ...] = ()
    problems: tuple[Run, ...] = ()
    """Every run that is not done, with the reason and what to do."""

    @property
    def seeds(self) -> int:
        """The number of finished seeds of the group that has most."""
        return max((len(group.done) for group in self.groups), default=0)

    @property
    def splits(self) -> list[Split]:
        """Those on which something was measured."""
        return list(dict.fromkeys(column.split for column in self.columns))

    def column(self, split: Split, measure: str) -> Column | None:
        """The column of a measure on a split, if it was measured."""
        found = (one for one in self.columns if one.split == split and one.measure.name == measure)
        return next(found, None)

    def leading(self, split: Split, names: Sequence[str]) -> list[Column]:
        """Those of the named columns that were measured: accuracy, then what differs, then what ties.

        If accuracies tie, a reader first wants to see what does not. Within each part the order is that of `names`.
        """
        found = [column for name in names if (column := self.column(split, name)) is not None]
        return sorted(found, key=lambda column: (column.measure.name != "accuracy", not column.differs))

    def problems_by_reason(self) -> list[tuple[str, str, str, str]]:
        """Status, label, seeds and reason of the runs that are not done; runs that differ only in their seed as one."""
        alike: dict[tuple[str, str, str], list[int]] = {}
        for run in self.problems:
            seeds = alike.setdefault((run.status, self.label_of(run), run.problem), [])
            if run.seed is not None:
                seeds.append(run.seed)
        return [
            (
                status,
                label,
                f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}" if seeds else "",
                reason,
            )
            for (status, label, reason), seeds in alike.items()
        ]

    def label_of(self, run: Run) -> str:
        """The label of the group that a run belongs to."""
        return next((group.label for group in self.groups if run in group.runs), "unknown")


def summarise(runs: RunSet) -> Summary:
    """Group runs that differ only in their seed and compare the groups, measure by measure.

    Every measure that any finished run has becomes one column per split, and the time becomes one too. The best group
    of a column has the best mean. Each other group is within noise of it or behind it, by the rules in
    `lastlayer.reports.statistics`. The best is called a winner only if it shares five or more seeds with every other
    group and all of them are behind it. A group is not compared in a column in which one of its values is NaN or
    infinite. Groups keep the order of the comparison file; without one they are sorted by label.

    Args:
        runs: as `load` gives them.

    Raises:
        ValueError: if the runs are of different data sets, because no table can compare them.
    """
    groups = _grouped(runs)
    names = {str(run.trial["data"].get("name", "")) for run in runs.runs if isinstance(run.trial.get("data"), Mapping)}
    if len(names) > 1:
        raise ValueError(
            f"the runs are of {len(names)} data sets, {', '.join(sorted(names))}, and cannot be compared: "
            f"give the run folders of one, or a comparison file"
        )
    columns = tuple(_columns(groups))
    problems = tuple(run for run in runs.runs if run.status != "done")
    return Summary(runs.title or _title(groups), runs.command, groups, columns, runs.notes, problems)


def _grouped(runs: RunSet) -> tuple[Group, ...]:
    by_key: dict[str, list[Run]] = {}
    for run in runs.runs:
        if run.key:
            by_key.setdefault(json.dumps(run.key, sort_keys=True), []).append(run)
    members = [tuple(sorted(group, key=lambda run: run.seed or 0)) for group in by_key.values()]
    keys = [group[0].key for group in members]
    labels = labels_of(keys)
    made = [Group(*parts) for parts in zip(labels, keys, members, strict=True)]
    return tuple(made if runs.ordered else sorted(made, key=lambda group: group.label))


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(str(group.trial.get("data", {}).get("name", "")) for group in groups))
    what = "loss" if all(group.label == group.trial.get("loss", {}).get("name") for group in groups) else "setting"
    plural = "" if len(groups) == 1 else "es" if what == "loss" else "s"
    return f"{len(groups)} {what}{plural} on {names[0]}" if names and names[0] else "Runs"


def _columns(groups: Sequence[Group]) -> list[Column]:
    values: dict[tuple[Split, str], list[dict[int, float]]] = {}
    for position, group in enumerate(groups):
        for seed, run in group.done.items():
            for (split, name), value in _measured(run).items():
                cells = values.setdefault((split, name), [{} for _ in groups])
                cells[position][seed] = value
    known = {**MEASURES, SECONDS.name: SECONDS}
    order = [(split, name) for split in SPLITS for name in known if (split, name) in values]
    return [compared(Column(split, known[name], _cells(values[split, name]))) for split, name in order]


def _measured(run: Run) -> dict[tuple[Split, str], float]:
    """Every number of a finished run."""
    result = run.result or {}
    found: dict[tuple[Split, str], float] = {}
    parts: dict[Split, Mapping[str, Any]] = {
        "test": result.get("measures", {}).get("test", {}),
        "train": result.get("measures", {}).get("train", {}),
        "run": {"seconds": result["seconds"]} if "seconds" in result else {},
    }
    if best := result.get("best"):
        parts["best"] = best.get("test", {})
        parts["validation"] = {"accuracy": best["validation_accuracy"]}
    for split, measures in parts.items():
        found |= {(split, name): float(value) for name, value in measures.items() if value is not None}
    return found


def _cells(values: Sequence[Mapping[int, float]]) -> tuple[TableCell, ...]:
    made = []
    for by_seed in values:
        mean, std = spread([value for value in by_seed.values() if math.isfinite(value)])
        made.append(TableCell(dict(by_seed), mean, std))
    return tuple(made)


def write_csv(summary: Summary, path: str | Path) -> None:
    """Write every value of every finished run, one per line: group, seed, split, measure, value, folder.

    Every run that is not done has a line without a value.
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "seed", "status", "split", "measure", "value", "run"])
        for position, group in enumerate(summary.groups):
            for seed, run in group.done.items():
                for column in summary.columns:
                    if seed in column.cells[position].values:
                        value = repr(column.cells[position].values[seed])
                        name = column.measure.name
                        writer.writerow([group.label, seed, run.status, column.split, name, value, run.path])
        for run in summary.problems:
            writer.writerow([summary.label_of(run), run.seed, run.status, "", "", "", run.path])
