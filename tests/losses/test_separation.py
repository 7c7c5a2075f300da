"""The principle of logit separation: which losses, when small enough, put every true logit above every false one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lastlayer import losses

from .helpers import counterexample, least_without_separation, separated


class TestNotAligned:
    @pytest.mark.parametrize("a", [1.0, 10.0, 40.0])
    def test_cross_entropy_goes_to_zero_without_separation(self, a):
        z, y = counterexample(a)
        loss = losses.cross_entropy(z, y, reduction="sum").item()
        assert loss == pytest.approx(2 * math.log1p(math.exp(-a)), rel=1e-9, abs=1e-15)
        assert not separated(z, y)

    def test_others_that_shift_each_sample_by_itself(self):
        z, y = counterexample(40.0)
        for loss in (losses.focal, losses.soft_margin):
            assert loss(z, y).item() < 1e-10

    def test_the_modules_know(self):
        aligned = {name for name in losses.available() if losses.entry(name).module.aligned}
        assert aligned == {"bce", "self-norm", "nce", "batch-ce", "batch-max-margin", "mse", "ln"}


class TestNce:
    q = np.array([0.5, 0.3, 0.2])
    t = 4

    def options(self, **more):
        return {"num_noise": self.t, "noise": torch.tensor(self.q), "reduction": "sum", **more}

    @pytest.mark.parametrize("t", [1, 4, 30])
    def test_infimum_with_the_label_in_the_noise_sum(self, t):
        """(1 + a) log(1 + a) - a log a at z_y = 0, z_j -> -inf; a = t q_y. It is not 0."""
        for label in range(3):
            a = t * self.q[label]
            infimum = (1 + a) * math.log1p(a) - a * math.log(a)
            options = {**self.options(), "num_noise": t}
            z = torch.full((1, 3), -60.0, dtype=torch.float64)
            z[0, label] = 0.0
            at = losses.nce(z, torch.tensor([label]), **options).item()
            assert at == pytest.approx(infimum, rel=1e-9)
            for move in (-0.5, 0.5):
                z[0, label] = move
                assert losses.nce(z, torch.tensor([label]), **options).item() > at

    def test_threshold_without_the_label(self):
        tq = self.t * self.q
        threshold = min(np.log1p(tq).min(), (tq * np.log1p(1 / tq)).min())
        found = least_without_separation(
            lambda z, y: losses.nce(z, y, **self.options(include_target=False)), N=3, K=3, starts=8, steps=250
        )
        assert found > threshold

    def test_without_the_label_the_loss_goes_to_zero(self):
        z = torch.full((3, 3), -60.0, dtype=torch.float64)
        z.fill_diagonal_(60.0)
        assert losses.nce(z, torch.arange(3), **self.options(include_target=False)).item() < 1e-20

    def test_threshold_with_the_label_counts_from_the_infimum(self):
        tq = self.t * self.q

        def true_part(label, z):
            """F_y(z) = -log g_y - t q_y log(1 - g_y)."""
            a = tq[label]
            s = z - math.log(a)
            return math.log1p(math.exp(-s)) + a * math.log1p(math.exp(s))

        infimum = sum((1 + a) * math.log1p(a) - a * math.log(a) for a in tq)
        threshold = min(
            min(true_part(k, -1.0) - true_part(k, 0.0) for k in range(3)),
            min(a * math.log1p(math.exp(-1 - math.log(a))) for a in tq),
        )
        found = least_without_separation(lambda z, y: losses.nce(z, y, **self.options()), N=3, K=3, starts=8, steps=250)
        assert found - infimum > threshold
