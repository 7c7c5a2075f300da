"""Perceptrons against small references written here; the identity."""

import pytest
import torch

from lastlayer import models


def test_mlp_batch_norm_last_is_after_the_last_relu() -> None:
    model = models.create("mlp4", (16,), width=8, batch_norm="last").train()
    features = model(torch.randn(64, 16))
    torch.testing.assert_close(features.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    assert (features < 0).any()
    assert not any(m.bias is not None for m in model.modules() if isinstance(m, torch.nn.Linear))


def test_mlp_without_batch_norm_is_relu_of_linear() -> None:
    model = models.create("mlp", (2, 3), width=5, depth=1)
    weight, bias = model.parameters()
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(model(x), (x.flatten(1) @ weight.T + bias).clamp(min=0))


def test_mlp_without_final_relu_ends_in_a_linear_layer() -> None:
    model = models.create("mlp", (2, 3), width=5, depth=2, final_relu=False)
    first, shift, second, offset = model.parameters()
    x = torch.randn(7, 2, 3)
    hidden = (x.flatten(1) @ first.T + shift).clamp(min=0)
    torch.testing.assert_close(model(x), hidden @ second.T + offset)


def test_mlp_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="at least one hidden layer"):
        models.create("mlp", (4,), depth=0)
    with pytest.raises(ValueError, match='batch_norm is "none"'):
        models.create("mlp", (4,), batch_norm="first")


def test_identity_flattens() -> None:
    x = torch.randn(3, 2, 2)
    assert torch.equal(models.create("identity", (2, 2))(x), x.reshape(3, 4))
