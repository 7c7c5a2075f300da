"""Mean and spread of a column as text."""

import math

import pytest

from lastlayer.measures import MEASURES
from lastlayer.reports.columns import Column, TableCell, text_of_cell


def test_undefined_values_are_shown_and_do_not_enter_the_mean():
    cell = TableCell({0: 0.5, 1: math.nan, 2: math.inf}, 0.5, math.nan)
    assert (cell.n, cell.finite) == (1, {0: 0.5})
    assert text_of_cell(MEASURES["accuracy"], TableCell({0: math.nan}, math.nan, math.nan)) == "undefined"
    assert text_of_cell(MEASURES["accuracy"], TableCell({}, math.nan, math.nan)) == "-"
    assert Column("test", MEASURES["accuracy"], (cell,)).text(0) == "0.5000"


@pytest.mark.parametrize(
    ("name", "mean", "std", "text"),
    [
        ("accuracy", 0.97221, 0.00281, "0.9722 ±.0028"),
        ("nc1", 0.0123456, 0.004567, "0.0123 ±.0046"),
        ("nc1", 1.234e-7, 5.6e-8, "1.23e-07 ±6e-08"),
        ("nc1", 123.4, 12.3, "123 ±12"),
        ("accuracy", 0.5, math.nan, "0.5000"),
        ("logit_gap", -3.25, 1.5, "-3.250 ±1.500"),
        ("nc1", 0.2, 0.0061, "0.200 ±.006"),
        ("nc1", 100.2, 12.3, "100 ±12"),
        ("violation_rate", 0.0102, 0.0013, "0.010 ±.001"),
    ],
)
def test_numbers_as_text(name, mean, std, text):
    assert text_of_cell(MEASURES[name], TableCell({0: mean}, mean, std)) == text
