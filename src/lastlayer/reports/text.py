"""Tables of text: in a terminal, in a file or in a pipe. Nothing is cut off.

If a table is wider than the terminal, it is printed in several parts, or its texts are broken over lines. A file has no
width, so it always gets one table. Tests: tests/reports/test_text.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

ARROWS = {"higher": "↑", "lower": "↓", None: ""}  # which way is better
PLAIN_WIDTH = 120  # least width of what is not a terminal


@dataclass(frozen=True)
class PrintedColumn:
    """One column of a printed table."""

    head: str
    cells: Sequence[str | Text]
    right: bool = False  # aligned to the right, as numbers are
    whole: bool = False  # its texts are never broken over lines
    style: str = ""
    most: int | None = None  # a head that is wider is broken over lines

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


def stdout() -> Console:
    """Standard output. If it is not a terminal, sentences have at least PLAIN_WIDTH columns."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PLAIN_WIDTH))


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
    from rich.segment import Segments

    width = console.width
    if not console.is_terminal:
        every = [*columns, *(column for group in groups for column in group)]
        width = max(width, PLAIN_WIDTH, layout.width(every))
    room = width - layout.width(columns)
    widths = [layout.width([*columns, *group]) - layout.width(columns) for group in groups]
    for number, part in enumerate(parts(widths, room)):
        if number:
            console.print()
        table = _table([*columns, *(column for i in part for column in groups[i])], layout, title=not number)
        # A file has no width, but its console has one, and would cut off what is wider.
        console.print(Segments(console.render(table, console.options.update(max_width=width))), crop=False)


def _table(columns: Sequence[PrintedColumn], layout: Layout, *, title: bool) -> Table:
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
    return table


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
