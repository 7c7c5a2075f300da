"""The state of every run in a folder. `lastlayer status` and the reports both read this.

A comparison file, `compare-ID.json` in a folder of runs, holds {"title", "command", "trials": [{"identity", "trial"}],
"goals", "tuning"}. The run of each trial is the folder of that identity beside the file. It need not exist. Files
written before there were goals and tuning lack these two.

Tests: tests/runs/test_survey.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lastlayer._core.files import DamagedFileError, describe_damage, read_json, write_json
from lastlayer.runs.folder import RunFolder, Status, is_run

State = Status | Literal["damaged"]


@dataclass(frozen=True)
class RunState:
    """What one run folder says.

    Attributes:
        path: the folder; it need not exist.
        state: the folder's status, or damaged if a file was altered or cannot be read.
        trial: the trial as it was trained, or else as it was asked for, or else empty.
        result: what came out, if the run is done.
        epoch: the last finished epoch; None before the first.
        reason: why the run failed, or what is damaged and what to do about it.
    """

    path: Path
    state: State
    trial: Mapping[str, Any]
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    epoch: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """A comparison file.

    Attributes:
        file: where it lies.
        title: of the comparison.
        command: what was typed.
        trials: every trial that was asked for, by its identity. A setting that was tuned is None here, so that the
            trials of a loss are equal but for their seed and fold; the run folder has the value that was chosen.
        goals: names of the goals that were asked for; empty if none were.
        tuning: what was tuned, by the label that a report gives the loss; None if the file does not say. Each entry
            holds:
            - lr, weight_decay: lists of the values trained with, one per choice. There is one choice for all seeds, or
              one per fold if each seed tests on another fold.
            - tuned: which of the two were searched, as ["lr", "weight_decay"]; empty if the loss was not tuned.
            - tried: how many settings were tried for each choice; 0 if the loss was not tuned.
            - edge: whether a chosen value lies at the edge of what was tried.
            - over: what was tried and on which rows, as words that follow "tuned over".
            - why_not: why the loss was not tuned, as words that follow "not tuned: "; empty if it was.
        damage: why the file cannot be read. Everything else is then empty.
    """

    file: Path
    title: str = ""
    command: str = ""
    trials: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    goals: tuple[str, ...] = ()
    tuning: Mapping[str, Mapping[str, Any]] | None = None
    damage: str = ""


@dataclass(frozen=True)
class Survey:
    """Every run and every comparison of a folder. Runs that were asked for but never begun come last."""

    runs: tuple[RunState, ...]
    comparisons: tuple[Comparison, ...]


def survey(root: Path) -> Survey:
    """Look at every run folder in `root` and at every trial of its comparisons, with `look(..., thorough=True)`."""
    runs = {
        folder.name: look(folder, thorough=True)
        for folder in sorted(root.iterdir())
        if is_run(folder) or (folder / "lock").exists()  # if there is only a lock, a process has just begun the run
    }
    comparisons = []
    for file in sorted(root.glob("compare-*.json")):
        try:
            comparison = read_comparison(file)
        except DamagedFileError as error:
            comparison = Comparison(file, damage=str(error))
        comparisons.append(comparison)
        for identity, trial in comparison.trials.items():
            if identity not in runs:
                runs[identity] = look(root / identity, trial, thorough=True)
    return Survey(tuple(runs.values()), tuple(comparisons))


def run_folders(root: Path) -> list[Path]:
    """The folders in `root` that hold a run, by name."""
    return sorted(path for path in root.iterdir() if is_run(path))


def look(path: Path, asked: Mapping[str, Any] | None = None, *, thorough: bool = False) -> RunState:
    """The state of one run folder.

    Args:
        path: the folder; it need not exist.
        asked: the trial as it was asked for, in case the folder does not say.
        thorough: of a finished run, also read trial.json and check that weights and snapshots are not cut short.
            Checksums of weights are compared only when they are loaded.
    """
    folder = RunFolder(path)
    state: State = folder.status
    trial: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    epoch, reason = None, ""
    try:
        if (path / "trial.json").exists() and (thorough or state != "done"):
            trial = folder.trial()
        if state == "done":
            result = folder.result()
            trial = result["trial"]
            if thorough:
                folder.check_lengths()
        elif state == "failed":
            reason = str(folder.failure().get("error", ""))
        lines = folder.metrics() if result is None else result.get("history")
        epoch = lines[-1]["epoch"] if lines else None
    except (DamagedFileError, KeyError, OSError) as error:
        state, result, reason = "damaged", None, describe_damage(path, error)
        with contextlib.suppress(DamagedFileError, OSError):
            trial = trial or folder.trial()
    return RunState(path, state, trial or asked or {}, result, epoch, reason)


def read_comparison(file: Path) -> Comparison:
    """Read a comparison file.

    Raises:
        DamagedFileError: if the file was altered, or is not a comparison file.
    """
    try:
        content = read_json(file)
        trials = {str(entry["identity"]): dict(entry["trial"]) for entry in content["trials"]}
        goals = tuple(str(goal) for goal in content.get("goals", ()))
        tuning = {label: dict(entry) for label, entry in content["tuning"].items()} if "tuning" in content else None
    except DamagedFileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{file} is no comparison file: {error!r}") from error
    return Comparison(file, str(content.get("title") or ""), str(content.get("command") or ""), trials, goals, tuning)


def write_comparison(comparison: Comparison) -> None:
    """Write a comparison file."""
    trials = [{"identity": identity, "trial": trial} for identity, trial in comparison.trials.items()]
    content: dict[str, Any] = {"title": comparison.title, "trials": trials, "command": comparison.command}
    content |= {"goals": list(comparison.goals)} if comparison.goals else {}
    content |= {} if comparison.tuning is None else {"tuning": {k: dict(v) for k, v in comparison.tuning.items()}}
    write_json(comparison.file, content)
