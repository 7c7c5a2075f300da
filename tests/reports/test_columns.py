"""The standing of groups in a column, against scipy.stats and by hand."""

import math
import statistics

import pytest
import scipy.stats

from lastlayer.measures import MEASURES
from lastlayer.reports.columns import Column, TableCell, compared, text_of_cell
from lastlayer.reports.summary import SECONDS


def column(*groups, measure="accuracy"):
    """Groups as lists of values by seed."""
    cells = []
    for group in groups:
        by_seed = dict(group) if isinstance(group, dict) else dict(enumerate(group))
        finite = [value for value in by_seed.values() if math.isfinite(value)]
        mean = statistics.fmean(finite) if finite else math.nan
        cells.append(TableCell(by_seed, mean, statistics.stdev(finite) if len(finite) > 1 else math.nan))
    return compared(Column("test", MEASURES.get(measure, SECONDS), tuple(cells)))


def standings(made):
    return [cell.standing for cell in made.cells]


def test_below_five_seeds_the_best_and_what_is_near_it_and_never_a_winner():
    made = column([0.90, 0.91, 0.92], [0.91, 0.92, 0.93], [0.5, 0.51, 0.52])
    assert standings(made) == ["within", "best", "behind"]
    assert made.winner is None
    assert all(cell.p is None for cell in made.cells)
    lower = column([0.90, 0.91, 0.92], [0.91, 0.92, 0.93], [0.5, 0.51, 0.52], measure="nc1")
    assert standings(lower) == ["behind", "behind", "best"]


def test_four_seeds_far_apart_are_still_no_winner():
    assert standings(column([0.9, 0.91, 0.9, 0.91], [0.1, 0.11, 0.1, 0.11])) == ["best", "behind"]


def test_seeds_that_agree_by_chance_have_the_usual_noise():
    # Without the median rule the first two would have no noise at all and the second would be behind.
    assert (
        standings(column([0.99, 0.99, 0.99], [0.98, 0.98, 0.98], [0.96, 0.98, 1.0], [0.9, 0.94, 0.98]))[1] == "within"
    )


def test_one_seed_says_nothing_but_which_is_highest():
    assert standings(column([0.9], [0.8], [0.7])) == ["best", "unknown", "unknown"]


def test_equal_means_are_all_best():
    assert standings(column([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5])) == ["best", "best", "behind"]


def test_no_direction_no_best():
    assert standings(column([1.0, 2.0], [5.0, 6.0], measure="seconds")) == [None, None]
    assert standings(column([1.0, 2.0])) == [None]


def test_undefined_values_are_shown_and_not_compared():
    made = column([0.9, 0.91, math.nan], [0.5, 0.52, 0.53], [0.4, 0.41, math.inf], [0.51, 0.52, 0.53])
    assert standings(made) == [None, "within", None, "best"]
    assert made.cells[0].n == 2
    assert text_of_cell(MEASURES["accuracy"], TableCell({0: math.nan}, math.nan, math.nan)) == "undefined"


BEST = [0.90, 0.93, 0.91, 0.95, 0.92]
NEAR = [0.91, 0.92, 0.905, 0.945, 0.921]
LESS = [0.88, 0.90, 0.90, 0.93, 0.895]
WORST = [0.50, 0.55, 0.52, 0.54, 0.51]


def test_from_five_seeds_differences_are_paired_and_corrected():
    made = column(BEST, NEAR, LESS, WORST)
    raw = [scipy.stats.ttest_rel(other, BEST).pvalue for other in (NEAR, LESS, WORST)]
    ordered = sorted(raw)
    by_hand = {ordered[0]: 3 * ordered[0], ordered[1]: max(2 * ordered[1], 3 * ordered[0])}
    by_hand[ordered[2]] = max(ordered[2], by_hand[ordered[1]])
    assert [cell.p for cell in made.cells[1:]] == pytest.approx([by_hand[p] for p in raw])
    assert standings(made) == ["best", "within", "behind", "behind"]
    assert made.winner is None
    assert made.differs


def test_a_winner_beats_all_others_after_correction():
    made = column(BEST, LESS, WORST)
    assert standings(made) == ["winner", "behind", "behind"]
    assert made.winner == made.best == 0


def test_pairing_finds_what_unpaired_noise_would_hide():
    shifts = [value - 0.01 - 0.0005 * (seed % 2) for seed, value in enumerate(BEST)]
    assert standings(column(BEST, shifts)) == ["winner", "behind"]
    assert standings(column(BEST[:4], shifts[:4])) == ["best", "within"]


def test_a_group_that_is_not_there_in_full_prevents_a_winner():
    assert column(BEST, LESS, WORST[:4]).winner is None
    assert column(BEST, LESS, [*WORST[:4], math.nan]).winner is None
    assert column(BEST, LESS, []).winner is None
    other_seeds = {seed + 3: value for seed, value in enumerate(WORST)}
    assert standings(column(BEST, LESS, other_seeds)) == ["best", "behind", "behind"]


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
