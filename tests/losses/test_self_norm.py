"""Self-norm: its threshold for separation, which the paper prints without alpha."""

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


class TestSelfNorm:
    @pytest.mark.parametrize("alpha", [0.005, 0.1, 2.0])
    def test_threshold(self, alpha):
        epsilon = min(math.log1p(math.exp(-2)), alpha * (1 - LOG2) ** 2)
        found = least_without_separation(lambda z, y: losses.self_norm(z, y, alpha=alpha, reduction="sum"), starts=8)
        assert found > epsilon

    def test_the_papers_threshold_without_alpha_fails(self):
        """alpha = 0.005, z = (2, -1), (-8, -2): below min(log(1 + e^-2), (1 - log 2)^2), yet not separated."""
        z, y = torch.tensor([[2.0, -1.0], [-8.0, -2.0]], dtype=torch.float64), torch.tensor([0, 1])
        loss = losses.self_norm(z, y, alpha=0.005, reduction="sum").item()
        assert loss == pytest.approx(0.092, abs=5e-4)
        assert loss <= min(math.log1p(math.exp(-2)), (1 - LOG2) ** 2)
        assert loss > min(math.log1p(math.exp(-2)), 0.005 * (1 - LOG2) ** 2)
        assert not separated(z, y)

    @pytest.mark.parametrize("alpha", [0.1, 2.0])
    def test_a_logit_by_itself_states_the_probability_of_its_class(self, alpha):
        p = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
        loss = losses.SelfNormLoss(alpha=alpha)
        z = logits_of_least_loss(loss, p)
        torch.testing.assert_close(loss.single(z)[0], p, rtol=1e-5, atol=0)
        assert torch.equal(loss.posterior(z), loss.probabilities(z))
        assert loss.single(torch.tensor([[3.0, -1000.0]])).tolist() == [[1.0, 0.0]]
