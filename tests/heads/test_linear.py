"""The plain linear head starts as torch.nn.Linear does."""

import pytest
import torch

from lastlayer import heads


def test_linear_starts_as_torchs_does():
    torch.manual_seed(0)
    head = heads.LinearHead(400, 300)
    for tensor in (head.weight, head.bias):
        assert tensor.abs().max() <= 1 / 20
        assert tensor.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.1)
    assert heads.LinearHead(3, 2, bias=False).bias is None
