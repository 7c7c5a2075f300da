"""One measure over all groups of runs: the mean and spread of each, which is best, and what is within noise of it.

`lastlayer.reports.statistics` says how groups are compared. Tests: tests/reports/test_columns.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lastlayer.measures import Measure
from lastlayer.reports.statistics import ENOUGH_SEEDS, SIGNIFICANCE, f_ratio, holm, paired, within_two_errors

Split = Literal["test", "train", "best", "validation", "run"]
SPLITS: dict[Split, str] = {
    "test": "test",
    "train": "train",
    "best": "test at best validation",
    "validation": "validation",
    "run": "whole run",
}
Standing = Literal["winner", "best", "within", "behind", "unknown"]

CLEAR_RATIO = 5.0  # groups differ clearly from this F ratio on


@dataclass(frozen=True)
class TableCell:
    """One measure of one group."""

    values: Mapping[int, float]
    """By seed, NaN and infinite values included."""
    mean: float
    """Of the finite values."""
    std: float
    """Of the finite values, with n - 1 in the denominator; NaN if there are fewer than two."""
    standing: Standing | None = None
    """Compared with the best of the column; None if the measure has no better and worse."""
    p: float | None = None
    """Of the paired test against the best, Holm-corrected over the column; None if no test was made."""

    @property
    def finite(self) -> dict[int, float]:
        """The values that enter the mean."""
        return {seed: value for seed, value in self.values.items() if math.isfinite(value)}

    @property
    def n(self) -> int:
        """How many values enter the mean."""
        return len(self.finite)

    @property
    def comparable(self) -> bool:
        """Whether there are values and all are finite: a mean over only the runs that went well must not win."""
        return bool(self.values) and self.n == len(self.values)


@dataclass(frozen=True)
class Column:
    """One measure on one split, over all groups."""

    split: Split
    measure: Measure
    cells: tuple[TableCell, ...]
    """One per group."""

    @property
    def best(self) -> int | None:
        """Position of the best group."""
        return next((i for i, cell in enumerate(self.cells) if cell.standing in ("winner", "best")), None)

    @property
    def winner(self) -> int | None:
        """Position of the group that beats all others after correction, if there is one."""
        return next((i for i, cell in enumerate(self.cells) if cell.standing == "winner"), None)

    @property
    def differs(self) -> bool:
        """Whether groups differ by more than noise.

        They do if a corrected test puts some group behind the best. If no test was made, some group must be behind and
        the F ratio must be at least 5, because among many groups one is two standard errors behind by chance.
        """
        behind = [cell for cell in self.cells if cell.standing == "behind"]
        return any(cell.p is not None for cell in behind) or (bool(behind) and self.strength >= CLEAR_RATIO)

    @cached_property
    def strength(self) -> float:
        """How far the groups are apart relative to their noise, to order measures by."""
        return f_ratio([list(cell.values.values()) for cell in self.cells if cell.comparable])

    def text(self, group: int) -> str:
        """Mean and spread of a group, as tables show them."""
        return text_of_cell(self.measure, self.cells[group])


def compared(column: Column) -> Column:
    """The column with the standing of each cell."""
    rivals = [i for i, cell in enumerate(column.cells) if cell.comparable]
    if column.measure.direction is None or len(rivals) < 2:
        return column
    sign = 1 if column.measure.direction == "higher" else -1
    best = max(rivals, key=lambda i: sign * column.cells[i].mean)
    top = column.cells[best]
    cells = list(column.cells)
    tested = {}
    spreads = [cells[i].std for i in rivals if not math.isnan(cells[i].std)]
    usual = statistics.median(spreads) if spreads else 0.0
    for i in rivals:
        cell = cells[i]
        if i == best:
            cells[i] = replace(cell, standing="best")
        elif len(cell.values.keys() & top.values.keys()) >= ENOUGH_SEEDS:
            tested[i] = paired(cell.values, top.values).p_unequal()
        else:
            near = within_two_errors(list(cell.values.values()), list(top.values.values()), usual)
            cells[i] = replace(cell, standing="unknown" if near is None else "within" if near else "behind")
    for i, p in zip(tested, holm(list(tested.values())), strict=True):
        cells[i] = replace(cells[i], standing="behind" if p < SIGNIFICANCE else "within", p=p)
    for i in rivals:
        if cells[i].mean == top.mean:
            cells[i] = replace(cells[i], standing="best")
    others = [i for i in rivals if i != best]
    everyone = len(rivals) == len(column.cells)
    if everyone and len(tested) == len(others) and all(cells[i].standing == "behind" for i in others):
        cells[best] = replace(cells[best], standing="winner")
    return replace(column, cells=tuple(cells))


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
