"""Binary cross-entropy: how class weights enter, its threshold for separation, logits far from zero."""

from __future__ import annotations

import math

import pytest
import torch

from lastlayer import losses

from .helpers import (
    LOG2,
    least_without_separation,
    logits_of_least_loss,
    separated,
)


class TestBinaryCrossEntropy:
    def sum(self, z, y):
        return losses.binary_cross_entropy(z, y, reduction="sum")

    @pytest.mark.parametrize("N", [2, 3])
    def test_threshold_is_2_log_2(self, N):
        found = least_without_separation(self.sum, N=N, K=3, starts=6)
        assert 2 * LOG2 <= found <= 2 * LOG2 * 1.01

    def test_just_above_it_separation_fails(self):
        z = torch.tensor([[0.0, -50.0], [0.0, 50.0]], dtype=torch.float64)  # a true and a false logit, both 0
        y = torch.tensor([0, 1])
        assert self.sum(z, y).item() == pytest.approx(2 * LOG2, rel=1e-12)
        assert not separated(z, y)

    def test_the_printed_sign_is_unbounded_below(self):
        """The paper prints "+ sum log(1 - sigma)", which would reward large false logits. Ours punishes them."""
        z, y = torch.tensor([[0.0, 50.0]], dtype=torch.float64), torch.tensor([0])
        printed = -math.log(0.5) + math.log1p(-1 / (1 + math.exp(-30)))
        assert printed < 0 < self.sum(z, y).item()


def test_bce_far_beyond_what_a_sigmoid_holds():
    """Peers that take log(1 - sigmoid) give infinities from |z| = 88 on."""
    z = torch.tensor([[-300.0, 300.0], [300.0, -300.0]], requires_grad=True)
    loss = losses.binary_cross_entropy(z, torch.tensor([0, 0]), reduction="none")
    assert loss.tolist() == [600.0, 0.0]
    assert torch.equal(torch.autograd.grad(loss.sum(), z)[0], torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))


@pytest.mark.parametrize("pos_weight", [None, torch.tensor([3.0, 1.0, 0.5, 2.0], dtype=torch.float64)])
def test_a_logit_by_itself_states_the_probability_of_its_class(pos_weight):
    p = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    loss = losses.BinaryCrossEntropyLoss(pos_weight=pos_weight)
    z = logits_of_least_loss(loss, p)
    torch.testing.assert_close(loss.single(z)[0], p, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.posterior(z)[0], p, rtol=1e-5, atol=0)


def test_the_posterior_is_the_sigmoids_divided_by_their_sum():
    z = torch.tensor([[2.0, -1.0, 0.5], [-800.0, -900.0, -801.0]], dtype=torch.float64)
    loss = losses.BinaryCrossEntropyLoss()
    sigmoids = torch.sigmoid(z[:1])
    torch.testing.assert_close(loss.posterior(z)[:1], sigmoids / sigmoids.sum())
    assert loss.posterior(z)[1, 0].item() == pytest.approx(1 / (1 + math.exp(-1)))  # where sigmoids are all 0
    dense = torch.randn(2, 3, 4)
    torch.testing.assert_close(loss.posterior(dense).sum(1), torch.ones(2, 4))
    torch.testing.assert_close(losses.BinaryCrossEntropyLoss(pos_weight=torch.ones(3)).single(dense), dense.sigmoid())
