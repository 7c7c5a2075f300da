"""`lastlayer status RUNS`: what is done, running, failed, interrupted and missing. Tests: tests/cli/test_status.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._say import stop

if TYPE_CHECKING:
    from rich.console import Console

    from lastlayer.reports.text import PrintedColumn
    from lastlayer.runs import Survey

PARTS = ("data", "model", "head", "loss")
ORDER = ("done", "running", "interrupted", "failed", "missing", "damaged")


def status(
    root: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show every run in a folder, and every trial of its comparisons that has no run yet.

    A run is done; running; interrupted (it continues when its command is run again); failed (with the reason); missing
    (a comparison asked for it, and it was not begun); or damaged (one of its files was altered or is cut short).
    Only the length of weights is checked here: whatever loads them compares their checksum.

    JSON: {"root", "counts": {status: number}, "runs": [{"identity", "status", "data", "model", "head", "loss", "seed",
    "epoch", "epochs", "reason", "comparisons"}], "comparisons": [{"file", "title", "command", "counts"}]}.
    """
    if not root.is_dir():
        stop("status", f"{root}: no such folder; `lastlayer compare` makes one")
    from lastlayer.runs import survey

    found = described(survey(root))
    if as_json:
        typer.echo(json.dumps({"root": str(root), **found}, indent=2))
    elif found["runs"] or found["comparisons"]:
        _print(root, found)
    else:
        stop("status", f"{root} holds no runs and no comparisons")


def described(found: Survey) -> dict[str, Any]:
    """Counts, runs and comparisons of a folder as plain values."""
    states = {run.path.name: run.state for run in found.runs}
    comparisons: list[dict[str, Any]] = []
    for one in found.comparisons:
        counts = _count(states[identity] for identity in one.trials)
        damage = {"damaged": one.damage} if one.damage else {}
        told = {"file": one.file.name, "title": one.title or None, "command": one.command or None}
        comparisons.append({**told, "counts": counts, **damage})
    runs = [
        {
            "identity": run.path.name,
            "status": run.state,
            **{part: _in_words(run.trial.get(part, {})) for part in PARTS},
            "seed": run.trial.get("seed"),
            "epoch": run.epoch,
            "epochs": run.trial.get("schedule", {}).get("epochs"),
            "reason": run.reason or None,
            "comparisons": [one.file.name for one in found.comparisons if run.path.name in one.trials],
        }
        for run in found.runs
    ]
    return {"counts": _count(states.values()), "runs": runs, "comparisons": comparisons}


def _in_words(part: dict[str, Any]) -> str:
    """A part of a trial: its name and the options that were given, such as "sln gamma=0.5"."""
    options = [f"{name}={value}" for name, value in part.get("options", {}).items()]
    return " ".join([str(part.get("name", "")), *options])


def _count(states: Iterable[str]) -> dict[str, int]:
    counts = Counter(states)
    return {name: counts[name] for name in ORDER if counts[name]}


def _print(root: Path, found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    _print_runs(console, sorted(found["runs"], key=_place))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for run in found["runs"]:
        if run["reason"]:
            by_reason.setdefault((run["status"], run["reason"]), []).append(run["identity"])
    for (state, reason), runs in by_reason.items():
        say(f"\n{' '.join(runs)} {state}: {reason}")
    for comparison in found["comparisons"]:
        said = comparison.get("damaged") or _listed(comparison["counts"])
        say(f"\n{comparison['title'] or comparison['file']}: {said}")
        unfinished = set(comparison["counts"]) - {"done"}
        if unfinished and comparison["command"]:
            again = " (add --retry-failed to run again what failed)" if "failed" in unfinished else ""
            say(f"  continue{again}: {comparison['command']}")
    say(f"\n{root}: {_listed(found['counts'])}")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "nothing"


def _print_runs(console: Console, runs: list[dict[str, Any]]) -> None:
    """Print the table of the runs.

    If it is wider than the terminal, we print once above it what all runs have in common. If it is still wider, one
    column holds what tells them apart, broken over lines.
    """
    from lastlayer.reports.text import Layout, print_table

    shared = [name for name in PARTS if len({run[name] for run in runs}) == 1]
    others = [name for name in PARTS if name not in shared]
    columns = _columns(runs, [[name] for name in PARTS])
    if console.is_terminal and Layout().width(columns) > console.width:
        if shared:
            said = ", ".join(f"{name} {runs[0][name]}" for name in shared)
            console.print(f"all with {said}", markup=False, highlight=False)
        columns = _columns(runs, [[name] for name in others])
        if Layout().width(columns) > console.width:
            columns = _columns(runs, [others] if others else [])
    print_table(console, columns)


def _columns(runs: list[dict[str, Any]], groups: Sequence[Sequence[str]]) -> list[PrintedColumn]:
    """The columns of the table. Parts of a trial in the same group share a column."""
    from lastlayer.reports.text import PrintedColumn

    epochs = ["" if run["epoch"] is run["epochs"] is None else f"{run['epoch'] or 0}/{run['epochs']}" for run in runs]
    return [
        PrintedColumn("run", [run["identity"] for run in runs], whole=True),
        PrintedColumn("status", [run["status"] for run in runs], whole=True),
        PrintedColumn("epoch", epochs, whole=True),
        *(
            PrintedColumn(", ".join(group), [", ".join(run[name] for name in group) for run in runs])
            for group in groups
        ),
        PrintedColumn("seed", [str(run["seed"]) for run in runs], whole=True),
    ]


def _place(run: dict[str, Any]) -> tuple[Any, ...]:
    """Where a run stands in the table: by status, then by what was trained."""
    parts = (run[name] for name in PARTS)
    return (ORDER.index(run["status"]), *parts, -1 if run["seed"] is None else run["seed"])
