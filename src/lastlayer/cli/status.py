"""`lastlayer status RUNS`: what is done, running, failed, interrupted and missing. Tests: tests/cli/test_status.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._stop import stop

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PARTS = ("data", "model", "head", "loss")
_UNBOUNDED = 1_000_000
ORDER = ("done", "running", "interrupted", "failed", "missing", "damaged")


def status(
    root: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show every run in a folder and every trial of its comparisons that has none yet.

    A run is done, running, interrupted (it goes on when its command is run again), failed (with the reason), missing
    (asked for by a comparison and not begun) or damaged (a file of it is not what was written, or is cut short).
    Weights of the right length are not read here: whatever loads them compares their checksum.

    JSON: {"root", "counts": {status: number}, "runs": [{"identity", "status", "data", "model", "head", "loss", "seed",
    "epoch", "epochs", "reason", "comparisons"}], "comparisons": [{"file", "title", "command", "counts"}]}.
    """
    if not root.is_dir():
        stop("status", f"{root}: no such folder; `lastlayer compare` makes one")
    found = survey(root)
    if as_json:
        typer.echo(json.dumps({"root": str(root), **found}, indent=2))
        return
    if not found["runs"] and not found["comparisons"]:
        stop("status", f"{root} holds no runs and no comparisons")
    _print(root, found)


def survey(root: Path) -> dict[str, Any]:
    """Runs, comparisons and counts of a folder, as plain values."""
    from lastlayer._core.files import DamagedFileError, read_json

    runs = {folder.name: _run(folder, None) for folder in sorted(root.iterdir()) if _is_run(folder)}
    comparisons: list[dict[str, Any]] = []
    for file in sorted(root.glob("compare-*.json")):
        try:
            content = read_json(file)
            trials = {str(trial["identity"]): trial["trial"] for trial in content["trials"]}
        except (DamagedFileError, KeyError, TypeError) as error:
            comparisons.append({"file": file.name, "title": None, "command": None, "counts": {}, "damaged": str(error)})
            continue
        for identity, trial in trials.items():
            run = runs.setdefault(identity, _run(root / identity, trial))
            run["comparisons"].append(file.name)
        counts = _count(runs[identity] for identity in trials)
        title, command = content.get("title"), content.get("command")
        comparisons.append({"file": file.name, "title": title, "command": command, "counts": counts})
    return {"counts": _count(runs.values()), "runs": list(runs.values()), "comparisons": comparisons}


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run's; with a lock alone, a process has only just begun it."""
    from lastlayer.runs.folder import is_run

    return is_run(folder) or (folder / "lock").exists()


def _run(folder: Path, asked: dict[str, Any] | None) -> dict[str, Any]:
    from lastlayer._core.files import describe_damage
    from lastlayer.runs import DamagedFileError, RunFolder

    run = RunFolder(folder)
    state: str = run.status
    reason = epoch = None
    trial = asked or {}
    try:
        if (folder / "trial.json").exists():
            trial = run.trial()
        if state == "failed":
            reason = run.failure().get("error")
        if state == "done":
            trial = run.result()["trial"]
            run.check_lengths()
        lines = run.metrics()
        epoch = lines[-1]["epoch"] if lines else None
    except (DamagedFileError, KeyError, OSError) as error:
        state, reason = "damaged", describe_damage(folder, error)
    described = {part: _options(trial.get(part, {})) for part in PARTS}
    return {
        "identity": folder.name,
        "status": state,
        **described,
        "seed": trial.get("seed"),
        "epoch": epoch,
        "epochs": trial.get("schedule", {}).get("epochs"),
        "reason": reason,
        "comparisons": [],
    }


def _options(part: dict[str, Any]) -> str:
    """A part of a trial in one word and the options that were given: "sln gamma=0.5"."""
    options = part.get("options", {})
    return " ".join([str(part.get("name", "")), *(f"{name}={value}" for name, value in options.items())])


def _count(runs: Any) -> dict[str, int]:
    counts = Counter(run["status"] for run in runs)
    return {name: counts[name] for name in ORDER if counts[name]}


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "nothing"


def _print(root: Path, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    _print_runs(console, sorted(found["runs"], key=_place))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for run in found["runs"]:
        if run["reason"]:
            by_reason.setdefault((run["status"], run["reason"]), []).append(run["identity"])
    for (state, reason), runs in by_reason.items():
        console.print(f"\n{' '.join(runs)} {state}: {escape(reason)}", soft_wrap=True, highlight=False)
    for comparison in found["comparisons"]:
        told = comparison.get("damaged") or _words(comparison["counts"])
        console.print(
            f"\n{escape(comparison['title'] or comparison['file'])}: {escape(told)}", soft_wrap=True, highlight=False
        )
        unfinished = set(comparison["counts"]) - {"done"}
        if unfinished and comparison["command"]:
            again = " (--retry-failed for what failed)" if "failed" in unfinished else ""
            console.print(f"  continue{again}: {escape(comparison['command'])}", soft_wrap=True, highlight=False)
    console.print(f"\n{root}: {_words(found['counts'])}", soft_wrap=True, highlight=False)


def _print_runs(console: Console, runs: list[dict[str, Any]]) -> None:
    """The table of the runs, nothing of it cut.

    Where it is wider than the terminal, what all runs have in common is said once above it; where it is still wider,
    what tells them apart stands in one column, broken over lines.
    """
    shared = [name for name in PARTS if len({run[name] for run in runs}) == 1]
    others = [name for name in PARTS if name not in shared]
    wide, narrower, narrowest = [[name] for name in PARTS], [[name] for name in others], [others] if others else []
    if not console.is_terminal:  # a file has no width
        console.width = max(console.width, _width(console, _table(runs, wide)))
    groups = next((one for one in (wide, narrower) if _width(console, _table(runs, one)) <= console.width), narrowest)
    if groups is not wide and shared:
        said = ", ".join(f"{name} {runs[0][name]}" for name in shared)
        console.print(f"all with {said}", markup=False, highlight=False)
    console.print(_table(runs, groups))


def _table(runs: list[dict[str, Any]], groups: list[list[str]]) -> Table:
    """A line for each run; parts of a trial that are grouped share a column."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("run", "status", "epoch"):
        table.add_column(name, no_wrap=True)
    for group in groups:
        table.add_column(", ".join(group), overflow="fold")
    table.add_column("seed", no_wrap=True)
    for run in runs:
        epoch = "" if run["epoch"] is None and run["epochs"] is None else f"{run['epoch'] or 0}/{run['epochs']}"
        parts = (Text(", ".join(run[name] for name in group)) for group in groups)
        table.add_row(run["identity"], run["status"], epoch, *parts, str(run["seed"]))
    return table


def _width(console: Console, table: Table) -> int:
    """Of a table that nothing is cut from."""
    return console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum


def _place(run: dict[str, Any]) -> tuple[Any, ...]:
    """Where a run stands in the table: by status, then by what was trained."""
    parts = (run[name] for name in PARTS)
    return (ORDER.index(run["status"]), *parts, -1 if run["seed"] is None else run["seed"])
