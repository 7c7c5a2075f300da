"""Against scipy.stats and brute force."""

import itertools
import math
import statistics
import warnings

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from lastlayer.reports.noise import f_ratio, holm, paired_p, spread, within_two_errors

values = st.floats(-100, 100, allow_subnormal=False).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(values, values), min_size=2, max_size=12))
def test_paired_p_is_that_of_scipy(pairs):
    a, b = zip(*pairs, strict=True)
    differences = [x - y for x, y in pairs]
    assume(statistics.stdev(differences) > 1e-6 and abs(statistics.fmean(differences)) > 1e-6)
    expected = scipy.stats.ttest_rel(a, b).pvalue
    assert paired_p(dict(enumerate(a)), dict(enumerate(b))) == pytest.approx(expected, rel=1e-9)


def test_paired_p_pairs_by_seed_and_leaves_out_what_only_one_has():
    a = {3: 1.0, 1: 2.0, 2: 4.0, 9: 100.0}
    b = {1: 1.0, 2: 2.0, 3: 0.5, 8: -50.0}
    assert paired_p(a, b) == pytest.approx(scipy.stats.ttest_rel([2.0, 4.0, 1.0], [1.0, 2.0, 0.5]).pvalue)


def test_paired_p_without_noise():
    a = dict(enumerate([1.0, 2.0, 3.0]))
    assert paired_p(a, a) == 1.0
    assert paired_p(a, {seed: value + 0.5 for seed, value in a.items()}) == 0.0


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


@given(st.lists(st.lists(values, min_size=2, max_size=5), min_size=2, max_size=5))
def test_f_ratio_is_that_of_scipy(groups):
    assume(any(statistics.stdev(group) > 1e-3 for group in groups))
    assert f_ratio(groups) == pytest.approx(scipy.stats.f_oneway(*groups).statistic, rel=1e-6, abs=1e-9)


def test_f_ratio_at_its_edges():
    assert f_ratio([[1.0, 1.0], [2.0, 2.0]]) == math.inf
    assert f_ratio([[1.0, 1.0], [1.0]]) == 0.0
    assert math.isnan(f_ratio([[1.0], [2.0]]))
    assert math.isnan(f_ratio([[1.0, 2.0], []]))


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


def test_within_two_standard_errors_by_hand():
    a, b = [1.0, 2.0, 3.0], [2.5, 3.5, 4.5]  # both stdev 1: two errors are 2 sqrt(1/3 + 1/3) = 1.633
    assert within_two_errors(a, b) is True
    assert within_two_errors(a, [value + 0.14 for value in b]) is False
    assert within_two_errors(a, [value + 0.14 for value in b], least=1.1) is True
    assert within_two_errors([1.0], b) is None
