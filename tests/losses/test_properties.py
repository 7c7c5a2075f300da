"""Properties that hold for all logits, searched with hypothesis."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import losses

from . import reference
from .cases import BATCH, PER_SAMPLE, K, identity

seeds = st.integers(0, 2**32 - 1)
sizes = st.floats(-6, 6).map(lambda x: 10**x)
quick = settings(max_examples=30, deadline=None)
y = torch.tensor([0, 3, 3, 1])


def normal(seed, *shape, scale=3.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.shift], ids=identity)
@given(seed=seeds, shift=st.floats(-50, 50))
@quick
def test_a_common_shift_changes_nothing(case, seed, shift):
    if case.create_name == "fn-kd":
        return
    z = normal(seed, 4, K)
    close(case.call(z + shift, y), case.call(z, y))


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if not c.shift and c.dense], ids=identity)
def test_where_a_shift_does_count_it_counts(case):
    z = case.logits(4, K) * 0.5
    assert (case.call(z + 0.2, y) - case.call(z, y)).abs() > 1e-4


@pytest.mark.parametrize("loss", BATCH, ids=identity)
@given(seed=seeds, shift=st.floats(-50, 50))
@quick
def test_batch_losses_do_not_see_a_common_shift(loss, seed, shift):
    z = normal(seed, 4, K)
    close(loss(z + shift, y), loss(z, y))


@given(seed=seeds, c=sizes, gamma=st.floats(0, 1), tau=st.floats(0.05, 2))
@quick
def test_soft_logit_norm_is_homogeneous(seed, c, gamma, tau):
    """SLN(c f; gamma, tau) = SLN(f; gamma, tau / c^(1 - gamma))."""
    f = normal(seed, 4, K)
    left = losses.soft_logit_norm(c * f, y, gamma=gamma, tau=tau)
    close(left, losses.soft_logit_norm(f, y, gamma=gamma, tau=tau / c ** (1 - gamma)), rtol=1e-9)


@given(seed=seeds, c=sizes)
@quick
def test_logit_norm_has_no_scale(seed, c):
    f = normal(seed, 4, K)
    close(losses.logit_norm(c * f, y), losses.logit_norm(f, y))
    f.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.logit_norm(f, y, reduction="sum"), f)
    close((gradient * f).sum(1), torch.zeros(4, dtype=torch.float64), atol=1e-10)


@given(seed=seeds, tau=st.floats(0.1, 2))
@quick
def test_soft_logit_norm_between_its_limits(seed, tau):
    f = normal(seed, 4, K)
    close(losses.soft_logit_norm(f, y, gamma=0.0, tau=tau), losses.cross_entropy(f / tau, y))
    close(losses.soft_logit_norm(f, y, gamma=1.0, tau=tau), losses.logit_norm(f, y, tau=tau))
    near = 1e-7
    for gamma, limit in ((near, losses.cross_entropy(f / tau, y)), (1 - near, losses.logit_norm(f, y, tau=tau))):
        close(losses.soft_logit_norm(f, y, gamma=gamma, tau=tau), limit, rtol=1e-4, atol=1e-5)


@given(seed=seeds, K_=st.integers(2, 12), tau=st.floats(0.05, 2))
@quick
def test_logit_norm_never_goes_below_its_infimum(seed, K_, tau):
    infimum = math.log1p((K_ - 1) * math.exp(-math.sqrt(K_ / (K_ - 1)) / tau))
    labels = torch.arange(6) % K_
    found = losses.logit_norm(normal(seed, 6, K_), labels, tau=tau, reduction="none").min().item()
    assert found >= infimum * (1 - 1e-9) - 1e-15  # torch's log_softmax rounds against 1
    best = torch.eye(K_, dtype=torch.float64)[labels] - 1 / K_
    assert losses.logit_norm(best, labels, tau=tau).item() == pytest.approx(infimum, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_order_of_samples_does_not_matter(case, seed):
    z = case.logits(4, K, seed=seed % 1000)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    close(case.call(z[order], y[order], reduction="none"), case.call(z, y, reduction="none")[order])
    close(case.call(z[order], y[order]), case.call(z, y))


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.symmetric], ids=identity)
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_names_of_classes_do_not_matter(case, seed):
    z = case.logits(4, K, seed=seed % 1000)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    renamed = torch.argsort(order)[y]  # class order[i] is now called i
    weight = torch.rand(K, dtype=torch.float64) + 0.1
    t = torch.rand(4, K, dtype=torch.float64).softmax(1)
    close(case.call(z[:, order], renamed, weight=weight[order]), case.call(z, y, weight=weight))
    close(case.call(z[:, order], t[:, order], weight=weight[order]), case.call(z, t, weight=weight))


@pytest.mark.parametrize("loss", BATCH, ids=identity)
@given(seed=seeds)
@quick
def test_batch_losses_know_no_order(loss, seed):
    generator = torch.Generator().manual_seed(seed)
    z = normal(seed, 4, K)
    rows, order = torch.randperm(4, generator=generator), torch.randperm(K, generator=generator)
    close(loss(z[rows][:, order], torch.argsort(order)[y[rows]]), loss(z, y))


@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_a_probability_target_is_linear(case):
    if case.create_name == "bce":
        return  # linear too, but for its class weights
    z = case.logits(4, K)
    a, b = (torch.rand(4, K, dtype=torch.float64).softmax(1) for _ in range(2))
    mixed = case.call(z, 0.3 * a + 0.7 * b)
    close(mixed, 0.3 * case.call(z, a) + 0.7 * case.call(z, b))


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
        """-log m: however short the last batch is, 0 is the least it can cost."""
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
        # z_+ = 0 twice, z_- = 1 twice; each half of 1/m.
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
