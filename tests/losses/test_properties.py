"""Properties that hold for all logits, searched with hypothesis."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import losses

from .cases import BATCH, PER_SAMPLE, K, identity
from .helpers import close, normal, quick, seeds, sizes

y = torch.tensor([0, 3, 3, 1])


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
    assert found >= infimum * (1 - 1e-9) - 1e-15  # torch's log_softmax rounds to the digits of 1
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
        return  # linear too, but class weights make it quadratic
    z = case.logits(4, K)
    a, b = (torch.rand(4, K, dtype=torch.float64).softmax(1) for _ in range(2))
    mixed = case.call(z, 0.3 * a + 0.7 * b)
    close(mixed, 0.3 * case.call(z, a) + 0.7 * case.call(z, b))
