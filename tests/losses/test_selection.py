"""The label of each sample and every class at once give the same loss and gradient, also at ties."""

from __future__ import annotations

import pytest
import torch

from .cases import PER_SAMPLE, K, identity

LABELS = torch.tensor([0, 4, 2, 2, 1, 3])


@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_gradients_of_an_index_and_its_one_hot_target_agree(case):
    z = case.logits(len(LABELS), K).requires_grad_()
    one_hot = torch.eye(K, dtype=torch.float64)[LABELS]
    by_index, by_probability = (
        torch.autograd.grad(case.call(z, target, reduction="sum"), z)[0] for target in (LABELS, one_hot)
    )
    torch.testing.assert_close(by_index, by_probability, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if not c.cosines], ids=identity)
def test_gradients_agree_at_ties_too(case):
    """With tied logits, the largest of the others must not give a gradient to the selected class."""
    z = torch.tensor(
        [[0.0] * K, [1.0, 1.0, 0.0, -1.0, 1.0], [2.0, 2.0, 0.0, 0.0, -1.0]], dtype=torch.float64
    ).requires_grad_()
    for k in range(K):
        y = torch.full((3,), k)
        one_hot = torch.eye(K, dtype=torch.float64)[y]
        by_index, by_probability = (
            torch.autograd.grad(case.call(z, target, reduction="sum"), z)[0] for target in (y, one_hot)
        )
        torch.testing.assert_close(by_index, by_probability, rtol=1e-11, atol=1e-13)
