"""One measure over all groups of runs, with mean and spread of each. Tests: tests/reports/test_columns.py.

Nothing here says which group is better: that is decided for goals alone, by `lastlayer.reports.decision`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lastlayer.measures import Measure

Split = Literal["test", "train", "best", "validation", "run"]
SPLITS: dict[Split, str] = {
    "test": "test",
    "train": "train",
    "best": "test at best validation",
    "validation": "validation",
    "run": "whole run",
}


@dataclass(frozen=True)
class TableCell:
    """One measure of one group."""

    values: Mapping[int, float]
    """By seed, NaN and infinite values included."""
    mean: float
    """Of the finite values."""
    std: float
    """Of the finite values, with n - 1 in the denominator; NaN if there are fewer than two."""

    @property
    def finite(self) -> dict[int, float]:
        """The values that enter the mean."""
        return {seed: value for seed, value in self.values.items() if math.isfinite(value)}

    @property
    def n(self) -> int:
        """How many values enter the mean."""
        return len(self.finite)


@dataclass(frozen=True)
class Column:
    """One measure on one split, over all groups."""

    split: Split
    measure: Measure
    cells: tuple[TableCell, ...]
    """One per group."""

    def text(self, group: int) -> str:
        """Mean and spread of a group, as tables show them."""
        return text_of_cell(self.measure, self.cells[group])


def text_of_cell(measure: Measure, cell: TableCell) -> str:
    """Mean ± standard deviation, as tables show them.

    Example:
        >>> from lastlayer.measures import MEASURES
        >>> text_of_cell(MEASURES["accuracy"], TableCell({0: 0.9, 1: 0.92}, 0.91, 0.0141421))
        '0.9100 ±.0141'
    """
    mean, std = texts_of_cell(measure, cell)
    return f"{mean} ±{std}" if std else mean


def texts_of_cell(measure: Measure, cell: TableCell) -> tuple[str, str]:
    """Mean and standard deviation; the deviation has as many decimals as the mean and no 0 before the point."""
    if not cell.n:
        return "undefined" if cell.values else "-", ""
    mean = measure.text(cell.mean)
    if math.isnan(cell.std):
        return mean, ""
    if "e" in mean:
        return mean, f"{cell.std:.1g}"
    if "." not in mean:
        return mean, f"{cell.std:.2g}"
    return mean, f"{cell.std:.{len(mean.partition('.')[2])}f}".removeprefix("0")
