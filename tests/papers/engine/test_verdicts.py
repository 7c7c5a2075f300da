"""Intervals against scipy, and how they decide."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lastlayer.papers.engine import verdicts as evidence

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda v: np.std(v) > 1e-6)


def by_seed(values):
    return dict(enumerate(values))


@given(VALUES, VALUES)
def test_welch_is_that_of_scipy(a, b):
    ours = evidence.welch(by_seed(a), by_seed(b))
    theirs = stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.interval() == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)
    assert ours.p_above() == pytest.approx(stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=8))
def test_paired_is_that_of_scipy(pairs):
    a, b = zip(*pairs, strict=True)
    if np.std(np.subtract(a, b)) < 1e-6:
        return
    interval = stats.ttest_rel(a, b).confidence_interval(0.9)
    ours = evidence.paired(by_seed(a), by_seed(b)).interval(0.9)
    assert ours == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)


def test_only_seeds_in_common_are_paired():
    assert evidence.paired({0: 1.0, 1: 2.0, 7: 100.0}, {0: 0.0, 1: 1.0, 8: -100.0}).mean == 1.0


@pytest.mark.parametrize("pair", [({0: 1.0}, {0: 0.0, 1: 1.0}), ({0: 1.0}, {0: 0.0})])
def test_one_value_decides_nothing(pair):
    for difference in (evidence.welch(*pair), evidence.paired(*pair)):
        assert difference.interval() == (-math.inf, math.inf)
        assert evidence.above(difference).outcome == "inconclusive"
        assert difference.p_above() == 1.0


@pytest.mark.parametrize(
    ("shift", "outcome"), [(1.0, "reproduced"), (-1.0, "not reproduced"), (0.0, "inconclusive"), (0.5, "reproduced")]
)
def test_an_interval_decides_by_where_it_lies(shift, outcome):
    noise = [0.01, -0.01, 0.02, -0.02, 0.0]
    difference = evidence.welch(by_seed(np.add(noise, shift)), by_seed(noise))
    assert evidence.above(difference).outcome == outcome


@pytest.mark.parametrize(("shift", "outcome"), [(0.0, "reproduced"), (0.39, "inconclusive"), (2.0, "not reproduced")])
def test_two_one_sided_tests(shift, outcome):
    noise = [0.05, -0.05, 0.1, -0.1, 0.0]
    difference = evidence.welch(by_seed(np.add(noise, shift)), by_seed(noise))
    verdict = evidence.equivalent(difference, 0.4)
    assert verdict.outcome == outcome
    assert verdict.difference == pytest.approx(shift, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), min_size=3, max_size=8))
def test_spearman_is_that_of_scipy(pairs):
    x, y = zip(*pairs, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(evidence.spearman(x, y))
    else:
        assert evidence.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("groups", "outcome"),
    [
        ([[0.9, 0.91, 0.92], [0.8, 0.81, 0.82]], "reproduced"),
        ([[0.8, 0.81, 0.82], [0.9, 0.91, 0.92]], "not reproduced"),
        ([[0.8, 0.9, 0.85], [0.79, 0.91, 0.84]], "inconclusive"),
        ([[0.84, 0.80, 0.89], [0.8, 0.9, 0.85]], "inconclusive"),
        ([[0.9], [0.8, 0.800001, 0.8]], "reproduced"),  # one run spreads as much as the others
        ([[0.9], [0.8, 0.99]], "inconclusive"),
        ([[0.9], [0.8]], "inconclusive"),  # nobody knows how much
        ([[0.9, 0.91, math.nan], [0.8, 0.81, 0.82]], "inconclusive"),
    ],
)
def test_a_statement_on_means_stands_where_draws_of_the_means_agree(groups, outcome):
    verdict = evidence.redrawn(lambda means: means[0] > means[1], groups, "the first is higher")
    assert verdict.outcome == outcome
    assert ("one seed" in verdict.detail) == (len(groups[0]) == len(groups[1]) == 1)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_what_is_equal_is_seldom_decided(seeds):
    """At 95 % a comparison of equals comes out either way in a tenth of the cases, not in a quarter."""
    generator = np.random.default_rng(0)
    outcomes = [
        evidence.redrawn(lambda means: means[0] > means[1], generator.normal(size=(2, seeds)), "").outcome
        for _ in range(300)
    ]
    assert 0 < sum(outcome != "inconclusive" for outcome in outcomes) <= 30


def test_nothing_to_judge_is_not_run():
    assert evidence.all_of([]).outcome == "not run"


def test_all_parts_must_hold():
    yes, no, maybe, never = (
        evidence.Verdict(o, o) for o in ("reproduced", "not reproduced", "inconclusive", "not run")
    )
    assert evidence.all_of([yes, yes]).outcome == "reproduced"
    assert evidence.all_of([yes, maybe]).outcome == "inconclusive"
    assert evidence.all_of([maybe, never]).outcome == "inconclusive"
    assert evidence.all_of([maybe, no, never]).outcome == "not reproduced"
    assert evidence.counted(3, 5, 3).outcome == "reproduced"
    assert evidence.counted(2, 5, 3).outcome == "not reproduced"


def test_holm_keeps_names_and_corrects_upwards():
    noise = {0: 0.0, 1: 0.1, 2: -0.1}
    strong, weak = ({s: v + shift for s, v in noise.items()} for shift in (5.0, 0.2))
    corrected = evidence.holm_above({"strong": evidence.welch(strong, noise), "weak": evidence.welch(weak, noise)})
    assert corrected["strong"] == pytest.approx(2 * evidence.welch(strong, noise).p_above())
    assert corrected["weak"] == pytest.approx(evidence.welch(weak, noise).p_above())


@given(st.lists(st.integers(-1, 1), min_size=1, max_size=40).filter(any))
def test_sign_test_is_the_binomial_test_of_scipy(signs):
    positive = signs.count(1)
    wanted = stats.binomtest(positive, positive + signs.count(-1), 0.5, alternative="greater").pvalue
    assert evidence.sign_test(signs) == pytest.approx(wanted, rel=1e-9)


def test_sign_test_and_bootstrap():
    assert evidence.sign_test([1, 1, 1, 1, -1]) == pytest.approx(6 / 32)
    assert evidence.sign_test([0.0]) == 1.0
    low, high = evidence.bootstrap(lambda a, b: a.mean() - b.mean(), [2.0, 2.1, 1.9], [1.0, 1.1, 0.9])
    assert 0.8 < low < 1.0 < high < 1.2
