"""Finite and accurate at the edges: half precision, huge, tiny and tied logits, confident samples, autocast."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses

from . import reference
from .cases import BATCH, PER_SAMPLE, K, identity

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EDGES = {
    "huge": [[1e4, -1e4, 1e4, -1e4, 0.0], [-1e4] * K, [1e4] * K],
    "zero": [[0.0] * K] * 3,
    "ties": [[1.0, 1.0, 0.0, 1.0, -2.0], [3.0] * K, [-0.5, -0.5, -0.5, -0.5, 2.0]],
    "huge and tiny": [[1e4, 1e-7, -1e-7, 0.0, -1e4], [1e-7, 0.0, 0.0, 0.0, 0.0], [1e4, 1e4, 1e-4, 0.0, -1e-4]],
}
TARGETS = {
    "index": lambda: torch.tensor([1, 0, 4]),
    "probabilities": lambda: torch.tensor([[0.2] * K, [0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.5]]),
    "pair": lambda: (torch.tensor([1, 0, 4]), torch.tensor([0, 0, 2]), torch.tensor([0.0, 0.5, 1.0])),
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_dtype
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_value_and_gradient_are_finite(case, edge, kind, dtype):
    logits = torch.tensor(EDGES[edge], dtype=dtype)
    # For large-margin these are features. Its logits are then about as large, and half precision cannot hold more.
    logits.requires_grad_()
    target = TARGETS[kind]()
    for option in ({}, {"label_smoothing": 0.1}) if case.smoothing else ({},):
        loss = case.call(logits, target, **option)
        assert loss.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        assert loss.isfinite()
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.dtype is dtype
        if dtype is torch.float16:  # which cannot hold every gradient; what it cannot hold is infinite
            wide = logits.detach().float().requires_grad_()
            held = torch.autograd.grad(case.call(wide, target, **option), wide)[0].abs() < 65504
            assert torch.equal(gradient.isfinite(), held)
        else:
            assert gradient.isfinite().all()


@every_dtype
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_batch_losses_are_finite(loss, edge, dtype):
    logits = torch.tensor(EDGES[edge], dtype=dtype, requires_grad=True)
    value = loss(logits, TARGETS["index"]())
    assert value.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert value.isfinite()
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
@pytest.mark.parametrize("kind", TARGETS)
def test_float32_agrees_with_float64_at_large_logits(case, kind):
    """Logits of 1e4 plus small differences, which a loss loses if it does not subtract the largest logit."""
    # A temperature or a prior rounds each logit of 1e4 by itself, before any loss sees it.
    rounds = "temperature" in case.options or "counts" in case.options
    logits = case.logits(3, K, dtype=torch.float32) + (1e4 if case.shift and not rounds else 0.0)
    target = TARGETS[kind]()
    exact = case.call(logits.double(), target if kind != "probabilities" else target.double())
    torch.testing.assert_close(case.call(logits, target).double(), exact, rtol=3e-6, atol=1e-6)


CONFIDENT = [c for c in PER_SAMPLE if c.create_name in ("focal", "soft-margin", "bce", "nce", "self-norm", "mse")]


@pytest.mark.parametrize("case", CONFIDENT, ids=identity)
@pytest.mark.parametrize("gap", [5.0, 15.0, 25.0, 35.0])
def test_small_losses_keep_their_digits(case, gap):
    """The loss of a confident sample is far smaller than the rounding error of log_softmax."""
    row = torch.full((1, K), -gap, dtype=torch.float64)
    row[0, 2] = gap
    expected = case.formula(row[0], 2)
    for target in (torch.tensor([2]), torch.eye(K)[[2]]):
        np.testing.assert_allclose(case.call(row, target).item(), expected, rtol=1e-12)
        if expected > torch.finfo(torch.float32).tiny:
            np.testing.assert_allclose(case.call(row.float(), target).item(), expected, rtol=2e-5)


def sln64(row, y, gamma, tau):
    """Value and gradient of SLN in 80 digits, from the closed form."""
    z = reference.exact(row)
    norm = mp.sqrt(mp.fsum(v * v for v in z))
    s = [v / (tau * norm**gamma) for v in z]
    p = reference.softmax(s)
    d = [p[j] - (1 if j == y else 0) for j in range(len(z))]
    along = mp.fsum(a * b for a, b in zip(d, z, strict=True))
    gradient = [(d[j] - gamma * along * z[j] / norm**2) / (tau * norm**gamma) for j in range(len(z))]
    return float(-mp.log(p[y])), [float(g) for g in gradient]


class TestSoftLogitNorm:
    @pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-10, 1.0, 1e10, 1e30, 3e37])
    @pytest.mark.parametrize("gamma", [0.3, 0.7, 1.0])
    def test_exact_at_every_size_in_float32(self, size, gamma):
        row = torch.tensor([3.0, -1.0, 0.5, 2.0]) * size
        assert (row != 0).all()
        tau = 0.5 * size ** (1 - gamma)
        value, gradient = sln64(row, 1, mp.mpf(gamma), mp.mpf(tau))
        row.requires_grad_()
        found = losses.soft_logit_norm(row, torch.tensor(1), gamma=gamma, tau=tau)
        np.testing.assert_allclose(found.item(), value, rtol=1e-5)
        found.backward()
        expected = np.array(gradient)
        if np.abs(expected).max() < torch.finfo(torch.float32).max:
            np.testing.assert_allclose(row.grad.numpy(), expected, rtol=2e-4, atol=1e-6 * np.abs(expected).max())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("gamma", [0.0, 0.3, 0.7, 1.0])
    def test_zero_row(self, dtype, gamma):
        z = torch.tensor([[0.0, 0.0, 0.0, -0.0], [1.0, 2.0, -3.0, 0.5]], dtype=dtype, requires_grad=True)
        loss = losses.soft_logit_norm(z, torch.tensor([1, 0]), gamma=gamma, tau=0.5, reduction="none")
        assert loss[0].item() == pytest.approx(math.log(4), rel=1e-6)
        loss.sum().backward()
        if gamma > 0:
            assert torch.equal(z.grad[0], torch.zeros(4, dtype=dtype))
        assert z.grad[1].abs().min() > 0

    def test_float16_gradient_that_overflows_is_infinite(self):
        """So that GradScaler sees it and skips the step."""
        z = torch.tensor([[6e-8, 0.0, 0.0]], dtype=torch.float16, requires_grad=True)
        losses.soft_logit_norm(z, torch.tensor([1]), gamma=1.0, tau=0.1).backward()
        assert z.grad.isinf().any()
        wide = z.detach().float().requires_grad_()
        losses.soft_logit_norm(wide, torch.tensor([1]), gamma=1.0, tau=0.1).backward()
        assert wide.grad.abs().max() > 65504
        assert torch.equal(z.grad, wide.grad.half())

    def test_float16_gradient_within_range_is_left_alone(self):
        z = torch.tensor([[0.5, -0.25, 1.0]], dtype=torch.float16, requires_grad=True)
        wide = z.detach().float().requires_grad_()
        for leaf in (z, wide):
            losses.soft_logit_norm(leaf, torch.tensor([1])).backward()
        torch.testing.assert_close(z.grad, wide.grad.half())

    def test_gradient_grows_like_the_formula_near_zero(self):
        sizes = [1e-8, 1e-16]
        norms = []
        for size in sizes:
            z = (size * torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)).requires_grad_()
            losses.soft_logit_norm(z, torch.tensor([0]), gamma=0.7, tau=1.0).backward()
            norms.append(z.grad.norm().item())
        assert norms[1] / norms[0] == pytest.approx((sizes[0] / sizes[1]) ** 0.7, rel=0.01)


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.create_name != "large-margin"], ids=identity)
def test_autocast_computes_in_float32(case):
    """A network's bfloat16 logits inside autocast cost what the same logits cost in float32."""
    logits = case.logits(4, K, dtype=torch.float32).bfloat16()
    target = torch.tensor([0, 1, 2, 3])
    with torch.autocast("cpu", torch.bfloat16):
        found = case.call(logits, target)
    assert found.dtype is torch.float32
    inputs = [given.float() for given in case.inputs(logits)]
    options = {k: v.float() if isinstance(v, torch.Tensor) else v for k, v in case.hyperparameters(logits).items()}
    torch.testing.assert_close(found, case.function(*inputs, target, **options), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_autocast_of_batch_losses(loss):
    logits = torch.randn(4, K, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(logits, torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(found, loss(logits.float(), torch.tensor([0, 1, 2, 3])))


def test_autocast_of_large_margin_keeps_the_angle_in_range():
    """The product runs in bfloat16, so a cosine may be larger than 1. psi must stay at most 1."""
    past = 0
    for w in torch.randn(30, 64, generator=torch.Generator().manual_seed(0)):
        features, weight = w.unsqueeze(0), torch.stack([w, w])
        with torch.autocast("cpu", torch.bfloat16):
            logit = F.linear(features, weight)[0, 1].double()
            found = losses.large_margin(features, weight, torch.tensor([0])).double()
        norms = w.double().square().sum()
        past += logit > norms * 1.001
        # The true logit, norms times psi, is at most the product of the norms. The false one is as computed.
        assert found >= F.softplus(logit - norms) - 1e-4
    assert past > 3


def test_nce_where_the_noise_never_draws_a_class():
    q = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    z = torch.tensor([[0.3, 2.0, -1.0], [0.3, -2.0, 1.0]], dtype=torch.float64, requires_grad=True)
    loss = losses.nce(z, torch.tensor([1, 0]), noise=q, reduction="none")
    formula = reference.nce(25, q.tolist())
    np.testing.assert_allclose(
        loss.detach().numpy(), [formula(z[0].detach(), 1), formula(z[1].detach(), 0)], rtol=1e-12
    )
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert gradient.isfinite().all()
    assert torch.equal(gradient[:, 1], torch.zeros(2, dtype=torch.float64))


def test_torch_overflows_where_large_margin_does_not():
    features, weight = torch.full((2, 4), 1000.0).half(), torch.full((3, 4), 100.0).half()
    assert F.linear(features, weight).isinf().all()
    features.requires_grad_()
    loss = losses.large_margin(features, weight, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(math.log(3), rel=1e-5)  # three equal logits at angle 0
    assert torch.autograd.grad(loss, features)[0].isfinite().all()
