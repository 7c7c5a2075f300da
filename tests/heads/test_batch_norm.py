"""BatchNormHead: no shift, no bias, and a gamma that may be frozen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lastlayer.heads import BatchNormHead


def test_training_uses_the_batch_evaluation_the_running_statistics():
    head = BatchNormHead(4, 3, momentum=0.5).double()
    x = 3 * torch.randn(8, 4, dtype=torch.float64) + 1
    with torch.no_grad():
        head.norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0, 3.0]))
    gamma, v = head.norm.weight.detach().numpy(), x.numpy()
    mean, var = v.mean(0), v.var(0)
    expected = gamma * (v - mean) / np.sqrt(var + head.norm.eps)
    np.testing.assert_allclose(head.features(x).detach().numpy(), expected, rtol=1e-9)
    running_mean, running_var = 0.5 * mean, 0.5 + 0.5 * v.var(0, ddof=1)
    np.testing.assert_allclose(head.norm.running_mean.numpy(), running_mean, rtol=1e-9)
    expected = gamma * (v - running_mean) / np.sqrt(running_var + head.norm.eps)
    np.testing.assert_allclose(head.eval().features(x).detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("rows", [2, 7, 64])
def test_quadratic_mean_norm_is_the_norm_of_gamma(rows):
    """sqrt(mean ||h||^2) = ||gamma||, exactly if eps is 0 or far smaller than every variance."""
    head = BatchNormHead(5, 3, eps=1e-300).double()
    with torch.no_grad():
        head.norm.weight.copy_(torch.tensor([0.5, -1.0, 2.0, 3.0, 0.1]))
    features = head.features(torch.randn(rows, 5, dtype=torch.float64) * 4 + 2)
    found = features.square().sum(1).mean().sqrt()
    assert found.item() == pytest.approx(head.norm.weight.norm().item(), rel=1e-12)
    torch.testing.assert_close(features.mean(0), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0.0)


def test_nothing_shifts():
    head = BatchNormHead(4, 3)
    assert {name for name, _ in head.named_parameters()} == {"weight", "norm.weight"}
    assert head.bias is None
    assert head.norm.bias is None


def test_a_frozen_gamma():
    head = BatchNormHead(4, 3, gamma=0.25)
    assert torch.equal(head.norm.weight, torch.full((4,), 0.25))
    assert not head.norm.weight.requires_grad
    assert "norm.weight" in head.state_dict()
    head(torch.randn(8, 4)).sum().backward()
    assert head.norm.weight.grad is None
    assert head.weight.grad is not None
    other = BatchNormHead(4, 3, gamma=1.0)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.norm.weight, torch.full((4,), 0.25))
    assert not other.norm.weight.requires_grad


def test_a_free_gamma_starts_at_one_and_learns():
    head = BatchNormHead(4, 3)
    assert torch.equal(head.norm.weight, torch.ones(4))
    head(torch.randn(8, 4)).square().sum().backward()
    assert head.norm.weight.grad.abs().min() > 0


@pytest.mark.parametrize("gamma", [None, 0.5])
def test_synchronised_conversion_keeps_the_form(gamma):
    head = BatchNormHead(4, 3, gamma=gamma)
    head(torch.randn(16, 4) + 3)
    head.eval()
    x = torch.randn(5, 4)
    expected = head(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(head)
    assert isinstance(converted.norm, nn.SyncBatchNorm)
    assert converted.norm.bias is None
    assert converted.norm.weight.requires_grad is (gamma is None)
    assert {name for name, _ in converted.named_parameters()} == {"weight", "norm.weight"}
    torch.testing.assert_close(converted(x), expected)


def test_more_dimensions_are_more_samples():
    head = BatchNormHead(4, 3).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(head(x).reshape(10, 3), head(x.reshape(10, 4)))
