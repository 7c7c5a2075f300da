"""The kernels that couple the rows of a batch, at the edges. Equality with the dense form: test_rows.py.

By Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from lastlayer.linear_loss import Plan, linear_loss, plan
from lastlayer.linear_loss.rows import takes
from tests.linear_loss.cases import BY_KERNELS, DEVICE, PLANS, dense, make, on_device

pytestmark = BY_KERNELS


@pytest.mark.parametrize("name", ["batch-ce", "batch-max-margin"])
def test_more_rows_than_one_program_should_go_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are coupled in the same way as several chunks, and give the same loss."""
    parts, labels = on_device()
    expected = dense(make(name, 7), parts, labels)
    monkeypatch.setitem(plan.__globals__, "ONE_PROGRAM", 5)
    assert not takes(labels, make(name, 7), parts[0], 7, 6)  # in one program
    value = linear_loss(*parts[:2], labels, name, parts[2], plan=Plan("rows", "test", rows=6))
    torch.testing.assert_close(value, expected)
    wanted = torch.autograd.grad(expected, parts)
    torch.testing.assert_close(torch.autograd.grad(value, parts), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("top", [-300.0, 0.0, 300.0])
def test_batch_cross_entropy_where_only_the_label_is_not_masked(top: float) -> None:
    """All other classes have a bias of minus infinity. So no false logit is the largest, and only true ones count."""
    h = torch.tensor([[0.0], [1.0], [3.0]], device=DEVICE, requires_grad=True)
    w = torch.tensor([[1.0], [0.5], [-2.0]], device=DEVICE, requires_grad=True)
    bias = torch.tensor([top, -float("inf"), -float("inf")], device=DEVICE, requires_grad=True)
    value = linear_loss(h, w, torch.zeros(3, dtype=torch.long, device=DEVICE), "batch-ce", bias, plan=PLANS[1])
    x = h.detach().double()
    torch.testing.assert_close(value.double(), x.exp().mean().log() - x.mean(), rtol=1e-5, atol=0.0)
    found = torch.autograd.grad(value, [h, w, bias])
    dz = x.softmax(0) - 1 / 3
    nothing = torch.zeros(2, device=DEVICE)
    wanted = [dz, torch.cat([(dz * x).sum(0), nothing]).unsqueeze(1), torch.cat([dz.sum(0), nothing])]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)
