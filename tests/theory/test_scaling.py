"""One-step score changes, thresholds and fits of the normalised-space paper, and the sphere model they describe."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.theory import minima, scaling

# epochs of ResNet-18 on MNIST until collapse, the starred rows of Table 11 of the paper
SMALL_CE = {0.01: 2743, 0.04: 792, 0.08: 392, 0.1: 303, 0.2: 160, 0.4: 83}
SMALL_BCE = {0.01: 2708, 0.04: 822, 0.08: 420, 0.1: 310, 0.2: 163, 0.4: 82}
LARGE_CE = {6: 77, 7: 180, 8: 435, 9: 1448, 9.5: 2083}
LARGE_BCE = {8: 37, 10: 83, 12: 243, 14: 737, 16: 2076}


@pytest.mark.parametrize(("rows", "a", "c"), [(SMALL_CE, 27.14, 44.41), (SMALL_BCE, 26.68, 61.50)])
def test_published_inverse_fits(rows: dict[float, int], a: float, c: float) -> None:
    fit = scaling.fit_inverse(list(rows), list(rows.values()))
    assert (round(fit.a, 2), round(fit.c, 2)) == (a, c)
    assert fit.r2 > 0.99


@pytest.mark.parametrize(("rows", "a", "b", "c"), [(LARGE_CE, 0.54, 0.87, -61.83), (LARGE_BCE, 0.49, 0.52, -3.79)])
def test_published_exponential_fits(rows: dict[float, int], a: float, b: float, c: float) -> None:
    fit = scaling.fit_exponential(list(rows), list(rows.values()))
    assert (round(fit.a, 2), round(fit.b, 2)) == (a, b)
    assert fit.c == pytest.approx(c, abs=0.02)


@given(a=st.floats(0.1, 10), b=st.floats(0.2, 1.5), c=st.floats(-50, 50))
def recover_own_curves(a: float, b: float, c: float) -> None:
    xs = [1.0, 2.0, 3.5, 5.0, 7.0]
    fit = scaling.fit_exponential(xs, [a * math.exp(b * x) + c for x in xs])
    assert fit(4.0) == pytest.approx(a * math.exp(4 * b) + c, rel=1e-4, abs=1e-3)
    fit = scaling.fit_power(xs, [a * x ** (3 * b) + c for x in xs])
    assert fit(4.0) == pytest.approx(a * 4 ** (3 * b) + c, rel=1e-4, abs=1e-3)
    fit = scaling.fit_inverse(xs, [a / x + c for x in xs])
    assert (fit.a, fit.c) == (pytest.approx(a, rel=1e-9), pytest.approx(c, abs=1e-9))


@pytest.mark.parametrize("cases", [8, pytest.param(100, marks=pytest.mark.thorough)])
def test_fits_recover_their_own_curves(cases: int) -> None:
    settings(max_examples=cases, deadline=None)(recover_own_curves)()


def test_the_better_curve_has_the_lower_criterion() -> None:
    xs = [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    noise = [1.01, 0.99, 1.0, 1.01, 0.99, 1.0]
    ys = [math.exp(x) * e for x, e in zip(xs, noise, strict=True)]
    assert scaling.fit_exponential(xs, ys).aic < scaling.fit_power(xs, ys).aic


def test_fits_refuse_what_they_cannot_use() -> None:
    with pytest.raises(ValueError, match="same length"):
        scaling.fit_inverse([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="at least 3"):
        scaling.fit_exponential([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        scaling.fit_inverse([1.0, 2.0], [1.0, math.nan])


def mean_loss(
    h: torch.Tensor, w: torch.Tensor, y: torch.Tensor, b: torch.Tensor, *, scale: float, loss: str
) -> torch.Tensor:
    z = scale * h @ w.T - b
    true = z[torch.arange(len(y)), y]
    if loss == "ce":
        return (torch.logsumexp(z, 1) - true).mean()
    return (torch.nn.functional.softplus(z, threshold=50).sum(1) - true).mean()


@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 16.0])
def test_step_against_an_actual_step(loss: str, scale: float) -> None:
    torch.manual_seed(0)
    K, n, d, lr = 4, 3, 5, 0.3
    y = torch.arange(K).repeat(n)
    h, w = torch.randn(n * K, d, dtype=torch.float64), torch.randn(K, d, dtype=torch.float64)
    h, w = h / h.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True)
    b = torch.randn(K, dtype=torch.float64)
    leaf_h, leaf_w = h.clone().requires_grad_(True), w.clone().requires_grad_(True)
    dh, dw = torch.autograd.grad(mean_loss(leaf_h, leaf_w, y, b, scale=scale, loss=loss), [leaf_h, leaf_w])
    got_h, got_w = scaling.gradients(h, w, y, scale=scale, bias=b, loss=loss)
    torch.testing.assert_close(got_h, dh, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(got_w, dw, rtol=1e-12, atol=1e-15)
    change = scale * ((h - lr * dh) @ (w - lr * dw).T - h @ w.T)
    got = scaling.step(h, w, y, scale=scale, lr=lr, bias=b, loss=loss)
    torch.testing.assert_close(got, change, rtol=1e-9, atol=1e-14)
    # Equation 207 writes old minus new on its left side, which has the opposite sign
    assert not torch.allclose(got, -change, rtol=1e-3)


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_step_is_quadratic_for_small_and_exponential_for_large_scales(loss: str) -> None:
    torch.manual_seed(1)
    K, n = 4, 2
    eye = torch.eye(K, dtype=torch.float64) - 1 / K
    w = eye / eye.norm(dim=1, keepdim=True)
    y = torch.arange(K).repeat(n)
    h = w[y] + 0.05 * torch.randn(n * K, K, dtype=torch.float64)
    h = h / h.norm(dim=1, keepdim=True)

    def size(scale: float) -> float:
        return scaling.step(h, w, y, scale=scale, lr=0.1, loss=loss).abs().max().item()

    assert math.log(size(2e-4) / size(1e-4)) / math.log(2) == pytest.approx(2.0, abs=1e-2)
    rate = scaling.decay_rate(h @ w.T, y, loss=loss)
    assert rate > 0
    slope = (math.log(size(60.0) / 60**2) - math.log(size(120.0) / 120**2)) / 60
    assert slope == pytest.approx(rate, rel=0.05)


def test_decay_rate_needs_the_critical_condition() -> None:
    cosines, y = torch.tensor([[0.5, 0.2], [0.3, 0.4]], dtype=torch.float64), torch.tensor([0, 1])
    assert scaling.decay_rate(cosines, y) > 0  # I holds
    assert scaling.decay_rate(cosines, y, loss="bce") < 0  # II does not: a false cosine is positive
    assert scaling.decay_rate(cosines.flip(0), y) < 0


@pytest.mark.parametrize("K", [2, 3, 10, 1000])
def test_lemma_16(K: int) -> None:
    limit = scaling.bias_threshold(K)
    for scale in (limit * 0.99, limit * 1.01, limit + 5.0):
        b = minima.normalized_binary_cross_entropy(K, scale).bias
        assert (-scale / (K - 1) < b < scale) == (scale > limit)


@pytest.mark.parametrize("K", [3, 10, 100])
def test_large_scale_limits(K: int) -> None:
    b = minima.normalized_binary_cross_entropy(K, 500.0).bias
    assert scaling.optimal_bias_limit(K, 500.0) == pytest.approx(b, rel=1e-9)
    for loss, value in (
        ("ce", minima.normalized_cross_entropy),
        ("bce", lambda K, g: minima.normalized_binary_cross_entropy(K, g).loss),
    ):
        rate = math.log(value(K, 200.0) / value(K, 210.0)) / 10
        assert scaling.predicted_exponent(loss, K) == pytest.approx(rate, rel=1e-3)


def slope(loss: str, K: int, scales: tuple[float, float]) -> float:
    found = scaling.steps_to_collapse(loss, K, scales, lr=1.0, starts=3)
    _, steps = found.reached()
    return math.log(steps[0] / steps[1]) / math.log(scales[1] / scales[0])


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_small_scales_take_one_over_the_scale_only_up_to_three_classes(loss: str) -> None:
    """Paper 003 states a/scale. True for K <= 3; from four classes on equal angles need the second order."""
    assert slope(loss, 3, (0.05, 0.1)) == pytest.approx(1.0, abs=0.1)
    assert slope(loss, 5, (0.05, 0.1)) == pytest.approx(2.0, abs=0.15)
    assert (scaling.predicted_power(3), scaling.predicted_power(5)) == (1, 2)


def test_binary_cross_entropy_slows_down_less_at_large_scales() -> None:
    local = {}
    for loss in ("ce", "bce"):
        steps = scaling.steps_to_collapse(loss, 10, [6.0, 8.0], starts=2, max_steps=20_000).steps.double()
        local[loss] = ((steps[:, 1] / steps[:, 0]).log() / 2).median().item()
    assert scaling.predicted_exponent("ce", 10, 7.0) < local["ce"] < scaling.predicted_exponent("ce", 10)
    assert local["bce"] == pytest.approx(scaling.predicted_exponent("bce", 10), abs=0.05)


def test_steps_to_collapse_reports_what_did_not_collapse() -> None:
    found = scaling.steps_to_collapse("ce", 3, [0.001, 2.0], max_steps=150, lr=0.5)
    assert found.steps[0, 0] == -1
    assert found.steps[0, 1] > 0
    scales, _ = found.reached()
    assert scales.tolist() == [2.0]
    assert found.bias_mean.abs().max() < 1e-12  # cross-entropy leaves the mean of the biases where it was
    with pytest.raises(ValueError, match="simplex"):
        scaling.steps_to_collapse("ce", 5, [1.0], d=3)
    with pytest.raises(
        ValueError, match="'mse' has no analysis in the sphere model; losses that have one: ce, ls, bce"
    ):
        scaling.steps_to_collapse("mse", 5, [1.0])
    with pytest.raises(ValueError, match="starts"):
        scaling.steps_to_collapse("ce", 5, [1.0], starts=0)
