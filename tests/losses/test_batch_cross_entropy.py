"""Batch cross-entropy: its formula and sign, its threshold for separation, and what a batch means for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastlayer import losses

from . import reference
from .cases import K
from .helpers import (
    LOG2,
    close,
    least_without_separation,
    normal,
    quick,
    seeds,
    separated,
)

y = torch.tensor([0, 3, 3, 1])


class TestBatchCrossEntropy:
    @given(seed=seeds, K_=st.integers(1, 8))
    @quick
    def test_one_sample_is_cross_entropy(self, seed, K_):
        z = normal(seed, 1, K_)
        label = torch.tensor([seed % K_])
        close(losses.batch_cross_entropy(z, label), losses.cross_entropy(z, label))
        close(losses.batch_cross_entropy(z[0], label[0]), losses.cross_entropy(z, label))
        t = torch.rand(1, K_, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(1)
        close(losses.batch_cross_entropy(z, t), losses.cross_entropy(z, t))
        pair = (label, (label + 1) % K_, 0.3)
        close(losses.batch_cross_entropy(z, pair), losses.cross_entropy(z, pair))

    @given(seed=seeds, m=st.integers(1, 6))
    @quick
    def test_formula_and_sign(self, seed, m):
        z = normal(seed, m, K)
        labels = torch.randint(K, (m,), generator=torch.Generator().manual_seed(seed))
        found = losses.batch_cross_entropy(z, labels).item()
        expected = reference.batch_cross_entropy(z, np.eye(K)[labels.numpy()])
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)
        assert found >= -1e-14
        lams = torch.rand(m, dtype=torch.float64)
        other = labels.flip(0)
        t = reference.mixed(labels.numpy(), other.numpy(), lams.numpy(), K)
        expected = pytest.approx(reference.batch_cross_entropy(z, t), rel=1e-12)
        assert losses.batch_cross_entropy(z, (labels, other, lams)).item() == expected
        assert losses.batch_cross_entropy(z, torch.tensor(t)).item() == expected

    @given(seed=seeds, cut=st.integers(1, 5))
    @quick
    def test_accumulated_gradients_are_of_a_smaller_loss(self, seed, cut):
        """The mean over micro-batches, weighted by their size, never exceeds the loss of the whole batch."""
        z, labels = normal(seed, 6, K), torch.randint(K, (6,), generator=torch.Generator().manual_seed(seed))
        parts = [(z[:cut], labels[:cut]), (z[cut:], labels[cut:])]
        accumulated = sum(len(part) / 6 * losses.batch_cross_entropy(part, true) for part, true in parts)
        assert losses.batch_cross_entropy(z, labels) >= accumulated - 1e-12

    def test_accumulation_is_exact_where_the_partition_sums_agree(self):
        z, labels = normal(0, 3, K), torch.tensor([1, 2, 3])
        twice = losses.batch_cross_entropy(torch.cat([z, z]), torch.cat([labels, labels]))
        close(twice, losses.batch_cross_entropy(z, labels))

    def test_a_perfect_short_batch_costs_nothing_too(self):
        """Because of -log m the smallest possible loss is 0, however short the last batch is."""
        for m in (1, 2, 7):
            z = torch.full((m, K), -1e3, dtype=torch.float64)
            z[:, 0] = 5.0
            assert losses.batch_cross_entropy(z, torch.zeros(m, dtype=torch.long)).item() == pytest.approx(0, abs=1e-12)

    def test_positions_are_samples(self):
        z, labels = normal(0, 2, K, 3), torch.randint(K, (2, 3))
        flat = z.permute(0, 2, 1).reshape(-1, K)
        close(losses.batch_cross_entropy(z, labels), losses.batch_cross_entropy(flat, labels.flatten()))
        t = torch.rand(6, K, dtype=torch.float64).softmax(1)
        dense = t.reshape(2, 3, K).permute(0, 2, 1)
        close(losses.batch_cross_entropy(z, dense), losses.batch_cross_entropy(flat, t))

    def test_probabilities_that_do_not_sum_to_one_keep_the_formula(self):
        z, t = normal(0, 3, K) + 7.0, torch.rand(3, K, dtype=torch.float64)
        expected = reference.batch_cross_entropy(z, t.numpy())
        assert losses.batch_cross_entropy(z, t).item() == pytest.approx(expected, rel=1e-12)

    def test_empty_batch(self):
        assert losses.batch_cross_entropy(torch.zeros(0, K), torch.zeros(0, dtype=torch.long)).isnan()


@pytest.mark.parametrize("m", [2, 3])
def test_batch_cross_entropy_threshold(m):
    found = least_without_separation(losses.batch_cross_entropy, N=m, starts=8)
    assert LOG2 / m <= found <= LOG2 / m * 1.05


@pytest.mark.parametrize("m", [2, 3])
def test_batch_cross_entropy_just_above(m):
    z, y = torch.full((m, 2), -60.0, dtype=torch.float64), torch.zeros(m, dtype=torch.long)
    # One true logit and one false one each have half of the exponential of another true logit.
    z[:, 0] = 0.0
    z[0, 0] = z[0, 1] = -LOG2
    loss = losses.batch_cross_entropy(z, y).item()
    assert not separated(z, y)
    assert loss == pytest.approx(LOG2 / m, rel=1e-9)


def test_batch_cross_entropy_of_large_float32_logits_keeps_its_digits():
    z = torch.randn(512, 8, generator=torch.Generator().manual_seed(0)) + 1e4
    y = torch.arange(512) % 8
    exact = losses.batch_cross_entropy(z.double(), y)
    assert losses.batch_cross_entropy(z, y).item() == pytest.approx(exact.item(), rel=1e-5)
