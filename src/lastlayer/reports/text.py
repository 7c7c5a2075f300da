"""Tables in a terminal, in a file or in a pipe. Nothing is cut off.

If a table is wider than the terminal, it is printed in several parts, or its texts are broken over lines. A file has no
width, so it always gets one table. Tests: tests/reports/test_text.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastlayer.reports.columns import Column, Split, texts_of_cell
from lastlayer.reports.statistics import ENOUGH_SEEDS
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary
from lastlayer.reports.verdict import rule, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ARROWS = {"higher": "↑", "lower": "↓", None: ""}  # which way is better
PLAIN_WIDTH = 120  # least width of what is not a terminal

_MARKS = {"winner": "★", "best": "*", "within": "~"}
_STYLES = {"winner": "bold green", "best": "bold", "within": ""}
_LONGEST_LABEL = 14  # a longer one is broken over several lines, so that it does not widen its column
_SHORT: dict[Split, str] = {"test": "test", "train": "train", "best": "best", "validation": "valid.", "run": ""}


@dataclass(frozen=True)
class PrintedColumn:
    """One column of a printed table."""

    head: str
    cells: Sequence[str | Text]
    right: bool = False  # aligned to the right, as numbers are
    whole: bool = False  # its texts are never broken over lines
    style: str = ""
    most: int | None = None  # a wider head is broken over lines

    @property
    def width(self) -> int:
        """How many characters wide it is if its cells are not broken over lines."""
        head = max(map(len, self.head.split("\n")))
        return max([head if self.most is None else min(head, self.most), *map(len, self.cells)])


@dataclass(frozen=True)
class Layout:
    """How a table looks."""

    title: str = ""  # printed above it
    framed: bool = False  # with lines around it and between the columns
    gap: int = 2  # blanks between the columns of a table without a frame
    row_styles: Sequence[str] = ()  # one per row

    def width(self, columns: Sequence[PrintedColumn]) -> int:
        """Characters that a table of these columns takes, if no cell is broken over lines."""
        between, edges = (3, 1) if self.framed else (self.gap, -self.gap)
        return sum(column.width + between for column in columns) + edges


PLAIN = Layout()


def print_table(
    console: Console,
    columns: Sequence[PrintedColumn],
    groups: Sequence[Sequence[PrintedColumn]] = (),
    *,
    layout: Layout = PLAIN,
) -> None:
    """Print a table. In a terminal that is too narrow, print it in several parts.

    Args:
        columns: the first columns, which every part repeats.
        groups: the other columns. Those of one group stay together in one part.
    """
    if not console.is_terminal:
        every = [*columns, *(column for group in groups for column in group)]
        console.width = max(console.width, PLAIN_WIDTH, layout.width(every))
    room = console.width - layout.width(columns)
    widths = [layout.width([*columns, *group]) - layout.width(columns) for group in groups]
    for number, part in enumerate(parts(widths, room)):
        if number:
            console.print()
        _print_part(console, [*columns, *(column for i in part for column in groups[i])], layout, title=not number)


def _print_part(console: Console, columns: Sequence[PrintedColumn], layout: Layout, *, title: bool) -> None:
    from rich.box import HEAVY_HEAD
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=escape(layout.title) if layout.title and title else None,
        title_justify="left",
        box=HEAVY_HEAD if layout.framed else None,
        pad_edge=layout.framed,
        padding=(0, 1) if layout.framed else (0, layout.gap, 0, 0),
    )
    for column in columns:
        table.add_column(
            Text(column.head),
            justify="right" if column.right else "left",
            no_wrap=column.whole,
            overflow="fold",
            style=column.style,
            width=None if column.most is None else column.width,
        )
    for row, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        shown = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        table.add_row(*shown, style=layout.row_styles[row] if layout.row_styles else None)
    console.print(table)


def parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Divide columns of these widths among as few tables as possible, each no wider than the room.

    Example:
        >>> parts([5, 5, 20, 4], 12)
        [[0, 1], [2], [3]]
    """
    found: list[list[int]] = [[]]
    for index in range(len(widths)):
        if found[-1] and sum(widths[other] for other in [*found[-1], index]) > room:
            found.append([])
        found[-1].append(index)
    return found


def print_tables(summary: Summary, *, everything: bool = False, console: Console | None = None) -> None:
    """Print the verdict, one table of all losses and measures on test and train, and every run that is not done.

    Each loss is a column; each measure and split is a line. Accuracy comes first, then the measures that differ, then,
    dimmed, those that tie. `*` marks the best of a line, `~` what is within noise of it, `★` a winner.

    Args:
        everything: print all measures on all splits, in the registry's order.
        console: where to print; standard output if not given.
    """
    from rich.console import Console

    console = console or Console(soft_wrap=False)
    console.print(summary.title, style="bold", markup=False, highlight=False)
    for sentence in verdict(summary):
        console.print(sentence, markup=False, highlight=False)
    if lines := _lines(summary, everything=everything):
        console.print()
        _print_lines(console, summary, lines)
        if legend := _legend(summary, lines):
            console.print(f"\n{legend}", style="dim", highlight=False)
    print_problems(summary, console=console)


def print_problems(summary: Summary, *, console: Console | None = None) -> None:
    """Print every run that is not done, with the reason and what to do. If all are done, print nothing."""
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
    if not everything:
        names = [name for name in (*DECISIONS, *FEATURES) if name in names]
        differ = {column.measure.name for column in summary.columns if column.differs}
        names.sort(key=lambda name: (name != "accuracy", name not in differ))
    lines = [column for name in names for split in _SHORT if (column := summary.column(split, name)) is not None]
    if not everything:
        lines = [line for line in lines if line.measure.name == "accuracy" or line.split in ("test", "train")]
    return [*lines, *(column for column in summary.columns if column.split == "run")]


def _print_lines(console: Console, summary: Summary, lines: Sequence[Column]) -> None:
    heads = [f"{line.measure.title} {ARROWS[line.measure.direction]}".rstrip() for line in lines]
    shown = ["" if i and line.measure == lines[i - 1].measure else heads[i] for i, line in enumerate(lines)]
    names = [
        PrintedColumn("", shown, whole=True),
        PrintedColumn("", [_SHORT[line.split] for line in lines], whole=True, style="dim"),
    ]
    groups = []
    for position, group in enumerate(summary.groups):
        label = f"{group.label} ({group.incomplete})" if group.incomplete else group.label
        most = max(_LONGEST_LABEL, *map(len, label.split()))
        groups.append([PrintedColumn(label, [_cell(line, position) for line in lines], right=True, most=most)])
    styles = ["dim" if line.measure.direction is None or not line.differs else "" for line in lines]
    print_table(console, names, groups, layout=Layout(gap=1, row_styles=styles))


def _cell(column: Column, group: int) -> Text:
    from rich.text import Text

    cell = column.cells[group]
    mean, std = texts_of_cell(column.measure, cell)
    standing = cell.standing or ""
    return Text(f"{_MARKS.get(standing, '')}{mean}{f'±{std}' * bool(std)}", style=_STYLES.get(standing, ""))


def _legend(summary: Summary, lines: Sequence[Column]) -> str:
    splits: Mapping[Split, str] = {
        "best": "best: test at the epoch best in validation. ",
        "validation": "valid.: validation, there. ",
    }
    named = "".join(splits.get(split, "") for split in {line.split: None for line in lines})
    if len(summary.finished) < 2:
        return f"{named}{'± is the standard deviation over seeds.' if summary.seeds > 1 else ''}"
    if summary.seeds < 2:
        return f"* best. {named}".rstrip()
    marks = "* best   ~ within noise of it" + ("   ★ winner" if summary.seeds >= ENOUGH_SEEDS else "")
    return f"{marks}. {named}{rule(summary)}"
