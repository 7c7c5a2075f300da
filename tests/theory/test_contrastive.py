"""Contrastive profiles against the losses they bound, and their minimisers against a global search."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import losses
from lastlayer.theory import contrastive

NAMES = ["ce", "ls", "focal", "soft-margin", "max-margin"]


def reference(name: str, z: torch.Tensor) -> torch.Tensor:
    """Losses with label 0 in float64, written from the papers' formulas."""
    lse, true = torch.logsumexp(z, 1), z[:, 0]
    ce = lse - true
    if name == "ce":
        return ce
    if name == "ls":
        return 0.9 * ce + 0.1 * (lse - z.mean(1))
    if name == "focal":
        return (1 - torch.exp(-ce)) ** 3 * ce
    if name == "soft-margin":
        shifted = torch.cat([true.unsqueeze(1) - 0.5, z[:, 1:]], 1)
        return torch.logsumexp(shifted, 1) - shifted[:, 0]
    return (1.0 - true + z[:, 1:].amax(1)).clamp(min=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("K", [2, 3, 10, 100])
def test_profile_bounds_the_loss_with_equality_at_equal_false_logits(name: str, K: int) -> None:
    generator = torch.Generator().manual_seed(K)
    sizes = 10 ** torch.linspace(-1, 1.3, 5000, dtype=torch.float64).unsqueeze(1)
    z = sizes * torch.randn(5000, K, generator=generator, dtype=torch.float64)
    t = z.sum(1) - K * z[:, 0]
    phi = contrastive.phi(name, K)
    assert (reference(name, z) - phi(t) >= -1e-12 * (1 + z.abs().amax(1))).all()
    level = z.clone()
    level[:, 1:] = z[:, 1:].mean(1, keepdim=True)
    torch.testing.assert_close(reference(name, level), phi(t), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES[:4])
def test_derivative_against_autograd(name: str) -> None:
    phi = contrastive.phi(name, 7)
    t = torch.linspace(-200, 50, 1001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(t).sum(), t)
    torch.testing.assert_close(phi.derivative(t.detach()), slope, rtol=1e-10, atol=1e-14)


def test_slopes_at_zero() -> None:
    for K in (2, 10, 1000):
        assert contrastive.phi("ce", K).derivative(0.0) == pytest.approx(1 / K, rel=1e-12)
        assert contrastive.phi("ls", K).derivative(0.0) == pytest.approx(0.9 / K, rel=1e-12)
        gamma, xi = 3.0, float(K)
        focal = gamma * (1 - 1 / xi) ** (gamma - 1) / xi**2 * math.log(xi) + (1 - 1 / xi) ** gamma / xi
        assert contrastive.phi("focal", K).derivative(0.0) == pytest.approx(focal, rel=1e-12)


def brute_force(phi: contrastive.Phi, c: float) -> float:
    t = -torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-4, 5, 100_000, dtype=torch.float64)])
    return float((phi(t) + c * t.abs()).min())


@given(name=st.sampled_from(NAMES), K=st.integers(2, 300), log_c=st.floats(-12.0, 1.0))
def agree_with_a_global_search(name: str, K: int, log_c: float) -> None:
    c = math.exp(log_c)
    phi, found = contrastive.phi(name, K), contrastive.minimisers(name, K, c)
    assert found.t <= 0
    assert found.value == pytest.approx(phi(found.t) + c * abs(found.t), rel=1e-12)
    assert found.value <= brute_force(phi, c) + 1e-12
    assert contrastive.minimiser(name, K, c) == found.t
    for t, value in zip(found.spurious, found.spurious_values, strict=True):
        assert value >= found.value - 1e-9
        for step in (-1e-4, 1e-4 if t < 0 else -1e-4):
            assert phi(t + step) + c * abs(t + step) >= value - 1e-12


@pytest.mark.parametrize("cases", [15, pytest.param(200, marks=pytest.mark.thorough)])
def test_minimiser_by_global_search(cases: int) -> None:
    settings(max_examples=cases, deadline=None)(agree_with_a_global_search)()


def test_closed_forms_as_printed_in_their_correct_form() -> None:
    for K in (2, 10, 100):
        for share in (0.01, 0.5, 0.99):
            c = share / K
            assert contrastive.minimiser("ce", K, c) == pytest.approx(-(K - 1) * math.log(1 / c - (K - 1)), rel=1e-12)
            c = share * 0.9 / K
            expected = -(K - 1) * math.log(1 / (c + 0.1 / K) - (K - 1))
            assert contrastive.minimiser("ls", K, c) == pytest.approx(expected, rel=1e-10)
        assert contrastive.minimiser("ce", K, 1 / K) == pytest.approx(0.0, abs=1e-9)
        assert contrastive.minimiser("ls", K, 0.9 / K * (1 + 1e-12)) == pytest.approx(0.0, abs=1e-8)


def test_focal_tie_contradicts_uniqueness() -> None:
    """Definition 1 asks for one minimiser for every c; K = 100, gamma = 3 has two at c = 0.011752."""
    c = contrastive.tie_level(100, 3.0)
    assert c is not None
    assert c == pytest.approx(0.011752, abs=1e-6)
    found = contrastive.minimisers("focal", 100, c)
    assert found.tie
    assert found.t == pytest.approx(-234.9, abs=0.1)
    assert found.spurious == (0.0,)
    assert contrastive.minimiser("focal", 100, c * (1 - 1e-4)) < -200
    assert contrastive.minimiser("focal", 100, c * (1 + 1e-4)) == 0.0


@pytest.mark.parametrize(("gamma", "first"), [(1.0, 24), (2.0, 18), (3.0, 18), (5.0, 20)])
def test_tie_exists_iff_phi_is_concave_at_zero(gamma: float, first: int) -> None:
    for K in (first - 1, first, first + 20):
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        phi = contrastive.phi(losses.FocalLoss(gamma=gamma), K)
        (slope,) = torch.autograd.grad(phi(t), t, create_graph=True)
        (second,) = torch.autograd.grad(slope, t)
        assert (second.item() < 0) == (first <= K)
        assert (contrastive.tie_level(K, gamma) is not None) == (first <= K)


def test_sphere_maximum() -> None:
    for K in (2, 5, 50):
        direction = torch.full((K,), -1.0, dtype=torch.float64)
        direction[0] = K - 1
        assert direction.norm().item() == pytest.approx(contrastive.sphere_maximum(K))


def test_others_are_refused() -> None:
    for name in ("mse", "bce", "sln"):
        with pytest.raises(ValueError, match="contrastive"):
            contrastive.phi(name, 3)
    with pytest.raises(ValueError, match="c must be positive"):
        contrastive.minimiser("ce", 3, 0.0)
