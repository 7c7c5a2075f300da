"""Progress bars, for loops that may take long.

Rich is imported when a bar is made. Tests: tests/_core/test_progress.py.
"""

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

SILENT_SECONDS = 2.0
TIME_WIDTH = 5  # columns of a terminal that the time left takes


def bars(*more: ProgressColumn, whole: bool = True, drawn: bool = True, refresh: bool = True) -> Progress:
    """Progress bars on standard error: a name, a bar, what else is given, and the time left. They vanish at the end.

    Nothing is drawn if standard error is no terminal.

    Args:
        more: what stands between the bar and the time left.
        whole: names are never broken over lines.
        drawn: draw the bars themselves; without them there is more room for the rest.
        refresh: draw from a thread of its own; without it, only when told to.
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


def shown(items: Iterable[T], what: str, total: int, done: int = 0) -> Iterator[T]:
    """Pass items on, and after two seconds show a bar on stderr.

    There is no bar if stderr is not a terminal, or in a worker process.

    Args:
        items: there are `total - done` of them.
        what: what is being done, as a label of the bar.
        total: how many items there are in all.
        done: how many of them were done before.
    """
    bar = bars()
    task = bar.add_task(what, total=total, completed=done)
    quiet = multiprocessing.parent_process() is not None or not sys.stderr.isatty()
    begin = math.inf if quiet else time.monotonic() + SILENT_SECONDS
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
