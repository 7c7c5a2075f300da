"""MSE is aligned with logit separation."""

from __future__ import annotations

import pytest

from lastlayer import losses

from .helpers import (
    least_without_separation,
)


def test_mse_is_aligned():
    """Logits within beta / 2 of their targets are separated. A loss below (beta / 2)^2 ensures that."""
    beta = 4.0
    found = least_without_separation(lambda z, y: losses.mse(z, y, beta=beta, reduction="sum"), K=3, starts=6)
    assert found == pytest.approx(beta**2 / 2, rel=1e-2)  # a true and a false logit both at beta / 2
