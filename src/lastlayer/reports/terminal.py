"""A summary as tables in a terminal, or as plain text where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastlayer.reports.columns import SPLITS, Column
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary
from lastlayer.reports.verdict import rule, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MARKS = {"winner": "★", "best": "*", "within": "~"}
_STYLES = {"winner": "bold green", "best": "bold", "within": ""}
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}
_PLAIN_WIDTH = 120  # a pipe or a file has no width of its own


def print_tables(summary: Summary, *, everything: bool = False, console: Console | None = None) -> None:
    """Print the verdict, the tables, and every run that is not done.

    Two tables: what a loss decides (test) and what it does to the features (train); each is cut into several where it
    is wider than the terminal. Accuracy leads, then come the measures that differ, then, dim, those that tie. `*` marks
    the best, `~` what is within noise of it, `★` a winner.

    Args:
        everything: all measures on all splits, in the registry's order.
        console: where to print; standard output if not given, 120 columns wide where that is no terminal.
    """
    from rich.console import Console

    console = console or Console(soft_wrap=False)
    if not console.is_terminal and console.width < _PLAIN_WIDTH:
        console.width = _PLAIN_WIDTH
    console.print(summary.title, style="bold", markup=False, highlight=False)
    for sentence in verdict(summary):
        console.print(sentence, markup=False, highlight=False)
    if everything:
        for split in summary.splits:
            columns = [column for column in summary.columns if column.split == split]
            _print(console, summary, SPLITS[split].capitalize(), columns)
    else:
        time = [column for column in summary.columns if column.split == "run"]
        _print(console, summary, "What it decides (test)", [*summary.leading("test", DECISIONS), *time])
        _print(console, summary, "What it does to the features (train)", summary.leading("train", FEATURES))
    if summary.columns:
        console.print(f"\n* best   ~ within noise of it   ★ winner. {rule(summary)}", style="dim", highlight=False)
    print_problems(summary, console=console)


def print_problems(summary: Summary, *, console: Console | None = None) -> None:
    """Print every run that is not done, with why and what to do; nothing where all are."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    if summary.problems:
        total = sum(len(group.runs) for group in summary.groups)
        missing = f"{len(summary.problems)} of {max(total, len(summary.problems))} runs are not in the tables:"
        console.print(f"\n{missing}", style="bold yellow", highlight=False)
    for run in summary.problems:
        seed = "" if run.seed is None else f" seed {run.seed}"
        console.print(Text(f"  {run.status:<11} {summary.label_of(run)}{seed}: {run.problem}"), soft_wrap=True)
    for note in summary.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)


def _print(console: Console, summary: Summary, title: str, columns: Sequence[Column]) -> None:
    from rich.table import Table

    labels = [_with_count(summary, i) for i in range(len(summary.groups))]
    stub = max([len(label) for label in labels], default=0)
    # A narrow gap is worth it only where it saves a second part.
    fits = {gap: _fitting(columns, stub, console.width, len(labels), gap) for gap in (1, 2)}
    gap = 1 if len(fits[1]) < len(fits[2]) else 2
    for position, part in enumerate(fits[gap]):
        console.print(f"\n{title}{', continued' * (position > 0)}", style="bold", highlight=False)
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="")
        table.add_column("", no_wrap=True)
        for column in part:
            quiet = column.measure.direction is None or not column.differs
            table.add_column(_head(column), justify="right", no_wrap=True, style="dim" if quiet else "")
        for i, label in enumerate(labels):
            table.add_row(label, *(_cell(column, i) for column in part))
        console.print(table)


def _with_count(summary: Summary, group: int) -> str:
    """The label, and how many runs are behind it where some are missing."""
    own = summary.groups[group]
    done, all_runs = len(own.done), len(own.runs)
    return own.label if done == all_runs else f"{own.label} ({done} of {all_runs})"


def _head(column: Column) -> str:
    return f"{column.measure.title}{_ARROWS[column.measure.direction]}"


def _plain(column: Column, group: int) -> str:
    standing = column.cells[group].standing
    return f"{_MARKS.get(standing or '', '')}{column.text(group)}"


def _cell(column: Column, group: int) -> Text:
    from rich.text import Text

    return Text(_plain(column, group), style=_STYLES.get(column.cells[group].standing or "", ""))


def _fitting(columns: Sequence[Column], stub: int, width: int, groups: int, gap: int) -> list[list[Column]]:
    """Columns in as few parts as fit beside the labels."""
    parts: list[list[Column]] = []
    used = 0
    for column in columns:
        need = gap + max([len(_head(column)), *(len(_plain(column, i)) for i in range(groups))])
        if not parts or used + need > width:
            parts.append([])
            used = stub + gap
        parts[-1].append(column)
        used += need
    return parts
