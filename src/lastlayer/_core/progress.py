"""A progress bar for loops that take longer than one would wait in silence."""

import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SILENT_SECONDS = 2.0


def shown(items: Iterable[T], what: str, total: int, done: int = 0) -> Iterator[T]:
    """Pass items on, after two seconds with a bar on stderr if that is a terminal; worker processes show none.

    Args:
        items: `total - done` of them.
        what: is being done, for the bar.
        total: how many there are in all.
        done: how many were done before.
    """
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
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
        if bar.live.is_started:  # stopping a bar that never was prints an empty line
            bar.stop()
