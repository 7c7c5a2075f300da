"""Which runs a report is about: a root folder, a comparison file or a list of run folders. No run is ever passed over.

A comparison file, `compare-ID.json` in a root folder, holds {"title", "command", "trials": [{"identity", "trial"}]};
the run of a trial is the folder of that identity beside it, whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lastlayer._core.files import describe_damage, read_json
from lastlayer.runs import DamagedFileError, RunFolder, Status
from lastlayer.runs.folder import is_run

ReportStatus = Status | Literal["damaged", "repeated"]


@dataclass(frozen=True)
class Run:
    """One run as a report sees it."""

    path: Path
    status: ReportStatus
    """As of the run folder; or damaged (a file of it was altered), or repeated (the same trial as another run)."""
    trial: Mapping[str, Any]
    """As it was trained; as it was asked for where the folder does not say; empty where nothing does."""
    key: Mapping[str, Any]
    """What the run is grouped by: the trial as it was asked for, without its seed."""
    result: Mapping[str, Any] | None = None
    """Of a run that is done."""
    problem: str = ""
    """Of any other: why, and what to do."""

    @property
    def seed(self) -> int | None:
        """The trial's seed; None where the trial cannot be read."""
        seed = self.trial.get("seed")
        return None if seed is None else int(seed)


@dataclass(frozen=True)
class RunSet:
    """Everything a report is about."""

    runs: tuple[Run, ...]
    title: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    """What the reader should know about the choice of runs."""
    ordered: bool = False
    """Whether the order of the runs means anything."""


def load(where: str | Path | Iterable[str | Path], comparison: str | Path | None = None) -> RunSet:
    """Read the runs that a report is about.

    Args:
        where: a root folder, a comparison file or a run folder, or a list of them, all of whose runs are taken. Of one
            root folder with comparison files in it the newest says which runs; all run folders in it are taken where
            there is none, or where the newest is of a single trial, which compares nothing.
        comparison: the file of the comparison to take from a root folder, or its ID.

    Returns:
        The runs: those of a comparison in its order, others by name. A run that failed, was cut, is still
        running, was never started, or has a damaged file is among them, with its status and what to do.

    Raises:
        FileNotFoundError: when there is no such folder, or no run in one.
        DamagedFileError: when the comparison file was altered.
    """
    if not isinstance(where, str | Path):
        paths = list(dict.fromkeys(Path(path) for path in where))
        if not paths:
            raise FileNotFoundError("no run folders were given")
        if len(paths) > 1:
            return RunSet(_without_repeats([run for path in paths for run in _of_one(path)]))
        where = paths[0]
    root = Path(where)
    if root.is_file():
        return _of_comparison(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    if comparison is not None:
        return _of_comparison(_find_comparison(root, comparison))
    if is_run(root):
        return RunSet((_read(root),))
    if files := sorted(root.glob("compare-*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name)):
        newest = _of_comparison(files[-1], others=len(files) - 1)
        if len(newest.runs) > 1:
            return newest
    folders = sorted(path for path in root.iterdir() if is_run(path))
    if not folders and not files:
        raise _without_runs(root)
    return RunSet(_without_repeats([_read(path) for path in folders])) if folders else newest


def _of_one(path: Path) -> list[Run]:
    """The runs that one of several given paths stands for."""
    if path.is_file():
        return list(_of_comparison(path).runs)
    if not is_run(path) and path.is_dir():
        folders = sorted(inner for inner in path.iterdir() if is_run(inner))
        if not folders:
            raise _without_runs(path)
        return [_read(inner) for inner in folders]
    return [_read(path)]


def _without_runs(root: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{root} holds no runs: a run is a folder with a trial.json, as `lastlayer train` and `lastlayer compare` "
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
        content = read_json(file)
        trials = [(str(entry["identity"]), dict(entry["trial"])) for entry in content["trials"]]
    except (DamagedFileError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{error if isinstance(error, DamagedFileError) else f'{file} is no comparison file: {error!r}'}; "
            f"run the `lastlayer compare` command again, which skips what is done, or give the run folders themselves"
        ) from error
    folders = {identity for identity, _ in trials}
    notes = []
    if others:
        notes.append(f"{file.name} is the newest of {others + 1} comparisons in {file.parent}.")
    if strangers := sum(is_run(path) and path.name not in folders for path in file.parent.iterdir()):
        others_are = "1 other run is" if strangers == 1 else f"{strangers} other runs are"
        notes.append(f"{others_are} in {file.parent}, no part of this comparison.")
    runs = [_read(file.parent / identity, asked) for identity, asked in trials]
    title, command = str(content.get("title", "")), str(content.get("command", ""))
    return RunSet(_without_repeats(runs), title, command, tuple(notes), ordered=True)


def _read(path: Path, asked: Mapping[str, Any] | None = None) -> Run:
    """A run folder, whatever state it is in."""
    folder = RunFolder(path)
    status: ReportStatus = folder.status
    trial: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    problem = ""
    try:
        if status == "done":
            result = folder.result()
            trial = result["trial"]
        elif status != "missing":
            trial = folder.trial()
            problem = _what_happened(folder, status)
        else:
            problem = f"never started: there is no run in {path}; run the command again to train it."
    except (DamagedFileError, OSError, KeyError) as error:
        status, result = "damaged", None
        problem = describe_damage(path, error)
        trial = trial or _readable_trial(folder)
    chosen = trial or asked or {}
    return Run(path, status, chosen, _without_seed(asked or chosen), result, problem)


def _what_happened(folder: RunFolder, status: str) -> str:
    lines = folder.metrics()
    reached = f"after epoch {lines[-1]['epoch']}" if lines else "before its first epoch"
    if status == "failed":
        reason = str(folder.failure().get("error", "no reason was written down")).rstrip(".")
        return f"{reason}. Use --retry-failed to train it again."
    if status == "running":
        return f"another process is training it, {reached}."
    return f"cut {reached}; run the command again to resume it."


def _readable_trial(folder: RunFolder) -> Mapping[str, Any] | None:
    try:
        return folder.trial()
    except (DamagedFileError, OSError):
        return None


def _without_seed(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trial.items() if name != "seed"}


def _without_repeats(runs: list[Run]) -> tuple[Run, ...]:
    """A trial that lies in two folders counts once; the second is listed as a repeat of the first."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: run.status != "done"):
        twin = next((other for other in kept if run.trial and other.trial == run.trial and other.key == run.key), None)
        if twin is None:
            kept.append(run)
        else:
            kept.append(Run(run.path, "repeated", run.trial, run.key, None, f"the same trial as {twin.path}"))
    order = {run.path: position for position, run in enumerate(runs)}
    return tuple(sorted(kept, key=lambda run: order[run.path]))
