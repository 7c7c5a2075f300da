"""Batch max-margin: its formula, its threshold for separation, and its edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastlayer import losses

from . import reference
from .cases import K
from .helpers import (
    least_without_separation,
    normal,
    quick,
    seeds,
    separated,
)

y = torch.tensor([0, 3, 3, 1])


class TestBatchMaxMargin:
    @given(seed=seeds, m=st.integers(1, 6), margin=st.floats(0.1, 5), sample_term=st.booleans())
    @quick
    def test_formula(self, seed, m, margin, sample_term):
        z = normal(seed, m, K)
        labels = torch.randint(K, (m,), generator=torch.Generator().manual_seed(seed))
        options = {"margin": margin, "sample_term": sample_term}
        expected = reference.batch_max_margin(z.tolist(), labels.tolist(), **options)
        assert losses.batch_max_margin(z, labels, **options).item() == pytest.approx(expected, rel=1e-12, abs=1e-14)
        other = labels.flip(0)
        mixed = 0.3 * expected + 0.7 * reference.batch_max_margin(z.tolist(), other.tolist(), **options)
        for lam in (0.3, torch.tensor(0.3, dtype=torch.float64)):
            found = losses.batch_max_margin(z, (labels, other, lam), **options)
            assert found.item() == pytest.approx(mixed, rel=1e-12, abs=1e-14)

    def test_without_the_sample_term_two_logits_move(self):
        z = normal(1, 6, K).requires_grad_()
        losses.batch_max_margin(z, torch.tensor([0, 1, 2, 3, 4, 0]), sample_term=False, margin=50.0).backward()
        assert sorted(z.grad[z.grad != 0].tolist()) == pytest.approx([-1 / 6, 1 / 6])

    def test_ties_share_the_gradient(self):
        z = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
        losses.batch_max_margin(z, torch.tensor([0, 1]), sample_term=False).backward()
        # z_+ = 0 and z_- = 1 occur twice each. Each entry gets half of 1/m.
        assert torch.equal(z.grad, torch.tensor([[-0.25, 0.25], [0.25, -0.25]], dtype=torch.float64))

    @given(seed=seeds)
    @quick
    def test_a_micro_batch_has_no_wider_extremes(self, seed):
        z, labels = normal(seed, 6, K), torch.randint(K, (6,), generator=torch.Generator().manual_seed(seed))
        whole = 6 * losses.batch_max_margin(z, labels, sample_term=False)
        for part in (slice(0, 2), slice(2, 6)):
            m = len(labels[part])
            assert m * losses.batch_max_margin(z[part], labels[part], sample_term=False) <= whole + 1e-12

    def test_degenerate_batches(self):
        assert losses.batch_max_margin(torch.zeros(0, K), torch.zeros(0, dtype=torch.long)).isnan()
        z = torch.randn(3, 1, requires_grad=True)
        for sample_term in (True, False):
            loss = losses.batch_max_margin(z, torch.zeros(3, dtype=torch.long), sample_term=sample_term)
            assert loss.item() == 0.0
            assert torch.autograd.grad(loss, z)[0].eq(0).all()

    def test_without_the_sample_term_an_infinite_logit_that_is_no_extreme_counts_for_nothing(self):
        z = torch.tensor([[math.inf, 0.0], [0.5, 2.0]], requires_grad=True)
        loss = losses.batch_max_margin(z, torch.tensor([0, 1]), sample_term=False)
        assert loss.item() == 0.0
        loss = losses.batch_max_margin(z, torch.tensor([0, 1]), sample_term=False, margin=3.0)
        assert loss.item() == (3.0 - 2.0 + 0.5) / 2
        assert torch.autograd.grad(loss, z)[0].tolist() == [[0.0, 0.0], [0.5, -0.5]]

    def test_needs_one_true_logit_a_sample(self):
        with pytest.raises(ValueError, match="class indices"):
            losses.batch_max_margin(torch.zeros(3, K), torch.full((3, K), 1 / K))
        with pytest.raises(ValueError, match="one number"):
            losses.batch_max_margin(torch.zeros(4, K), (y, y, torch.full((4,), 0.5)))


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("margin", [0.5, 2.0])
def test_batch_max_margin_threshold(m, margin):
    found = least_without_separation(lambda z, y: losses.batch_max_margin(z, y, margin=margin), N=m, starts=8)
    assert margin / m - 1e-12 <= found <= margin / m * 1.05


@pytest.mark.parametrize("m", [2, 3])
def test_batch_max_margin_just_above(m):
    z = torch.zeros(m, 2, dtype=torch.float64)
    y = torch.zeros(m, dtype=torch.long)
    z[0] = torch.tensor([2.0, 0.0])
    z[1:] = torch.tensor([0.0, -2.0])  # the true logit ties with the first sample's false one
    assert not separated(z, y)
    assert losses.batch_max_margin(z, y, margin=1.0).item() == pytest.approx(1.0 / m, rel=1e-12)
