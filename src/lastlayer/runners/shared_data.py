"""The data of many trials, read once per process.

Tests: tests/runners/test_shared_data.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lastlayer.data import Dataset
from lastlayer.training import load_data
from lastlayer.training.trial import DataChoice


class SharedData:
    """Reads the data of trials, and keeps what it read last: trials that follow each other mostly train on the same.

    Args:
        root: where data sets lie.
        given: the data of all trials, if it is loaded already.
        move: brings a data set to where the trials run, if it must be brought there.
    """

    def __init__(
        self,
        root: Path | None = None,
        given: Dataset | None = None,
        move: Callable[[Dataset], Dataset] | None = None,
    ) -> None:
        self.root, self.given, self._move = root, given, move
        if given is not None and move is not None:
            self.given = move(given)
        self._last: tuple[DataChoice, Dataset] | None = None

    def load(self, choice: DataChoice) -> Dataset | None:
        """The data, or None if it cannot be read. The trial then meets the reason itself and writes it down."""
        if self.given is not None:
            return self.given
        if self._last is None or self._last[0] != choice:
            self._last = None  # before another takes memory
            try:
                dataset = load_data(choice, self.root)
                self._last = (choice, dataset if self._move is None else self._move(dataset))
            except Exception:
                return None
        return self._last[1]
