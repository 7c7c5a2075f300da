"""Against scipy.stats as it is documented, brute force and numbers by hand."""

import itertools
import math
import statistics
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from lastlayer.reports.statistics import (
    bootstrap,
    holm,
    holm_above,
    paired,
    sign_test,
    spearman,
    spread,
    welch,
)

values = st.floats(-100, 100, allow_subnormal=False).map(lambda value: round(value, 3))
uneven = st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda v: np.std(v) > 1e-6)


def by_seed(numbers):
    return dict(enumerate(numbers))


@given(uneven, uneven)
def test_welch_is_that_of_scipy(a, b):
    ours = welch(by_seed(a), by_seed(b))
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.interval() == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)
    greater = scipy.stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue
    assert ours.p_above() == pytest.approx(greater)
    assert ours.p_unequal() == pytest.approx(theirs.pvalue)


def test_welch_by_hand():
    ours = welch(by_seed([1.0, 3.0]), by_seed([0.0, 0.0, 1.0, 1.0]))  # variances 2 and 1/3
    u, v = 2 / 2, (1 / 3) / 4
    assert ours.mean == 1.5
    assert ours.error == pytest.approx(math.sqrt(u + v))
    assert ours.freedom == pytest.approx((u + v) ** 2 / (u**2 / 1 + v**2 / 3))
    assert ours.count == (2, 4)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=8))
def test_paired_is_that_of_scipy(pairs):
    a, b = zip(*pairs, strict=True)
    if np.std(np.subtract(a, b)) < 1e-6:
        return
    interval = scipy.stats.ttest_rel(a, b).confidence_interval(0.9)
    ours = paired(by_seed(a), by_seed(b)).interval(0.9)
    assert ours == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)


def test_only_seeds_in_common_are_paired():
    assert paired({0: 1.0, 1: 2.0, 7: 100.0}, {0: 0.0, 1: 1.0, 8: -100.0}).mean == 1.0


@pytest.mark.parametrize("pair", [({0: 1.0}, {0: 0.0, 1: 1.0}), ({0: 1.0}, {0: 0.0})])
def test_one_value_has_no_interval(pair):
    for difference in (welch(*pair), paired(*pair)):
        assert difference.interval() == (-math.inf, math.inf)
        assert difference.p_above() == difference.p_unequal() == 1.0


def test_without_noise_a_difference_is_certain():
    for difference in (welch({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0}), paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})):
        assert difference.interval() == (1.0, 1.0)
        assert (difference.p_above(), difference.p_above(1.0), difference.p_unequal()) == (0.0, 1.0, 0.0)


@given(st.lists(st.tuples(values, values), min_size=2, max_size=12))
def test_the_p_value_of_pairs_is_that_of_scipy(pairs):
    a, b = zip(*pairs, strict=True)
    differences = [x - y for x, y in pairs]
    assume(statistics.stdev(differences) > 1e-6 and abs(statistics.fmean(differences)) > 1e-6)
    expected = scipy.stats.ttest_rel(a, b).pvalue
    assert paired(by_seed(a), by_seed(b)).p_unequal() == pytest.approx(expected, rel=1e-9)


def test_the_p_value_pairs_by_seed_and_leaves_out_what_only_one_has():
    a = {3: 1.0, 1: 2.0, 2: 4.0, 9: 100.0}
    b = {1: 1.0, 2: 2.0, 3: 0.5, 8: -50.0}
    assert paired(a, b).p_unequal() == pytest.approx(scipy.stats.ttest_rel([2.0, 4.0, 1.0], [1.0, 2.0, 0.5]).pvalue)


def test_the_p_value_without_noise():
    a = dict(enumerate([1.0, 2.0, 3.0]))
    assert paired(a, a).p_unequal() == 1.0
    assert paired(a, {seed: value + 0.5 for seed, value in a.items()}).p_unequal() == 0.0


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_steps_down_as_its_definition_says(p_values):
    m = len(p_values)
    ordered = sorted(p_values)
    for p, corrected in zip(p_values, holm(p_values), strict=True):
        rank = ordered.index(p)
        expected = max((min(1.0, (m - i) * ordered[i]) for i in range(rank + 1)), default=0.0)
        ties = [max(min(1.0, (m - i) * ordered[i]) for i in range(j + 1)) for j in range(m) if ordered[j] == p]
        assert corrected in (pytest.approx(expected), *map(pytest.approx, ties))
        assert corrected >= p


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    for order in itertools.permutations([0.001, 0.2, 0.02]):
        by_value = dict(zip(order, holm(order), strict=True))
        assert by_value == pytest.approx({0.001: 0.003, 0.02: 0.04, 0.2: 0.2})


def test_spread():
    numbers = [0.3, 0.1, 0.9, 0.25]
    assert spread(numbers) == pytest.approx((statistics.fmean(numbers), statistics.stdev(numbers)))
    assert math.isnan(spread([])[0])
    assert spread([2.0])[0] == 2.0
    assert math.isnan(spread([2.0])[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean, deviation = spread([2.0, math.inf])  # epochs until something that one run did not reach
    assert mean == math.inf
    assert math.isnan(deviation)


def test_holm_keeps_names_and_corrects_upwards():
    noise = {0: 0.0, 1: 0.1, 2: -0.1}
    strong, weak = ({s: v + shift for s, v in noise.items()} for shift in (5.0, 0.2))
    corrected = holm_above({"strong": welch(strong, noise), "weak": welch(weak, noise)})
    assert corrected["strong"] == pytest.approx(2 * welch(strong, noise).p_above())
    assert corrected["weak"] == pytest.approx(welch(weak, noise).p_above())


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), min_size=3, max_size=8))
def test_spearman_is_that_of_scipy(pairs):
    x, y = zip(*pairs, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(spearman(x, y))
    else:
        assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


@given(st.lists(st.integers(-1, 1), min_size=1, max_size=40).filter(any))
def test_sign_test_is_the_binomial_test_by_counting(signs):
    positive, negative = signs.count(1), signs.count(-1)
    count = positive + negative
    wanted = sum(math.comb(count, k) for k in range(positive, count + 1)) / 2**count
    assert sign_test(signs) == pytest.approx(wanted, rel=1e-9)


def test_sign_test_and_bootstrap():
    assert sign_test([1, 1, 1, 1, -1]) == pytest.approx(6 / 32)
    assert sign_test([0.0]) == 1.0
    low, high = bootstrap(lambda a, b: a.mean() - b.mean(), [2.0, 2.1, 1.9], [1.0, 1.1, 0.9])
    assert 0.8 < low < 1.0 < high < 1.2
