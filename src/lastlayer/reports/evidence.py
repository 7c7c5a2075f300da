"""What runs show of one goal: the value of each run, and how far the finite test set lets these values vary.

A run keeps what it answered on every test row in `rows.safetensors`. Older runs lack this file. Of their accuracy it is
known how far a test set of that size can move it; of other measures nothing is known.

Tests: tests/reports/test_evidence.py.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastlayer.reports.collect import Run
from lastlayer.reports.decision import Noise, of_draws, of_rows, of_shares, over_folds
from lastlayer.reports.goals import RARE, Goal, KnownData
from lastlayer.reports.summary import Summary
from lastlayer.runs import DamagedFileError, RunFolder

WHOLE_FOLDS = 0.25  # test rows per training row, if a fifth is tested and the rest is trained on


@dataclass(frozen=True)
class Evidence:
    """The runs that are compared for one goal.

    Attributes:
        values: the goal's measure of each run.
        losses: the label of the group of each run.
        noise: of the test set.
        folds: the part of the data on which each run was tested, if not all were tested on the same rows.
        overlap: test rows per training row, if runs were tested on different folds; else 0.
        notes: what the reader should know, in sentences.
        problem: why nothing can be compared. Everything else is then empty.
    """

    values: tuple[float, ...] = ()
    losses: tuple[str, ...] = ()
    noise: Noise = field(default_factory=lambda: Noise(np.zeros((0, 0)), 0.0, 0))
    folds: tuple[Hashable, ...] | None = None
    overlap: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class _Tested:
    """One run of a group, with what it answered on the test rows; `rows` is None if it did not keep that."""

    run: Run
    label: str
    value: float
    rows: Mapping[str, NDArray[Any]] | None

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = (self.run.result or {}).get("data", {})
        return facts

    @functools.cached_property
    def part(self) -> Hashable:
        """Equal for runs that were tested on the same rows."""
        chosen = (self.run.trial.get("data", {}), self.facts.get("checksums", {}))
        return json.dumps(chosen, sort_keys=True, default=str)


class Rows:
    """What runs answered on the test rows, each file read once."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[Mapping[str, NDArray[Any]] | None, str]] = {}

    def of(self, run: Run) -> tuple[Mapping[str, NDArray[Any]] | None, str]:
        """The arrays of a run, or None and, if the file is damaged, what is wrong."""
        if run.path not in self._read:
            self._read[run.path] = self._load(run)
        return self._read[run.path]

    def _load(self, run: Run) -> tuple[Mapping[str, NDArray[Any]] | None, str]:
        if "rows.safetensors" not in (run.result or {}).get("files", {}):
            return None, ""
        try:
            return {name: one.numpy() for name, one in RunFolder(run.path).tensors("rows").items()}, ""
        except (DamagedFileError, OSError) as error:
            return None, str(error)


def evidence(goal: Goal, summary: Summary, rows: Rows) -> Evidence:
    """What the finished runs of a comparison show of a goal."""
    notes: list[str] = []
    compared = _compared(goal, summary, rows, notes)
    if not compared:
        return Evidence(problem=_why_nothing(goal, summary))
    if len({one.label for one in compared}) < 2:
        only = compared[0].label
        return Evidence(problem=" ".join([*notes, f"Only {only} is left, so there is nothing to compare it with."]))
    compared, folds = _on_the_same_folds(compared, notes)
    losses = tuple(one.label for one in compared)
    parts: dict[Hashable, list[int]] = {}
    for i, one in enumerate(compared):
        parts.setdefault(one.part, []).append(i)
    noises = {part: _noise(goal, [compared[i] for i in members]) for part, members in parts.items()}
    if any(noise is None for noise in noises.values()):
        if goal.name != "accuracy":
            return Evidence(problem=_too_old(goal, compared))
        for part, members in parts.items():
            size = int(compared[members[0]].facts["samples"]["test"])
            noises[part] = of_shares([compared[i].value for i in members], [losses[i] for i in members], size)
        notes.append(_about_old(compared))
    known = {part: noise for part, noise in noises.items() if noise is not None}
    noise = known[compared[0].part] if len(known) == 1 else over_folds(known, [one.part for one in compared])
    notes += _about_missing_classes(goal, compared)
    values = tuple(one.value for one in compared)
    return Evidence(values, losses, noise, folds, _overlap(compared) if folds else 0.0, tuple(notes))


def _compared(goal: Goal, summary: Summary, rows: Rows, notes: list[str]) -> list[_Tested]:
    """The runs of all groups for which the measure is defined with every seed. The others are named in the notes."""
    kept = []
    for group in summary.groups:
        if not group.done:
            notes.append(f"{group.label} has no finished run, so it is not compared.")
            continue
        values = {seed: _value(goal, run) for seed, run in group.done.items()}
        if all(value is None for value in values.values()):
            notes.append(f"{group.label} is left out: its {goal.noun} was not measured.")
        elif wrong := [seed for seed, value in values.items() if value is None or not math.isfinite(value)]:
            seeds = f"seed{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
            notes.append(f"{group.label} is left out: its {goal.noun} is undefined with {seeds}.")
        else:
            if group.incomplete:
                notes.append(f"Of {group.label} only {group.incomplete} runs are finished.")
            for seed, run in group.done.items():
                read, damage = rows.of(run)
                if damage:
                    notes.append(f"The answers of a run cannot be read: {damage}")
                value = values[seed]
                assert value is not None
                kept.append(_Tested(run, group.label, value, read))
    if not any(_value(goal, run) is not None for group in summary.groups for run in group.done.values()):
        return []
    return kept


def _value(goal: Goal, run: Run) -> float | None:
    value = (run.result or {}).get("measures", {}).get("test", {}).get(goal.measure)
    return None if value is None else float(value)


def nothing_finished(summary: Summary) -> str:
    """What to say if no run is finished."""
    if summary.problems and all(run.status == "failed" for run in summary.problems):
        return "All runs failed, so there is nothing to compare."
    return "No run is finished, so there is nothing to compare yet."


def _why_nothing(goal: Goal, summary: Summary) -> str:
    """Why no group can be compared."""
    results = summary.results
    if not results:
        return nothing_finished(summary)
    data = results[0].get("data", {})
    unknown = any("oscr" in result.get("measures", {}).get("test", {}) for result in results)
    known = KnownData.of_result(data)
    known = KnownData(known.counts, None if unknown else 0, known.largest)
    if why := goal.cannot(known):
        return why
    if any(_value(goal, run) is not None for group in summary.groups for run in group.done.values()):
        return f"For each loss the {goal.noun} is undefined with some seed, so there is nothing to compare."
    return (
        f"These runs do not hold {goal.noun}: they are older than this measure, or no test row is of a class that it "
        f"is about. To have it, delete their folders and run the command again."
    )


def _on_the_same_folds(compared: list[_Tested], notes: list[str]) -> tuple[list[_Tested], tuple[Hashable, ...] | None]:
    """The runs to compare, and the fold of each if losses were tested on the same several folds."""
    by_label: dict[str, Counter[Hashable]] = {}
    for one in compared:
        by_label.setdefault(one.label, Counter())[one.part] += 1
    if all(len(parts) == 1 for parts in by_label.values()):
        return compared, None
    common = functools.reduce(lambda a, b: a & b, by_label.values())
    if not common:
        return compared, None
    left, kept = {label: Counter(common) for label in by_label}, []
    for one in compared:
        if left[one.label][one.part]:
            left[one.label][one.part] -= 1
            kept.append(one)
    if len(kept) < len(compared):
        seeds = list(dict.fromkeys(one.run.seed for one in kept))
        notes.append(
            f"Each seed is tested on other rows, so only the seeds that every loss has finished are compared: "
            f"{', '.join(map(str, seeds))}."
        )
    return kept, tuple(one.part for one in kept) if len(common) > 1 else None


def _overlap(compared: Sequence[_Tested]) -> float:
    """Test rows per training row. If training rows of a fold are left out, no more than that of whole folds."""
    samples = [one.facts.get("samples", {}) for one in compared]
    shares = [each["test"] / each["train"] for each in samples if each.get("train") and each.get("test")]
    return min(WHOLE_FOLDS, max(shares, default=WHOLE_FOLDS))


def _noise(goal: Goal, runs: Sequence[_Tested]) -> Noise | None:
    """The noise of runs that were tested on the same rows; None if one of them did not keep what it answered."""
    rows = [one.rows for one in runs if one.rows is not None]
    if len(rows) < len(runs):
        return None
    losses = [one.label for one in runs]
    try:
        if goal.source == "draws":
            fewest = min(len(each[f"draw.{goal.measure}"]) for each in rows)
            draws = np.stack([each[f"draw.{goal.measure}"][:fewest] for each in rows])
            return of_draws(draws[:, np.isfinite(draws).all(0)], len(rows[0]["log_loss"]))
        if goal.source == "log_loss":
            return of_rows(np.stack([each["log_loss"] for each in rows]), losses, bounded=False)
        if goal.source == "unknown_right":
            return of_rows(np.stack([each["unknown_right"] for each in rows]), losses)
        target = rows[0]["target"]
        chosen = np.ones(len(target), bool)
        if goal.needs == "rare":
            chosen = np.asarray(runs[0].facts["counts"])[target] < RARE
        right = np.stack([each["decision"] == target for each in rows])[:, chosen]
        return of_rows(right, losses, target[chosen] if goal.by_class else None)
    except KeyError:
        return None


def _about_old(compared: Sequence[_Tested]) -> str:
    old = sum(one.rows is None for one in compared)
    which = "These runs do" if old == len(compared) else f"{old} of {len(compared)} runs do"
    return (
        f"{which} not hold what they answered on each test row, so the comparison is less sharp than it could be: it "
        f"takes the errors of two losses to be unrelated. To compare row by row, delete their folders and run the "
        f"command again."
    )


def _too_old(goal: Goal, compared: Sequence[_Tested]) -> str:
    old = [one for one in compared if one.rows is None]
    which = "these runs do" if len(old) in (0, len(compared)) else f"{len(old)} of {len(compared)} runs do"
    return (
        f"No difference in {goal.noun} can be judged: {which} not hold what they answered on each test row, so the "
        f"noise of the test set is not known. To have it, delete their folders and run the command again."
    )


def _about_missing_classes(goal: Goal, compared: Sequence[_Tested]) -> list[str]:
    """For a mean over classes: the classes without a test row."""
    first = compared[0]
    if not goal.by_class or first.rows is None:
        return []
    names = [str(name) for name in first.facts.get("class_names", [])]
    wanted = list(range(len(names)))
    if goal.needs == "rare":
        wanted = [k for k, count in enumerate(first.facts["counts"]) if count < RARE]
    present = {int(k) for one in compared if one.rows is not None for k in np.unique(one.rows["target"])}
    missing = [names[k] for k in wanted if k not in present]
    if not missing:
        return []
    shown = ", ".join(missing[:5]) + f" and {len(missing) - 5} more" * (len(missing) > 5)
    return [f"No test row is of class {shown}, so {goal.noun} is the mean over the other classes."]
