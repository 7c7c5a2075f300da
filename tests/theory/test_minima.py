"""Closed-form minima against high precision, numerical minimisation, and the formulas as the papers print them."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import losses
from lastlayer.theory import minima

mpmath.mp.dps = 60


def exact_binary(K: int, scale: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Theorem 2 of 003 in 60 digits, from Equation 11 as printed."""
    K, g = mpmath.mpf(K), mpmath.mpf(scale)
    s = g / (K - 1)
    root = mpmath.sqrt((K - 2) ** 2 * mpmath.exp(-2 * s) + 4 * (K - 1) * mpmath.exp(g - s))
    b = mpmath.log(((K - 2) * mpmath.exp(-s) + root) / 2)
    return mpmath.log1p(mpmath.exp(b - g)) + (K - 1) * mpmath.log1p(mpmath.exp(-b - s)), b


@pytest.mark.parametrize("K", [2, 3, 10, 1000, 1_000_000])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 16.0, 64.0, 300.0, 1000.0])
def test_normalized_minima_in_sixty_digits(K: int, scale: float) -> None:
    exact = mpmath.log1p((K - 1) * mpmath.exp(-mpmath.mpf(scale) * K / (K - 1)))
    got = minima.normalized_cross_entropy(K, scale)
    assert got == pytest.approx(float(exact), rel=1e-12, abs=1e-305)
    loss, bias = exact_binary(K, scale)
    found = minima.normalized_binary_cross_entropy(K, scale)
    assert found.loss == pytest.approx(float(loss), rel=1e-11, abs=1e-305)
    assert found.bias == pytest.approx(float(bias), rel=1e-13, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(K=st.integers(2, 10**6), scale=st.floats(0.0, 1e3))
def test_optimal_bias_is_stationary_and_optimal(K: int, scale: float) -> None:
    found = minima.normalized_binary_cross_entropy(K, scale)
    s = mpmath.mpf(scale) / (K - 1)

    def total(b: float) -> mpmath.mpf:
        return mpmath.log1p(mpmath.exp(b - scale)) + (K - 1) * mpmath.log1p(mpmath.exp(-b - s))

    for shift in (-1e-3, 1e-3):
        assert total(found.bias + shift) > total(found.bias)


def test_normalized_minimum_by_brute_force() -> None:
    """K = 3 on the circle: a grid of angles for the classifier with the features at their best."""
    scale, angles = 2.0, torch.linspace(0, 2 * math.pi, 61, dtype=torch.float64)[:-1]
    first, second = torch.meshgrid(angles, angles, indexing="ij")
    rows = torch.stack([torch.zeros_like(first), first, second], -1).reshape(-1, 3)  # angles of w
    total = torch.zeros(len(rows), dtype=torch.float64)
    for k in range(3):
        logits = scale * torch.cos(rows.unsqueeze(1) - angles.view(1, -1, 1))  # (configurations, h, 3)
        total += (torch.logsumexp(logits, 2) - logits[..., k]).amin(1) / 3
    best = total.min().item()
    assert minima.normalized_cross_entropy(3, scale) <= best + 1e-12
    assert minima.normalized_cross_entropy(3, scale) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(("K", "tau"), [(2, 1.0), (5, 0.5), (10, 0.2), (100, 0.04)])
def test_logit_norm_infimum(K: int, tau: float) -> None:
    torch.manual_seed(K)
    f = torch.randn(40, K, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([f], max_iter=400, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def each() -> torch.Tensor:
        s = f / (tau * f.norm(dim=1, keepdim=True))
        return torch.logsumexp(s, 1) - s[:, 0]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = each().sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert each().min().item() == pytest.approx(minima.logit_norm(K, tau), rel=1e-6)
    assert each().min().item() >= minima.logit_norm(K, tau) * (1 - 1e-12)


def penalised(C: int, lam: float, g: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log1p((C - 1) * mpmath.exp(-C * g / (C - 1))) + lam * g


@pytest.mark.parametrize("C", [2, 3, 4, 10, 100])
@pytest.mark.parametrize("lam", [0.001, 0.1, 0.7, 0.999, 1.0, 3.0])
def test_penalised_norms(C: int, lam: float) -> None:
    found = minima.penalized_norms(C, lam)
    assert found.loss == pytest.approx(float(penalised(C, lam, found.norm)), rel=1e-13)
    for shift in (-1e-3, 1e-3):
        if found.norm + shift >= 0:
            assert penalised(C, lam, found.norm + shift) > penalised(C, lam, found.norm)
    curvature = float(mpmath.diff(lambda g: penalised(C, lam, g), found.norm, 2))
    assert found.curvature == pytest.approx(curvature, rel=1e-8)


def test_printed_sign_of_proposition_c2_is_wrong() -> None:
    C, lam = 4, 0.05
    share = (C - 1) * lam / math.sqrt(C)
    printed = math.log(1 - share) + share * math.log(math.sqrt(C) / lam - (C - 1))
    ours = minima.regularized_batch_norm(C, lam)
    # nothing can be below the minimum over g of the penalised loss, found here on a grid
    attainable = min(float(penalised(C, math.sqrt(C) * lam, mpmath.mpf(i) / 1000)) for i in range(6000))
    assert printed == pytest.approx(0.193, abs=1e-3)
    assert printed < attainable - 0.1
    assert ours == pytest.approx(attainable, abs=1e-6)


def test_printed_radius_is_too_small() -> None:
    C, lam, epsilon = 10, 0.1, 1e-8
    found = minima.penalized_norms(C, lam)
    f = lambda g: penalised(C, lam, g) - found.loss - epsilon  # noqa: E731
    true = float(mpmath.findroot(f, found.norm + 4e-4)) - found.norm
    assert minima.near_optimal_radius(C, lam, epsilon) == pytest.approx(true, rel=1e-3)
    printed = math.sqrt(C * epsilon / ((C - 1) * lam))
    assert printed < 0.8 * true


@pytest.mark.parametrize(("C", "lam"), [(3, 0.1), (4, 0.05)])
def test_batch_norm_minimum_is_reached_through_batch_normalisation(C: int, lam: float) -> None:
    """Raw features through bias-free BN and a linear layer, optimised; nothing of the library in the loop."""
    torch.manual_seed(C)
    n, d = 3, C + 2
    y = torch.arange(C).repeat(n)
    v = torch.randn(C * n, d, dtype=torch.float64, requires_grad=True)
    gamma = torch.ones(d, dtype=torch.float64, requires_grad=True)
    W = torch.randn(C, d, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [v, gamma, W], max_iter=3000, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-16
    )

    def total() -> torch.Tensor:
        h = (v - v.mean(0)) / v.var(0, unbiased=False).sqrt() * gamma
        z = h @ W.T
        ce = (torch.logsumexp(z, 1) - z[torch.arange(len(y)), y]).mean()
        return ce + lam / 2 * (gamma.square().sum() + W.square().sum())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = total()
        value.backward()
        return value

    optimizer.step(closure)
    assert total().item() == pytest.approx(minima.regularized_batch_norm(C, lam), abs=1e-8)
    assert gamma.norm().item() == pytest.approx(W.norm().item(), rel=1e-4)


def test_quadratic_mean_norm_behind_batch_norm() -> None:
    torch.manual_seed(0)
    v, gamma = torch.randn(50, 7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    h = (v - v.mean(0)) / v.var(0, unbiased=False).sqrt() * gamma
    assert h.square().sum(1).mean().sqrt().item() == pytest.approx(gamma.norm().item(), rel=1e-12)


def symmetric_value(name: str, K: int, c: float, lambda_b: float, gap: float, common: float, bias: float) -> float:
    """The objective at W H_i = gap (I - J) + common J, straight from its definition."""
    zt, zf = gap * (K - 1) / K + common / K + bias, (common - gap) / K + bias
    if name == "bce":
        loss = math.log1p(math.exp(-zt)) + (K - 1) * math.log1p(math.exp(zf))
    elif name == "mse":
        loss = (zt - 15.0) ** 2 + (K - 1) * zf**2
    else:
        loss = math.log1p((K - 1) * math.exp(zf - zt))
    return loss + c * ((K - 1) * abs(gap) + abs(common)) + K * lambda_b / 2 * bias**2


@pytest.mark.parametrize("name", ["ce", "mse", "bce"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("K", "penalty"), [(2, 0.02), (3, 0.05), (10, 0.01), (10, 0.06), (30, 0.02)])
def test_unconstrained_minimum_cannot_be_improved(name: str, with_bias: bool, K: int, penalty: float) -> None:
    n = 4
    c = math.sqrt(n) * penalty
    found = minima.unconstrained(name, K, n, penalty, penalty, bias=with_bias)
    gap, common, bias = -found.rho, found.common, found.bias
    here = symmetric_value(name, K, c, 0.0, gap, common, bias)
    assert here == pytest.approx(found.loss, rel=1e-12)
    assert found.z_true == pytest.approx(gap * (K - 1) / K + common / K + bias)
    generator = torch.Generator().manual_seed(K)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(200):
            da, du, db = (size * torch.randn(3, generator=generator, dtype=torch.float64)).tolist()
            moved = symmetric_value(name, K, c, 0.0, gap + da, common + du, bias + (db if with_bias else 0.0))
            assert moved >= here - 1e-13


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("c", [0.003, 0.03, 0.09, 0.4])
@pytest.mark.parametrize("lambda_b", [0.0, 1e-3, 0.02, 0.5, 10.0])
def test_binary_minimum_with_a_penalised_bias(K: int, c: float, lambda_b: float) -> None:
    found = minima.unconstrained("bce", K, 1, c, c, lambda_b=lambda_b)
    here = symmetric_value("bce", K, c, lambda_b, -found.rho, found.common, found.bias)
    assert here == pytest.approx(found.loss, rel=1e-12)
    generator = torch.Generator().manual_seed(K)
    for size in (1e-4, 1e-2, 1.0):
        for step in (size * torch.randn(200, 3, generator=generator, dtype=torch.float64)).tolist():
            moved = symmetric_value(
                "bce", K, c, lambda_b, -found.rho + step[0], found.common + step[1], found.bias + step[2]
            )
            assert moved >= here - 1e-13


@pytest.mark.parametrize(("K", "c"), [(3, 0.01), (10, 0.02), (50, 0.004), (10, 0.12)])
def test_bias_penalty_binds_exactly_above_its_threshold(K: int, c: float) -> None:
    limit = minima.bias_penalty_threshold(K, 1, c, c)
    below = minima.unconstrained("bce", K, 1, c, c, lambda_b=limit * (1 - 1e-6))
    above = minima.unconstrained("bce", K, 1, c, c, lambda_b=limit * (1 + 1e-3))
    assert below.common == 0.0
    assert above.common < 0.0
    assert abs(above.bias) == pytest.approx(c / (limit * (1 + 1e-3)))
    assert math.isinf(minima.bias_penalty_threshold(2, 1, c, c))


def test_literal_constants_of_theorem_one_are_wrong() -> None:
    """001 prints three different constants; only c = sqrt(n lw lh) with phi(t) gives what W and H can reach."""
    K, n, lw, lh = 4, 5, 5e-3, 5e-3
    c = math.sqrt(n * lw * lh)
    phi = lambda t: math.log1p((K - 1) * math.exp(t / (K - 1)))  # noqa: E731
    grid = [-i / 500 for i in range(30000)]
    ours = minima.unconstrained("ce", K, n, lw, lh).loss
    assert ours == pytest.approx(min(phi(t) + c * abs(t) for t in grid), abs=1e-6)
    for constant in (K * c, (K - 1) * c):
        assert min(phi(t) + constant * abs(t) for t in grid) > ours + 0.1


def test_hyperparameters_of_the_module_count() -> None:
    plain = minima.unconstrained("ls", 5, 2, 0.01, 0.01)
    assert plain == minima.unconstrained(losses.CrossEntropyLoss(label_smoothing=0.1), 5, 2, 0.01, 0.01)
    assert plain.loss != minima.unconstrained(losses.CrossEntropyLoss(label_smoothing=0.3), 5, 2, 0.01, 0.01).loss
    warm = minima.unconstrained(losses.CrossEntropyLoss(temperature=2.0), 5, 2, 0.01, 0.01)
    # CE(z/T) with penalties c is CE(z) with penalties T c
    assert warm.loss == pytest.approx(minima.unconstrained("ce", 5, 2, 0.02, 0.02).loss, rel=1e-12)
    beta = minima.unconstrained(losses.MseLoss(beta=3.0), 4, 2, 0.01, 0.01, bias=False)
    assert beta.z_true == pytest.approx(3.0 - math.sqrt(2) * 0.01 * 4 / 2)
    assert beta.z_false == pytest.approx(0.0, abs=1e-15)


def test_strong_penalties_leave_nothing() -> None:
    for name in ("ce", "ls", "focal"):
        found = minima.unconstrained(name, 10, 1, 0.2, 0.2)
        assert found.rho == 0.0
        assert found.w_norm2 == found.h_norm2 == 0.0
    assert minima.unconstrained("ce", 10, 1, 0.2, 0.2).loss == pytest.approx(math.log(10))


def test_what_has_no_closed_form_is_refused() -> None:
    # at beta = -3 the minimum is that of beta = 3 with all signs turned, not beta^2 (K - 1)/K at W = H = 0
    squares = (losses.MseLoss(kappa=2.0), losses.MseLoss(beta=-3.0))
    for bad in (*squares, "sln", "self-norm", losses.BinaryCrossEntropyLoss(label_smoothing=0.1)):
        with pytest.raises(ValueError, match="closed form"):
            minima.unconstrained(bad, 4, 2, 0.01, 0.01)
    with pytest.raises(ValueError, match="lambda_b"):
        minima.unconstrained("mse", 4, 2, 0.01, 0.01, lambda_b=0.1)
    with pytest.raises(ValueError, match="class weights"):
        minima.unconstrained(losses.CrossEntropyLoss(weight=torch.ones(4)), 4, 2, 0.01, 0.01)
    with pytest.raises(TypeError, match="a loss Module"):
        minima.unconstrained(torch.nn.CrossEntropyLoss(), 4, 2, 0.01, 0.01)
    with pytest.raises(ValueError, match="scale"):
        minima.normalized_cross_entropy(3, -1.0)
    with pytest.raises(ValueError, match="K must be at least 2"):
        minima.normalized_cross_entropy(1, 1.0)
    with pytest.raises(TypeError, match="K must be an int"):
        minima.normalized_cross_entropy(2.5, 1.0)  # type: ignore[arg-type]
