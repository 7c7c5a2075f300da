"""The bins of scores keep the order, and notice scores that share one."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

# The bins are private to tasks. That no order is lost in them is what makes the streaming metrics exact.
from lastlayer.tasks._histogram import score_bins

values = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf]))


@settings(deadline=None)
@given(values, values, st.integers(2, 32))
def test_bins_keep_the_order(a, b, bits):
    (first, second), _ = score_bins(torch.tensor([a, b]), bits)
    assert min(first, second) >= 0
    assert max(first, second) < 2**bits
    assert (first <= second) if a <= b else (first >= second)
    if a == b:
        assert first == second


def test_every_bfloat16_and_float16_value_has_its_own_bin():
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype, bits in ((torch.bfloat16, 16), (torch.float16, 20)):
        every = patterns.view(dtype)
        every = every[~every.isnan()].float().unique()
        bins, shared = score_bins(every, bits)
        assert shared == 0
        assert bool((bins.diff() > 0).all())


def test_shared_bins_are_noticed():
    assert score_bins(torch.tensor([1.0, 1.0 + 2**-20]), 16)[1] == 1
    assert score_bins(torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64), 32)[1] == 1
