"""Sums about shifts: exact at any collapse, whatever the batches, their order and how they are merged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.geometry import GeometryMetrics

from . import reference
from .reference import assert_same, clusters, streamed


@pytest.mark.parametrize(("classes", "dim"), [(6, 24), (12, 5)])
@pytest.mark.parametrize("within", [1.0, 1e-2, 1e-5])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_one_pass_is_exact_at_any_collapse_and_offset(classes, dim, within, offset):
    features, target = clusters(200, classes, dim, within=within, offset=offset)
    got = streamed(features, target, refine=False).compute()
    torch.testing.assert_close(got.nc1, reference.nc1(features, target), rtol=1e-7, atol=0)
    expected = reference.class_distance_variance(features, target)
    assert float(got.class_distance_variance) == pytest.approx(expected, rel=1e-9)
    if offset:
        few = features[:40], target[:40]
        got = streamed(*few, refine=False).compute()
        torch.testing.assert_close(got.separability, reference.separability(*few), rtol=1e-7, atol=0)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 10_000), st.sampled_from([0.5, 1e-4]), st.sampled_from([0.0, 100.0]))
def test_merging_in_any_order_changes_nothing(order, seed, within, offset):
    """Also where a part lacks a class, or has no samples at all."""
    features, target = clusters(40, 4, 5, within=within, offset=offset, seed=seed)
    whole = streamed(features, target, refine=False).compute()
    groups = [target < 2, (target == 2) & (torch.arange(40) % 2 == 0), torch.zeros(40, dtype=torch.bool)]
    groups.append(~(groups[0] | groups[1]))
    merged = GeometryMetrics(4, 5)
    for part in order:
        metrics = GeometryMetrics(4, 5)
        metrics.update(features[groups[part]], target[groups[part]])
        merged.merge_state(metrics)
    assert_same(merged.compute(), whole, rtol=1e-11, atol=1e-13)


def test_state_does_not_grow():
    features, target = clusters(60, 4, 6)
    metrics = GeometryMetrics(4, 6)
    before = metrics.sums.numel()
    for _ in range(5):
        metrics.update(features, target)
    assert metrics.sums.numel() == before
    assert metrics.sums.dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10_000), st.sampled_from([0.5, 1e-4]), st.sampled_from([0.0, 100.0]))
def test_batches_and_their_order_change_nothing(batch, seed, within, offset):
    features, target = clusters(40, 4, 5, within=within, offset=offset, seed=seed)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    whole = streamed(features, target, weight, batch=40).compute(weight)
    parts = streamed(features[order], target[order], weight, batch=batch).compute(weight)
    # Separability and the uncentred cosines are what is left of 1: their rounding is that of 1, not their own.
    assert_same(parts, whole, rtol=1e-11, atol=1e-13)
