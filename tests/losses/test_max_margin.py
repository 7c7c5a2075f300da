"""Max-margin loses no digits to a number common to all logits, and it can be zero without separation."""

from __future__ import annotations

import pytest
import torch

from lastlayer import losses

from .cases import identity
from .helpers import (
    counterexample,
    separated,
)


@pytest.mark.parametrize("offset", [5003.0, 1e8])
@pytest.mark.parametrize("loss", [losses.max_margin, losses.batch_max_margin], ids=identity)
def test_a_part_common_to_all_logits_costs_a_hinge_no_digits(loss, offset):
    """0.3 - 5003 is rounded, and in 0.3 - 1e8 the margin is lost: a tie would then have no loss and no gradient."""
    exact = torch.tensor([[8.0, 8.0, 0.0], [0.0, 8.0, 8.0], [0.0, -8.0, 0.0]], dtype=torch.float64, requires_grad=True)
    z = (exact + offset).detach().float().requires_grad_()  # without rounding
    y = torch.tensor([0, 1, 0])
    found, expected = loss(z, y, margin=0.3), loss(exact, y, margin=0.3)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.equal(torch.autograd.grad(found, z)[0], torch.autograd.grad(expected, exact)[0].float())


@pytest.mark.parametrize("margin", [0.5, 1.0, 7.0])
def test_max_margin_is_zero_without_separation(margin):
    z, y = counterexample(margin)
    assert losses.max_margin(z, y, margin=margin, reduction="sum").item() == 0.0
    assert not separated(z, y)
