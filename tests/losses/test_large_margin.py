"""L-Softmax: psi, the mixing by lambda, and features or classifier rows of zero."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import losses

from . import reference


def replaced_logit(theta, m, lam=0.0):
    """The logit that large_margin puts in place of the true one, for unit vectors at angle theta."""
    h = torch.tensor([[math.cos(theta), math.sin(theta)]], dtype=torch.float64)
    W = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    # With a false logit of 0: L = log(1 + e^-z), so z = -log(e^L - 1).
    L = losses.large_margin(h, W, torch.tensor([0]), margin=m, lam=lam).item()
    return -math.log(math.expm1(L))


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
class TestPsi:
    def test_values(self, m):
        for theta in np.linspace(0, math.pi, 41):
            assert replaced_logit(theta, m) == pytest.approx(float(reference.psi(theta, m)), abs=1e-9)

    def test_ends(self, m):
        assert replaced_logit(0.0, m) == pytest.approx(1.0, abs=1e-12)
        assert replaced_logit(math.pi, m) == pytest.approx(1 - 2 * m, abs=1e-9)

    def test_continuous_non_increasing_and_below_the_cosine(self, m):
        angles = np.linspace(0, math.pi, 400)
        values = np.array([replaced_logit(theta, m) for theta in angles])
        steps = np.diff(values)
        assert (steps <= 1e-9).all()
        assert np.abs(steps).max() <= m * (angles[1] - angles[0]) * 1.01  # |psi'| <= m: no jump at a segment's end
        assert (values <= np.cos(angles) + 1e-9).all()

    def test_at_the_segments_ends(self, m):
        for k in range(1, m):
            edge = k * math.pi / m
            below, above = (replaced_logit(edge + s, m) for s in (-1e-7, 1e-7))
            assert below == pytest.approx(above, abs=1e-5)
            assert replaced_logit(edge, m) == pytest.approx((-1) ** k * math.cos(k * math.pi) - 2 * k, abs=1e-9)


@given(theta=st.floats(0, math.pi), m=st.integers(1, 6), lam=st.floats(0, 100))
@settings(max_examples=50, deadline=None)
def test_lambda_mixes_the_plain_logit_in(theta, m, lam):
    expected = (lam * math.cos(theta) + float(reference.psi(theta, m))) / (1 + lam)
    assert replaced_logit(theta, m, lam) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
class TestLargeMarginAtTheEdges:
    target = torch.tensor([0, 1])

    def run(self, h, W, lam=0.0):
        h, W = h.clone().requires_grad_(), W.clone().requires_grad_()
        loss = losses.large_margin(h, W, self.target, lam=lam)
        gradients = torch.autograd.grad(loss, (h, W))
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in gradients)
        return loss, gradients

    def test_zero_features(self, dtype):
        h, W = torch.zeros(2, 3, dtype=dtype), torch.eye(3, dtype=dtype)
        loss, (dh, _) = self.run(h, W)
        assert loss.item() == pytest.approx(math.log(3), rel=1e-6)
        # The true row adds nothing; each false one pulls with its probability, over two samples.
        third = pytest.approx(1 / 6, rel=1e-2)
        assert dh[0].tolist() == [0.0, third, third]
        _, (dh, _) = self.run(h, W, lam=1.0)
        assert dh[0, 0].item() == pytest.approx((1 / 3 - 1) / 2 * 0.5, rel=1e-2)

    def test_zero_classifier(self, dtype):
        loss, _ = self.run(torch.ones(2, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype))
        assert loss.item() == pytest.approx(math.log(3), rel=1e-6)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_features_along_the_classifier(self, dtype, sign):
        W = torch.tensor([[0.1, 0.2, 0.3], [0.3, -0.7, 0.1]], dtype=dtype)
        loss, _ = self.run(sign * 3 * W, W)
        expected = [reference.large_margin(W.double(), 4, 0.0)((sign * 3 * W[i]).double(), i) for i in range(2)]
        assert loss.item() == pytest.approx(np.mean(expected), rel=1e-2 if dtype.itemsize == 2 else 1e-4)


def test_large_margin_mistakes():
    h, W, target = torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"agree in d, got \(2, 3\) and \(4, 5\)"):
        losses.large_margin(h, torch.zeros(4, 5), target)
    with pytest.raises(ValueError, match=r"features must have two axes, got shape \(3,\)"):
        losses.large_margin(h[0], W, target)
    with pytest.raises(TypeError, match="weight must be floating point"):
        losses.large_margin(h, W.long(), target)
    for margin in (2.5, "4", True):
        with pytest.raises(TypeError, match="margin must be an integer"):
            losses.large_margin(h, W, target, margin=margin)
    with pytest.raises(ValueError, match="margin must lie in"):
        losses.large_margin(h, W, target, margin=0)
    with pytest.raises(ValueError, match="lam must lie in"):
        losses.large_margin(h, W, target, lam=-1.0)
    with pytest.raises(ValueError, match=r"class_weight must have shape \(4,\)"):
        losses.large_margin(h, W, target, class_weight=torch.ones(3))


def test_mixed_dtypes_of_features_and_classifier():
    h, W = torch.randn(3, 4).bfloat16(), torch.randn(5, 4)
    found = losses.large_margin(h, W, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(found, losses.large_margin(h.float(), W, torch.tensor([0, 1, 2])))
    assert found.dtype is torch.float32
