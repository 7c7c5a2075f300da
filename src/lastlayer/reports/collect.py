"""Which runs a report is about: those of a root folder, of a comparison file, or of a list of run folders.

Runs that are not done are listed too. Tests: tests/reports/test_collect.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lastlayer.runs import DamagedFileError, RunState, is_run, look, read_comparison, run_folders
from lastlayer.runs.survey import State

ReportStatus = State | Literal["repeated"]


@dataclass(frozen=True)
class Run:
    """One run as a report sees it."""

    path: Path
    status: ReportStatus
    """The state of the run folder, or `repeated` if another run has the same trial."""
    trial: Mapping[str, Any]
    """As it was trained. If the folder does not say, as it was asked for. Empty if neither is known."""
    key: Mapping[str, Any]
    """What the run is grouped by: the trial as it was asked for, as `group_of` gives it."""
    result: Mapping[str, Any] | None = None
    """What came out, if the run is done."""
    problem: str = ""
    """If the run is not done: why, and what to do."""

    @property
    def seed(self) -> int | None:
        """The trial's seed; None if the trial cannot be read."""
        seed = self.trial.get("seed")
        return None if seed is None else int(seed)

    @property
    def fold(self) -> int | None:
        """The fold that the run is tested on; None if the data have a test set, or if the trial cannot be read."""
        data = self.trial.get("data")
        return data.get("fold") if isinstance(data, Mapping) else None


@dataclass(frozen=True)
class RunSet:
    """All runs that a report is about."""

    runs: tuple[Run, ...]
    title: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    """What the reader should know about the choice of runs."""
    ordered: bool = False
    """Whether the order of the runs means anything."""
    goals: tuple[str, ...] = ()
    """What the comparison was asked for; empty if it does not say."""
    tuning: Mapping[str, Mapping[str, Any]] | None = None
    """What was tuned for each loss, as `lastlayer.runs.Comparison` says it; None if it is not known."""


def load(where: str | Path | Iterable[str | Path], comparison: str | Path | None = None) -> RunSet:
    """Read the runs that a report is about.

    Args:
        where: a root folder, a comparison file or a run folder. A list of these takes all their runs. If a single root
            folder holds comparison files, the newest says which runs to take. If there is no such file, or if the
            newest names a single trial, which compares nothing, all runs of the folder are taken.
        comparison: the file of the comparison to take from a root folder, or its ID.

    Returns:
        The runs: those of a comparison in its order, others by name. A run that failed, was interrupted, is still
        running, was never started, or has a damaged file is among them, with its status and what to do.

    Raises:
        FileNotFoundError: if there is no such folder, or no run in one.
        DamagedFileError: if the comparison file was altered.
    """
    paths = [Path(where)] if isinstance(where, str | Path) else list(dict.fromkeys(map(Path, where)))
    if not paths:
        raise FileNotFoundError("no run folders were given")
    if len(paths) > 1:
        return RunSet(_without_repeats([run for path in paths for run in _runs_of(path)]))
    root = paths[0]
    if root.is_file():
        return _of_comparison(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    if comparison is not None:
        return _of_comparison(_find_comparison(root, comparison))
    files = sorted(root.glob("compare-*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    if files and not is_run(root):
        newest = _of_comparison(files[-1], others=len(files) - 1)
        if len(newest.runs) > 1 or not run_folders(root):
            return newest
    return RunSet(_without_repeats(_runs_of(root)))


def _runs_of(path: Path) -> list[Run]:
    """The runs that a path stands for."""
    if path.is_file():
        return list(_of_comparison(path).runs)
    if is_run(path) or not path.is_dir():
        return [_seen(look(path))]
    if folders := run_folders(path):
        return [_seen(look(folder)) for folder in folders]
    raise FileNotFoundError(
        f"{path} holds no runs: a run is a folder with a trial.json, as `lastlayer train` and `lastlayer compare` "
        f"leave them; give the folder that holds them"
    )


def _find_comparison(root: Path, name: str | Path) -> Path:
    for file in (Path(name), root / name, root / f"compare-{name}.json"):
        if file.is_file():
            return file
    known = ", ".join(file.name for file in sorted(root.glob("compare-*.json"))) or "none"
    raise FileNotFoundError(f"there is no comparison {name} in {root}; it holds {known}")


def _of_comparison(file: Path, others: int = 0) -> RunSet:
    try:
        found = read_comparison(file)
    except DamagedFileError as error:
        raise DamagedFileError(
            f"{error}; run the `lastlayer compare` command again, which skips what is done, or give the run folders"
        ) from error
    notes = []
    if others:
        notes.append(f"{file.name} is the newest of {others + 1} comparisons in {file.parent}.")
    known = {*found.trials, *_compared_elsewhere(file)}
    if strangers := sum(path.name not in known for path in run_folders(file.parent)):
        others_are = "1 other run in {} does" if strangers == 1 else f"{strangers} other runs in {{}} do"
        notes.append(f"{others_are.format(file.parent)} not belong to any comparison.")
    runs = [_seen(look(file.parent / identity, asked), asked) for identity, asked in found.trials.items()]
    return RunSet(
        _without_repeats(runs),
        found.title,
        found.command,
        tuple(notes),
        ordered=True,
        goals=found.goals,
        tuning=found.tuning,
    )


def _compared_elsewhere(file: Path) -> set[str]:
    """The trials of the other comparison files beside this one, such as the candidates of its tuning."""
    found: set[str] = set()
    for other in file.parent.glob("compare-*.json"):
        with contextlib.suppress(DamagedFileError, OSError):
            found.update(read_comparison(other).trials if other != file else ())
    return found


def _seen(run: RunState, asked: Mapping[str, Any] | None = None) -> Run:
    return Run(run.path, run.state, run.trial, group_of(asked or run.trial), run.result, _problem(run))


def group_of(trial: Mapping[str, Any]) -> dict[str, Any]:
    """A trial as plain content without its seed and its fold: runs that differ in nothing else are one group.

    Example:
        >>> group_of({"loss": {"name": "ce"}, "data": {"name": "digits", "fold": 2}, "seed": 2})
        {'loss': {'name': 'ce'}, 'data': {'name': 'digits'}}
    """
    kept = {name: value for name, value in trial.items() if name != "seed"}
    if isinstance(kept.get("data"), Mapping):
        kept["data"] = {name: value for name, value in kept["data"].items() if name != "fold"}
    return kept


def _problem(run: RunState) -> str:
    """Why a run is not done, and what to do."""
    reached = "before its first epoch" if run.epoch is None else f"after epoch {run.epoch}"
    reason = (run.reason or "no reason was written down").rstrip(".")
    return {
        "done": "",
        "damaged": run.reason,
        "failed": f"{reason}. Use --retry-failed to train it again.",
        "running": f"another process is training it, {reached}.",
        "interrupted": f"stopped {reached}; run the command again to resume it.",
        "missing": f"never started: there is no run in {run.path}; run the command again to train it.",
    }[run.state]


def _without_repeats(runs: list[Run]) -> tuple[Run, ...]:
    """If a trial lies in two folders, it counts once. The second folder is listed as a repeat of the first."""
    kept: dict[Path, Run] = {}
    for run in sorted(runs, key=lambda run: run.status != "done"):
        twins = (other for other in kept.values() if run.trial and (other.trial, other.key) == (run.trial, run.key))
        if (twin := next(twins, None)) and twin.path != run.path:
            run = replace(run, status="repeated", result=None, problem=f"the same trial as {twin.path}")
        kept.setdefault(run.path, run)
    return tuple(kept[path] for path in dict.fromkeys(run.path for run in runs))
