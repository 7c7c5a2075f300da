"""Logit adjustment refuses classes without samples, and is mapped over class frequencies."""

from __future__ import annotations

import pytest
import torch

from lastlayer import losses

from .cases import K


@pytest.mark.parametrize("counts", [[1, 2, 0, 4, 5], [1, -2, 3, 4, 5]])
def test_counts_must_be_positive(counts):
    with pytest.raises(ValueError, match="counts must be positive"):
        losses.logit_adjusted(torch.zeros(3, K), torch.tensor([0, 1, 2]), counts=counts)


def test_vmap_over_class_frequencies():
    z, target = torch.randn(3, K, dtype=torch.float64), torch.tensor([0, 4, 2])
    counts = torch.randint(1, 100, (4, K)).double()
    found = torch.func.vmap(lambda n: losses.logit_adjusted(z, target, counts=n))(counts)
    torch.testing.assert_close(found, torch.stack([losses.logit_adjusted(z, target, counts=n) for n in counts]))
    found = torch.func.vmap(lambda n: losses.nce(z, target, noise=n))(counts / counts.sum(1, keepdim=True))
    torch.testing.assert_close(found, torch.stack([losses.nce(z, target, noise=n / n.sum()) for n in counts]))
