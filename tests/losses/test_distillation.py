"""Distillation: teachers that differ from sample to sample, and the feature-normalised form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses

from . import reference

G = torch.Generator().manual_seed(0)
Z, TEACHER = (2 * torch.randn(4, 3, dtype=torch.float64, generator=G) for _ in range(2))
H, TEACHER_H = torch.randn(4, 6, dtype=torch.float64, generator=G), torch.randn(4, 9, dtype=torch.float64, generator=G)
Y = torch.tensor([0, 1, 2, 1])


def test_each_sample_follows_its_own_teacher():
    found = losses.distillation(Z, TEACHER, Y, temperature=3.0, alpha=0.6, reduction="none")
    expected = [reference.distillation(t, 3.0, 0.6)(z, k) for z, t, k in zip(Z, TEACHER, Y.tolist(), strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_torchs_divergence_agrees():
    T, alpha = 4.0, 0.9
    divergence = F.kl_div(
        F.log_softmax(Z / T, 1), F.log_softmax(TEACHER / T, 1), log_target=True, reduction="batchmean"
    )
    expected = alpha * T**2 * divergence + (1 - alpha) * F.cross_entropy(Z, Y)
    torch.testing.assert_close(losses.distillation(Z, TEACHER, Y), expected)


def test_a_student_that_equals_its_teacher():
    torch.testing.assert_close(losses.distillation(Z, Z, Y, alpha=0.5), 0.5 * F.cross_entropy(Z, Y))
    assert losses.distillation(Z, Z, Y, alpha=1.0).item() == pytest.approx(0.0, abs=1e-14)


def feature_norm(z, h, teacher, teacher_h, k, scale, beta):
    z, h, teacher, teacher_h = (np.asarray(v) for v in (z, h, teacher, teacher_h))
    q = np.exp(scale * z / np.sqrt((h**2).sum()))
    p = np.exp(scale * teacher / np.sqrt((teacher_h**2).sum()))
    return np.log(np.exp(z).sum()) - z[k] - beta * (p / p.sum() * np.log(q / q.sum())).sum()


def test_feature_norm_distillation():
    found = losses.feature_norm_distillation(Z, H, TEACHER, TEACHER_H, Y, scale=1.5, beta=2.0, reduction="none")
    rows = zip(Z, H, TEACHER, TEACHER_H, Y.tolist(), strict=True)
    np.testing.assert_allclose(found.numpy(), [feature_norm(*row, 1.5, 2.0) for row in rows], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_zero_features_follow_the_uniform_distribution(dtype):
    z = Z.to(dtype).requires_grad_()
    h = torch.zeros(4, 6, dtype=dtype, requires_grad=True)
    found = losses.feature_norm_distillation(z, h, TEACHER.to(dtype), TEACHER_H.to(dtype), Y, beta=2.0)
    torch.testing.assert_close(found.double(), F.cross_entropy(z.double(), Y) + 2 * np.log(3), rtol=1e-3, atol=1e-3)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found, (z, h)))


def test_mistakes():
    with pytest.raises(ValueError, match=r"teacher_logits must have the student's shape \(4, 3\), got \(4, 2\)"):
        losses.distillation(Z, TEACHER[:, :2], Y)
    with pytest.raises(TypeError, match="teacher_logits must be floating point"):
        losses.distillation(Z, TEACHER.long(), Y)
    for name, value in (("alpha", 1.5), ("temperature", 0.0)):
        with pytest.raises(ValueError, match=f"{name} must lie in"):
            losses.distillation(Z, TEACHER, Y, **{name: value})
    with pytest.raises(ValueError, match=r"features must have shape \(4, d\), got \(3, 6\)"):
        losses.feature_norm_distillation(Z, H[:3], TEACHER, TEACHER_H, Y)
    with pytest.raises(ValueError, match=r"teacher_features must have shape \(4, d\)"):
        losses.feature_norm_distillation(Z, H, TEACHER, TEACHER_H[0], Y)
    with pytest.raises(ValueError, match=r"logits must have shape \(N, K\)"):
        losses.feature_norm_distillation(Z[..., None], H, TEACHER[..., None], TEACHER_H, Y[..., None])
    for name, value in (("scale", 0.0), ("beta", -1.0)):
        with pytest.raises(ValueError, match=f"{name} must lie in"):
            losses.feature_norm_distillation(Z, H, TEACHER, TEACHER_H, Y, **{name: value})
