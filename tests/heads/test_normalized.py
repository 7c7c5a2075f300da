"""NormalizedHead: cosines, a subtracted bias, a scale that may learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lastlayer.heads import NormalizedHead


def test_bias_starts_as_asked():
    torch.manual_seed(0)
    assert torch.equal(NormalizedHead(4, 50).bias, torch.zeros(50))
    assert torch.equal(NormalizedHead(4, 50, bias_mean=5.0).bias, torch.full((50,), 5.0))
    bias = NormalizedHead(4, 20000, bias_mean=-2.0, bias_std=3.0).bias
    assert bias.mean().item() == pytest.approx(-2.0, abs=0.1)
    assert bias.std().item() == pytest.approx(3.0, rel=0.05)
    assert NormalizedHead(4, 3, bias=False).bias is None


def test_bias_is_subtracted():
    head = NormalizedHead(4, 3, bias_mean=2.0)
    assert torch.equal(head(torch.zeros(1, 4)), torch.full((1, 3), -2.0))
    assert torch.equal(head.linear()[1], torch.full((3,), -2.0))


def test_a_learnable_scale_learns():
    head = NormalizedHead(4, 3, scale=nn.Parameter(torch.tensor(2.0)), bias=False).double()
    assert "scale" in dict(head.named_parameters())
    x = torch.randn(5, 4, dtype=torch.float64)
    head(x)[:, 0].sum().backward()
    cosines = nn.functional.cosine_similarity(x, head.weight[0], dim=1)
    torch.testing.assert_close(head.scale.grad, cosines.sum().detach())


def test_a_scale_of_another_tensor_moves_with_the_head():
    head = NormalizedHead(4, 3, scale=torch.tensor(2.0)).double()
    assert head.scale.dtype is torch.float64
    assert "scale" in head.state_dict()
    assert list(dict(head.named_parameters())) == ["weight", "bias"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_zero_features_and_rows(dtype, autocast):
    head = NormalizedHead(4, 3, bias_mean=1.0).to(dtype)
    with torch.no_grad():
        head.weight[1] = 0.0
    x = torch.tensor([[0.0] * 4, [1.0, -2.0, 0.5, 3.0]], dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = head(x)
    assert torch.equal(logits[0].double(), torch.full((3,), -1.0, dtype=torch.float64))
    assert logits[1, 1].item() == -1.0
    gx, gw = torch.autograd.grad(logits.float().sum(), (x, head.weight))
    assert torch.equal(gx[0], torch.zeros(4, dtype=dtype))
    assert torch.equal(gw[1], torch.zeros(4, dtype=dtype))
    assert gx.isfinite().all()
    assert gw.isfinite().all()
    assert gx[1].abs().sum() > 0


@pytest.mark.parametrize("size", [1e-40, 1e-20, 1e20, 1e38])
def test_only_directions_count(size):
    head = NormalizedHead(4, 3)
    x = torch.tensor([[0.1, -0.2, 0.3, 0.25]])
    tolerance = 1e-4 if size > 1e-38 else 1e-2  # denormals have few digits
    torch.testing.assert_close(head(size * x), head(x), rtol=1e-4, atol=tolerance)


def test_mistakes():
    learnt = nn.Parameter(torch.tensor(0.0))
    for scale in (0.0, -1.0, float("nan"), float("inf"), torch.tensor(-1.0), learnt):
        with pytest.raises(ValueError, match="scale must be positive"):
            NormalizedHead(4, 3, scale=scale)
    with pytest.raises(ValueError, match="bias_std must not be negative, got -1"):
        NormalizedHead(4, 3, bias_std=-1.0)
    with pytest.raises(ValueError, match=r"one number for all classes, got shape \(3, 1\)"):
        NormalizedHead(4, 3, scale=torch.ones(3, 1))  # `logit` would have to select among the scales
