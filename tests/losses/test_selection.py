"""The label of each sample and every class at once give the same loss and gradient, also at ties."""

from __future__ import annotations

import pytest
import torch

from .cases import PER_SAMPLE, K, identity

MASKED = [c for c in PER_SAMPLE if c.create_name in ("ce", "focal", "soft-margin", "arc-margin", "logit-adjusted")]
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


@pytest.mark.parametrize("case", MASKED, ids=identity)
def test_a_sample_whose_other_classes_are_all_masked_has_no_gradient(case):
    """By -inf. It must not make the gradient of the whole batch NaN, nor the second derivative."""
    if case.options.get("label_smoothing"):
        pytest.skip("a share of the label lies on masked classes, so the loss is infinite")
    alone = torch.full((1, K), -torch.inf, dtype=torch.float64)
    alone[0, 2] = 0.3
    other = case.logits(1, K)
    z = torch.cat([alone, other]).requires_grad_()
    value = case.call(z, torch.tensor([2, 1]), reduction="sum")
    torch.testing.assert_close(value, case.call(other, torch.tensor([1]), reduction="sum"))
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    assert gradient[0].tolist() == [0.0] * K
    (second,) = torch.autograd.grad(gradient.sum(), z)
    assert second.isfinite().all()


@pytest.mark.parametrize("case", [c for c in MASKED if c.create_name != "logit-adjusted"], ids=identity)
@pytest.mark.parametrize("target", [torch.tensor([0]), torch.ones(1, 1, dtype=torch.float64)], ids=["index", "shares"])
def test_one_class_has_derivatives_of_zero(case, target):
    z = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(case.call(z, target), z, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), z)
    assert gradient.item() == second.item() == 0
