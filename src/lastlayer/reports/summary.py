"""Run folders as numbers: groups of runs that differ only in their seed, their labels, and a column for each measure.

Tests: tests/reports/test_summary.py.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastlayer.measures import MEASURES, Measure
from lastlayer.reports.collect import Run, RunSet, group_of
from lastlayer.reports.columns import SPLITS, Column, Split, TableCell
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
    """Runs that differ only in their seed and the fold that they are tested on."""

    label: str
    key: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def done(self) -> dict[int, Run]:
        """The finished runs by seed."""
        return {run.seed: run for run in self.runs if run.status == "done" and run.seed is not None}

    @property
    def incomplete(self) -> str:
        """How many runs are finished, such as "2 of 3"; empty if all are."""
        return f"{len(self.done)} of {len(self.runs)}" if len(self.done) < len(self.runs) else ""

    @property
    def trial(self) -> Mapping[str, Any]:
        """The settings without seed and fold, with the defaults that one of the runs has written down."""
        written = [run.trial for run in self.runs if run.trial and run.status != "missing"]
        return group_of(written[0] if written else self.key)


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
    goals: tuple[str, ...] = ()
    """What the comparison was asked for; empty if it does not say."""
    tuning: Mapping[str, Mapping[str, Any]] | None = None
    """What was tuned for each loss, as `lastlayer.runs.Comparison` says it; None if it is not known."""

    @property
    def finished(self) -> list[Group]:
        """The groups with a finished run."""
        return [group for group in self.groups if group.done]

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """What came out of each finished run."""
        return [run.result for group in self.groups for run in group.done.values() if run.result]

    @property
    def is_of_validation(self) -> bool:
        """Whether the finished runs were measured on validation samples alone, to choose settings by them."""
        return bool(self.results) and not any(result.get("measures", {}).get("test") for result in self.results)

    @property
    def seeds(self) -> int:
        """The number of finished seeds of the group that has most."""
        return max((len(group.done) for group in self.groups), default=0)

    @property
    def splits(self) -> list[Split]:
        """The splits on which something was measured."""
        return list(dict.fromkeys(column.split for column in self.columns))

    def column(self, split: Split, measure: str) -> Column | None:
        """The column of a measure on a split, if it was measured."""
        found = (one for one in self.columns if one.split == split and one.measure.name == measure)
        return next(found, None)

    def leading(self, split: Split, names: Sequence[str]) -> list[Column]:
        """The named columns that were measured, in the order of the names."""
        return [column for name in names if (column := self.column(split, name)) is not None]

    def problems_by_reason(self) -> list[tuple[str, str, str, str]]:
        """Status, label, seeds and reason of each run that is not done. Runs that differ only in their seed are one."""
        alike: dict[tuple[str, str, str], list[int]] = {}
        for run in self.problems:
            seeds = alike.setdefault((run.status, self.label_of(run), run.problem), [])
            if run.seed is not None:
                seeds.append(run.seed)
        told = []
        for (status, label, reason), seeds in alike.items():
            listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}" if seeds else ""
            told.append((status, label, listed, reason))
        return told

    def label_of(self, run: Run) -> str:
        """The label of the group that a run belongs to."""
        return next((group.label for group in self.groups if run in group.runs), "unknown")


def summarise(runs: RunSet) -> Summary:
    """Group runs that differ only in their seed and the fold that it is tested on, and tabulate the groups.

    Every measure that any finished run has becomes one column per split, and the time becomes one too. Groups keep the
    order of the comparison file; without one they are sorted by label.

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
    problems = tuple(run for run in runs.runs if run.status != "done")
    return Summary(
        runs.title or _title(groups),
        runs.command,
        groups,
        _columns(groups),
        runs.notes,
        problems,
        runs.goals,
        runs.tuning,
    )


def _grouped(runs: RunSet) -> tuple[Group, ...]:
    by_key: dict[str, list[Run]] = {}
    for run in runs.runs:
        if run.key:
            by_key.setdefault(json.dumps(run.key, sort_keys=True), []).append(run)
    parts = [part for group in by_key.values() for part in _by_fold(group)]
    keys = [key for key, _ in parts]
    members = (tuple(sorted(group, key=lambda run: run.seed or 0)) for _, group in parts)
    made = [Group(*each) for each in zip(labels_of(keys), keys, members, strict=True)]
    return tuple(made if runs.ordered else sorted(made, key=lambda group: group.label))


def _by_fold(group: list[Run]) -> list[tuple[Mapping[str, Any], list[Run]]]:
    """The group as one if each seed is tested on one fold; else, as for candidates of a search, a group per fold."""
    folds: dict[int | None, list[Run]] = {}
    for run in group:
        folds.setdefault(run.fold, []).append(run)
    seeds = [run.seed for run in group if run.status != "repeated"]
    key = group[0].key
    if len(folds) == 1 or len(set(seeds)) == len(seeds):
        return [(key, group)]
    return [({**key, "data": {**key["data"], "fold": fold}}, each) for fold, each in folds.items()]


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(str(group.trial.get("data", {}).get("name", "")) for group in groups))
    what = "loss" if all(group.label == group.trial.get("loss", {}).get("name") for group in groups) else "setting"
    plural = "" if len(groups) == 1 else "es" if what == "loss" else "s"
    return f"{len(groups)} {what}{plural} on {names[0]}" if names and names[0] else "Runs"


def _columns(groups: Sequence[Group]) -> tuple[Column, ...]:
    values: dict[tuple[Split, str], list[dict[int, float]]] = {}
    for position, group in enumerate(groups):
        for seed, run in group.done.items():
            for (split, name), value in _measured(run).items():
                cells = values.setdefault((split, name), [{} for _ in groups])
                cells[position][seed] = value
    known = {**MEASURES, SECONDS.name: SECONDS}
    return tuple(
        Column(split, measure, tuple(map(_cell, values[split, name])))
        for split in SPLITS
        for name, measure in known.items()
        if (split, name) in values
    )


def _measured(run: Run) -> dict[tuple[Split, str], float]:
    """Every number of a finished run."""
    result = run.result or {}
    found: dict[tuple[Split, str], float] = {}
    measures = result.get("measures", {})
    parts: dict[Split, Mapping[str, Any]] = {
        "test": measures.get("test", {}),
        "train": measures.get("train", {}),
        "validation": measures.get("validation", {}),
        "run": {"seconds": result["seconds"]} if "seconds" in result else {},
    }
    if best := result.get("best"):
        parts["best"] = best.get("test", {})
        parts["validation"] = {**parts["validation"], "accuracy": best["validation_accuracy"]}
    for split, values in parts.items():
        found |= {(split, name): float(value) for name, value in values.items() if value is not None}
    return found


def _cell(by_seed: dict[int, float]) -> TableCell:
    return TableCell(by_seed, *spread([value for value in by_seed.values() if math.isfinite(value)]))


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
                    if (value := column.cells[position].values.get(seed)) is not None:
                        where = [group.label, seed, run.status, column.split, column.measure.name]
                        writer.writerow([*where, repr(value), run.path])
        for run in summary.problems:
            writer.writerow([summary.label_of(run), run.seed, run.status, "", "", "", run.path])


def settings_of(trial: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's settings by dotted name. The options of a part stand beside its fields.

    Example:
        >>> settings_of({"loss": {"name": "sln", "options": {"gamma": 0.5}}, "batch_size": 64})
        {'loss.name': 'sln', 'loss.gamma': 0.5, 'batch_size': 64}
    """
    flat: dict[str, Any] = {}
    for name, value in trial.items():
        if not isinstance(value, Mapping):
            flat[name] = value
            continue
        options = value.get("options", {})
        fields = {inner: setting for inner, setting in value.items() if inner != "options"}
        flat |= {f"{name}.{inner}": setting for inner, setting in fields.items()}
        for option, chosen in options.items():
            flat[f"{name}.options.{option}" if option in fields else f"{name}.{option}"] = chosen
    return flat


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same for all, in the order in which they first appear."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({text_of(each[name]) if name in each else "" for each in settings}) > 1]


def text_of(value: object) -> str:
    """A setting's value as people write it.

    Example:
        >>> text_of(0.5), text_of("cosine"), text_of([0.5, 0.75]), text_of(None)
        ('0.5', 'cosine', '[0.5,0.75]', 'none')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)


def labels_of(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """A unique, readable label for each group: its loss and, if several groups have this loss, what sets them apart.

    Args:
        trials: one per group, all different, without seeds.

    Example:
        >>> ce = {"loss": {"name": "ce", "options": {}}}
        >>> labels_of([ce, *({"loss": {"name": "sln", "options": {"gamma": g}}} for g in (0.5, 0.7))])
        ['ce', 'sln gamma=0.5', 'sln gamma=0.7']
    """
    settings = [settings_of(trial) for trial in trials]
    names = [str(each.get("loss.name", "unknown")) for each in settings]
    labels = []
    for name, own in zip(names, settings, strict=True):
        rivals = differing([each for other, each in zip(names, settings, strict=True) if other == name])
        short = _short_names(rivals)
        labels.append(" ".join([name, *(f"{short[key]}={text_of(own[key])}" for key in rivals if key in own)]))
    return labels


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """model for model.name, and lr for optimiser.lr. Settings of the data, and names that would clash, stay whole."""
    short = {}
    for name in names:
        part, _, last = name.partition(".")
        short[name] = part if last == "name" else name if part == "data" else last or part
    counts = Counter(short.values())
    return {name: name if counts[text] > 1 else text for name, text in short.items()}
