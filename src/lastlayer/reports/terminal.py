"""A summary as tables in a terminal, or as plain text where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lastlayer.reports.columns import Column, Split, texts_of_cell
from lastlayer.reports.noise import ENOUGH_SEEDS
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary
from lastlayer.reports.text import parts
from lastlayer.reports.verdict import rule, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MARKS = {"winner": "★", "best": "*", "within": "~"}
_STYLES = {"winner": "bold green", "best": "bold", "within": ""}
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}
_GAP = 1
_LABEL = 14  # a longer label goes over several lines rather than widen its column
_SHORT: dict[Split, str] = {"test": "test", "train": "train", "best": "best", "validation": "valid.", "run": ""}


def print_tables(summary: Summary, *, everything: bool = False, console: Console | None = None) -> None:
    """Print the verdict, one table of every loss and measure on test and train, and every run that is not done.

    A column a loss and a line a measure and split: accuracy leads, then come the measures that differ, then, dim, those
    that tie. `*` marks the best of a line, `~` what is within noise of it, `★` a winner. A terminal too narrow for all
    losses gets the table in parts; a file or pipe never does.

    Args:
        everything: all measures on all splits, in the registry's order.
        console: where to print; standard output if not given.
    """
    from rich.console import Console

    console = console or Console(soft_wrap=False)
    lines = _lines(summary, everything=everything)
    tables = _fitting(summary, lines, console.width if console.is_terminal else None)
    if not console.is_terminal:
        console.width = max(console.width, *(sum(part.values()) + _stub(lines) for part in tables), 120)
    console.print(summary.title, style="bold", markup=False, highlight=False)
    for sentence in verdict(summary):
        console.print(sentence, markup=False, highlight=False)
    if lines:
        for part in tables:
            _print(console, summary, lines, part)
        if legend := _legend(summary, lines):
            console.print(f"\n{legend}", style="dim", highlight=False)
    print_problems(summary, console=console)


def _legend(summary: Summary, lines: Sequence[Column]) -> str:
    splits = {"best": "best: test at the epoch best in validation. ", "validation": "valid.: validation, there. "}
    named = "".join(splits.get(split, "") for split in {line.split: None for line in lines})
    if sum(bool(group.done) for group in summary.groups) < 2:
        return f"{named}{'± is the standard deviation over seeds.' if summary.seeds > 1 else ''}"
    if summary.seeds < 2:
        return f"* best. {named}".rstrip()
    marks = "* best   ~ within noise of it" + ("   ★ winner" if summary.seeds >= ENOUGH_SEEDS else "")
    return f"{marks}. {named}{rule(summary)}"


def print_problems(summary: Summary, *, console: Console | None = None) -> None:
    """Print every run that is not done, with why and what to do; nothing where all are."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    if summary.problems:
        total = sum(len(group.done) for group in summary.groups) + len(summary.problems)
        missing = f"{len(summary.problems)} of {total} runs are not in the table:"
        console.print(f"\n{missing}", style="bold yellow", highlight=False)
    for status, label, seeds, reason in summary.problems_by_reason():
        console.print(Text(f"  {status:<11} {label}{f' {seeds}' * bool(seeds)}: {reason}"), soft_wrap=True)
    for note in summary.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)


def _lines(summary: Summary, *, everything: bool) -> list[Column]:
    """The columns of the summary in the order in which they are lines here: by measure, test before train."""
    names = list(dict.fromkeys(column.measure.name for column in summary.columns if column.split != "run"))
    by_name = {
        name: [column for split in _SHORT if split != "run" and (column := summary.column(split, name)) is not None]
        for name in (names if everything else [name for name in (*DECISIONS, *FEATURES) if name in names])
    }
    order = list(by_name)
    if not everything:
        order.sort(key=lambda name: (name != "accuracy", not any(column.differs for column in by_name[name])))
        usual = ("test", "train")
        by_name = {n: [c for c in found if n == "accuracy" or c.split in usual] for n, found in by_name.items()}
    time = [column for column in summary.columns if column.split == "run"]
    return [column for name in order for column in by_name[name]] + time


def _print(console: Console, summary: Summary, lines: Sequence[Column], part: Mapping[int, int]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    for group, width in part.items():
        table.add_column(Text(_with_count(summary, group)), justify="right", width=width - _GAP)
    before = ""
    for line in lines:
        style = "dim" if line.measure.direction is None or not line.differs else ""
        head = "" if line.measure.name == before else _head(line)
        cells = (_cell(line, group) for group in part)
        table.add_row(Text(head), Text(_SHORT[line.split]), *cells, style=style)
        before = line.measure.name
    console.print()
    console.print(table)


def _with_count(summary: Summary, group: int) -> str:
    """The label, and how many runs are behind it where some are missing."""
    own = summary.groups[group]
    done, all_runs = len(own.done), len(own.runs)
    return own.label if done == all_runs else f"{own.label} ({done} of {all_runs})"


def _head(column: Column) -> str:
    return f"{column.measure.title}{_ARROWS[column.measure.direction]}"


def _plain(column: Column, group: int) -> str:
    cell = column.cells[group]
    mean, std = texts_of_cell(column.measure, cell)
    return f"{_MARKS.get(cell.standing or '', '')}{mean}{f'±{std}' * bool(std)}"


def _cell(column: Column, group: int) -> Text:
    from rich.text import Text

    return Text(_plain(column, group), style=_STYLES.get(column.cells[group].standing or "", ""))


def _stub(lines: Sequence[Column]) -> int:
    """Width of the two columns that name a line."""
    return max((len(_head(line)) for line in lines), default=0) + max(map(len, _SHORT.values())) + 2 * _GAP


def _fitting(summary: Summary, lines: Sequence[Column], width: int | None) -> list[dict[int, int]]:
    """Groups with their widths, in as few tables as fit beside the names; in one where the width has no limit."""
    widths = []
    for group in range(len(summary.groups)):
        label = _with_count(summary, group)
        head = max(min(len(label), _LABEL), *map(len, label.split()))
        widths.append(_GAP + max([head, *(len(_plain(line, group)) for line in lines)]))
    room = sum(widths) if width is None else width - _stub(lines)
    return [{group: widths[group] for group in part} for part in parts(widths, room)]
