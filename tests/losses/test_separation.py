"""The principle of logit separation: which losses, when small enough, put every true logit above every false one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lastlayer import losses

LOG2 = math.log(2)


def separated(z, y):
    """Strictly, over all samples and all wrong classes."""
    true = [row[k] for row, k in zip(z.tolist(), y.tolist(), strict=True)]
    false = [v for row, k in zip(z.tolist(), y.tolist(), strict=True) for j, v in enumerate(row) if j != k]
    return min(true) > max(false)


def counterexample(a):
    """z(x1) = (2a, a) with label 0, z(x2) = (-2a, -a) with label 1."""
    return torch.tensor([[2 * a, a], [-2 * a, -a]], dtype=torch.float64), torch.tensor([0, 1])


def least_without_separation(loss, N=2, K=2, starts=12, steps=300, seed=0):
    """Search for the least loss of an unseparated sample: one true logit is held at or below a false one."""
    y = torch.arange(N) % K
    generator = torch.Generator().manual_seed(seed)
    pairs = [(i, n, j) for i, n, j in itertools.product(range(N), range(N), range(K)) if j != y[n]]
    best = math.inf
    for start in range(starts):
        i, n, j = pairs[start % len(pairs)]
        free = (3 * torch.randn(N, K, dtype=torch.float64, generator=generator)).requires_grad_()
        optimizer = torch.optim.Adam([free], lr=0.2)
        mask = torch.zeros(N, K, dtype=torch.bool)
        mask[i, y[i]] = True
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / steps) + 1e-3
            z = torch.where(mask, torch.minimum(free, free[n, j]), free)
            value = loss(z, y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        z = torch.where(mask, torch.minimum(free, free[n, j]), free).detach()
        assert not separated(z, y)
        best = min(best, loss(z, y).item())
    return best


class TestNotAligned:
    @pytest.mark.parametrize("a", [1.0, 10.0, 40.0])
    def test_cross_entropy_goes_to_zero_without_separation(self, a):
        z, y = counterexample(a)
        loss = losses.cross_entropy(z, y, reduction="sum").item()
        assert loss == pytest.approx(2 * math.log1p(math.exp(-a)), rel=1e-9, abs=1e-15)
        assert not separated(z, y)

    @pytest.mark.parametrize("margin", [0.5, 1.0, 7.0])
    def test_max_margin_is_zero_without_separation(self, margin):
        z, y = counterexample(margin)
        assert losses.max_margin(z, y, margin=margin, reduction="sum").item() == 0.0
        assert not separated(z, y)

    def test_others_that_shift_each_sample_by_itself(self):
        z, y = counterexample(40.0)
        for loss in (losses.focal, losses.soft_margin):
            assert loss(z, y).item() < 1e-10

    def test_the_modules_know(self):
        aligned = {name for name in losses.available() if losses.entry(name).module.aligned}
        assert aligned == {"bce", "self-norm", "nce", "batch-ce", "batch-max-margin", "mse", "ln"}


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
        """ "+ sum log(1 - sigma)" would reward large false logits; ours punishes them."""
        z, y = torch.tensor([[0.0, 50.0]], dtype=torch.float64), torch.tensor([0])
        printed = -math.log(0.5) + math.log1p(-1 / (1 + math.exp(-30)))
        assert printed < 0 < self.sum(z, y).item()


@pytest.mark.parametrize("m", [2, 3])
class TestBatchLosses:
    def test_batch_cross_entropy_threshold(self, m):
        found = least_without_separation(losses.batch_cross_entropy, N=m, starts=8)
        assert LOG2 / m <= found <= LOG2 / m * 1.05

    def test_batch_cross_entropy_just_above(self, m):
        z, y = torch.full((m, 2), -60.0, dtype=torch.float64), torch.zeros(m, dtype=torch.long)
        # A true logit and a false one share what another true logit has.
        z[:, 0] = 0.0
        z[0, 0] = z[0, 1] = -LOG2
        loss = losses.batch_cross_entropy(z, y).item()
        assert not separated(z, y)
        assert loss == pytest.approx(LOG2 / m, rel=1e-9)

    @pytest.mark.parametrize("margin", [0.5, 2.0])
    def test_batch_max_margin_threshold(self, m, margin):
        found = least_without_separation(lambda z, y: losses.batch_max_margin(z, y, margin=margin), N=m, starts=8)
        assert margin / m - 1e-12 <= found <= margin / m * 1.05

    def test_batch_max_margin_just_above(self, m):
        z = torch.zeros(m, 2, dtype=torch.float64)
        y = torch.zeros(m, dtype=torch.long)
        z[0] = torch.tensor([2.0, 0.0])
        z[1:] = torch.tensor([0.0, -2.0])  # the true logit ties with the first sample's false one
        assert not separated(z, y)
        assert losses.batch_max_margin(z, y, margin=1.0).item() == pytest.approx(1.0 / m, rel=1e-12)


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


def test_mse_is_aligned():
    """Every logit within beta / 2 of its place separates; the sum of squares below (beta / 2)^2 ensures it."""
    beta = 4.0
    found = least_without_separation(lambda z, y: losses.mse(z, y, beta=beta, reduction="sum"), K=3, starts=6)
    assert found == pytest.approx(beta**2 / 2, rel=1e-2)  # a true and a false logit both at beta / 2
