"""Focal loss at saturated probabilities, and its Hessian against the paper."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch

from lastlayer import losses

from .cases import K


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_focal_at_saturated_probabilities(gamma, dtype):
    """(1 - p)^(gamma - 1) in the slope is infinite at p = 1 for gamma < 1, but the loss is not."""
    z = torch.tensor(
        [[800.0, -800.0], [200.0, -200.0], [30.0, -30.0], [-800.0, 800.0]], dtype=dtype, requires_grad=True
    )
    loss = losses.focal(z, torch.zeros(4, dtype=torch.long), gamma=gamma, reduction="none")
    assert loss.isfinite().all()
    assert loss[0].item() == 0.0
    assert loss[3].item() == pytest.approx(1600.0)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient[3], torch.tensor([-1.0, 1.0], dtype=dtype))


def test_focal_of_no_number_is_no_number():
    """The loss is not 0 then, as it is for a saturated probability."""
    for row in ([math.nan, 1.0, 0.0], [1.0, math.nan, 0.0], [1.0, math.inf, 0.0]):
        assert losses.focal(torch.tensor([row]), torch.tensor([0])).isnan()


def test_focal_gradient_of_a_confident_sample_in_float32():
    z = torch.tensor([[12.0, -12.0]], requires_grad=True)
    losses.focal(z, torch.tensor([0]), gamma=0.5).backward()
    q = mp.mpf(1) / (1 + mp.exp(24))  # 1 - p
    p = 1 - q
    # dL/dz_0 = -gamma q^gamma p (-log p) ... written out: d/dz [q^g (-log p)] with dq/dz = -pq, d(-log p)/dz = -q
    slope = float(0.5 * q ** mp.mpf(-0.5) * (-p * q) * (-mp.log(p)) + q ** mp.mpf(0.5) * (-q))
    np.testing.assert_allclose(z.grad[0].numpy(), [slope, -slope], rtol=1e-4)


def test_focal_hessian_has_the_papers_form():
    """eta'(p_k) p_k (e - p)(e - p)' - eta(p_k) (diag p - p p')."""
    gamma, k = 3.0, 2
    z = torch.randn(K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = z.softmax(0)
    pk, log_pk = p[k], p[k].log()
    eta = gamma * pk * (1 - pk) ** (gamma - 1) * log_pk - (1 - pk) ** gamma
    slope = gamma * (1 - pk) ** (gamma - 2) * ((1 - gamma * pk) * log_pk + 2 * (1 - pk))
    d = torch.eye(K, dtype=torch.float64)[k] - p
    expected = slope * pk * torch.outer(d, d) - eta * (p.diag() - torch.outer(p, p))
    found = torch.func.hessian(lambda z: losses.focal(z, torch.tensor(k), gamma=gamma))(z)
    torch.testing.assert_close(found, expected)
