"""One thread for small problems: on matrices of a few thousand entries, threads wait longer than they work."""

import contextlib
from collections.abc import Iterator

import torch


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
