"""Progress bars, for loops that may take long. Tests: tests/_core/test_progress.py."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")

TIME_WIDTH = 5  # columns of a terminal that the time left takes


def bars(*more: ProgressColumn, whole: bool = True, drawn: bool = True, refresh: bool = True) -> Progress:
    """Progress bars on standard error, each with a name, more columns and the time left. They vanish at the end.

    If standard error is not a terminal, nothing is drawn.

    Args:
        more: the columns between the bar and the time left.
        whole: whether a name must stay on one line.
        drawn: whether to draw the bars themselves, which take room.
        refresh: whether a thread draws regularly. Without it, call `refresh` of the result to draw.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    name = TextColumn("{task.description}", table_column=Column(no_wrap=whole, overflow="fold"))
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=TIME_WIDTH))
    return Progress(
        *(name, *([BarColumn()] if drawn else []), *more, left),
        console=console,
        transient=True,
        auto_refresh=refresh,
        disable=not console.is_terminal,
    )


def shown(items: Iterable[T], what: str, total: int, done: int = 0, *, silent_seconds: float = 2.0) -> Iterator[T]:
    """Yield the `total - done` items. If that takes more than `silent_seconds`, a bar on stderr shows it as `what`.

    There is no bar in a worker process, or if stderr is not a terminal.
    """
    bar = bars()
    task = bar.add_task(what, total=total, completed=done)
    quiet = multiprocessing.parent_process() is not None or not sys.stderr.isatty()
    begin = math.inf if quiet else time.monotonic() + silent_seconds
    try:
        for number, item in enumerate(items, done + 1):
            yield item
            bar.update(task, completed=number)
            if time.monotonic() > begin:
                bar.start()
                begin = math.inf
    finally:
        if bar.live.is_started:  # stopping a bar that was never shown prints an empty line
            bar.stop()
