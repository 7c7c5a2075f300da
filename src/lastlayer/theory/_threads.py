"""How the theory uses the cores: one thread inside small operations, several independent jobs side by side."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def threads_for(entries: int) -> Iterator[None]:
    """Run on one thread if a step touches fewer entries than two threads are worth, and restore the number after."""
    before = torch.get_num_threads()
    if entries < 500_000 and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def side_by_side(job: Callable[[Item], Result], items: Sequence[Item], entries: int) -> list[Result]:
    """The job done for every item, as many at a time as torch has threads and then each on one thread.

    Whole jobs on their own cores never wait for each other, as two threads inside every operation of one job would.

    Args:
        job: independent of the other items.
        items: what to do it for.
        entries: entries that a step of one job touches.
    """
    workers = min(torch.get_num_threads(), len(items))
    with threads_for(0 if workers > 1 else entries):
        if workers == 1:
            return [job(item) for item in items]
        # a new thread starts with the number of threads that was set last: one
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(job, items))
