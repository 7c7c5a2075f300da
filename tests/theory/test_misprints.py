"""Formulas that the papers print wrongly and no other file here covers: the print fails, the correction holds."""

import math

import pytest
import torch

from lastlayer.theory import minima, scaling


def test_000_exponent_of_equation_2() -> None:
    """The recognised text has ||f||^2 for ||f||^gamma; only gamma has the homogeneity that the paper uses."""
    torch.manual_seed(0)
    f, tau, gamma, c = torch.randn(5, 4, dtype=torch.float64), 0.5, 0.7, 3.0

    def value(f: torch.Tensor, exponent: float, tau: float) -> torch.Tensor:
        s = f / (tau * f.norm(dim=1, keepdim=True) ** exponent)
        return torch.logsumexp(s, 1) - s[:, 0]

    warmer = tau / c ** (1 - gamma)
    torch.testing.assert_close(value(c * f, gamma, tau), value(f, gamma, warmer))
    assert not torch.allclose(value(c * f, 2.0, tau), value(f, 2.0, warmer))


def test_000_one_component_does_not_make_a_stationary_point() -> None:
    """The multi-class line of Proposition 2 asks for the y-component alone; it can vanish where the others do not."""

    def gradient(f: torch.Tensor) -> torch.Tensor:
        f = f.detach().requires_grad_(True)
        s = f / f.norm()
        (g,) = torch.autograd.grad(torch.logsumexp(s, 0) - s[0], f)
        return g

    low, high = -3.0, 100.0
    f = torch.tensor([0.0, 0.8, -1.1], dtype=torch.float64)
    for _ in range(200):  # the y-component changes sign between these two values of f_y
        f[0] = (low + high) / 2
        low, high = (f[0].item(), high) if gradient(f)[0] < 0 else (low, f[0].item())
    assert gradient(f)[0].abs() < 1e-10
    assert gradient(f).norm() > 1e-2


def test_002_true_logits_of_batch_cross_entropy_need_not_be_positive() -> None:
    """Section 5.1 and A.4 compare raw logits with 1/(2m); the loss does not change under a common shift."""
    m = 4
    z = torch.full((m, 3), -60.0, dtype=torch.float64)
    z[torch.arange(m), torch.arange(m) % 3] = -20.0
    loss = -math.log(m) + torch.logsumexp(z.flatten(), 0) - z[torch.arange(m), torch.arange(m) % 3].mean()
    assert loss.abs() < 1e-12  # as small as it can be, and separated, with every true logit far below 1/(2m)
    assert z.max() < 1 / (2 * m)


def test_003_equation_211_must_leave_out_the_own_class_of_the_sample() -> None:
    """The second-order term expanded: its inner sum skips l = j, the label of the sample; skipping l = k is wrong."""
    torch.manual_seed(0)
    K, n, d, scale = 3, 2, 4, 1.5
    y = torch.arange(K).repeat(n)
    h, w = torch.randn(n * K, d, dtype=torch.float64), torch.randn(K, d, dtype=torch.float64)
    h, w = h / h.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True)
    p = torch.sigmoid(scale * h @ w.T)
    dh, dw = scaling.gradients(h, w, y, scale=scale, loss="bce")
    i, k = 0, 1
    j = int(y[i])

    def expanded(left_out: int) -> float:
        total = 0.0
        for other in range(n * K):
            own = int(y[other])
            outer = -(1 - p[other, k]) if own == k else p[other, k]
            total += float(outer * -(1 - p[i, j]) * w[j] @ h[other])
            for label in range(K):
                if label != left_out:
                    total += float(outer * p[i, label] * w[label] @ h[other])
        return (scale / (n * K)) ** 2 * total

    actual = (dw[k] @ dh[i]).item()
    assert expanded(j) == pytest.approx(actual, rel=1e-12)
    assert expanded(k) != pytest.approx(actual, rel=1e-3)


def test_003_convexity_and_the_repaired_lower_bound() -> None:
    """log(1 + e^x) is convex (Equation 33 is reversed): Jensen bounds the loss from below by its value at the means."""
    torch.manual_seed(1)
    K, n, d = 5, 3, 6
    y = torch.arange(K).repeat(n)
    rows = torch.arange(n * K)
    for scale in (0.5, 4.0, 20.0):
        for _ in range(50):
            h, w = torch.randn(n * K, d, dtype=torch.float64), torch.randn(K, d, dtype=torch.float64)
            h, w = h / h.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True)
            b = torch.randn(K, dtype=torch.float64)
            cosines = h @ w.T
            z = scale * cosines - b
            loss = (torch.logaddexp(z, torch.zeros_like(z)).sum(1) - z[rows, y]).mean().item()
            true = cosines[rows, y].mean().item()
            false = ((cosines.sum() - cosines[rows, y].sum()) / (n * K * (K - 1))).item()
            mean_b = b.mean().item()
            at_means = math.log1p(math.exp(mean_b - scale * true)) + (K - 1) * math.log1p(
                math.exp(scale * false - mean_b)
            )
            assert at_means <= loss + 1e-12
            assert false - true >= -K / (K - 1) - 1e-12
            assert minima.normalized_binary_cross_entropy(K, scale).loss <= at_means + 1e-9


def test_004_intra_is_the_squared_norm_of_the_mean_direction() -> None:
    """The proof of Theorem C.1 uses the norm; the average over all pairs is its square (Lemma C.5)."""
    torch.manual_seed(2)
    h = torch.randn(7, 3, dtype=torch.float64) + 1.0
    u = h / h.norm(dim=1, keepdim=True)
    pairs = sum(float(u[i] @ u[j]) for i in range(7) for j in range(7)) / 49
    assert pairs == pytest.approx(u.mean(0).square().sum().item(), rel=1e-12)
    assert pairs != pytest.approx(u.mean(0).norm().item(), rel=1e-3)
