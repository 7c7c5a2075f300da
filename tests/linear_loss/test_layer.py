"""The layer and its step for autograd: which gradients there are, when, and of which numbers."""

from __future__ import annotations

import itertools

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    REDUCTIONS,
    K,
    classes,
    dense,
    gradients,
    layer,
    make,
    plans_for,
    rows,
    target,
)


@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_asked_for(wanted: int) -> None:
    parts, labels = layer(), target("index")
    for i, part in enumerate(parts):
        part.requires_grad_(i == wanted)
    for name, plan in itertools.product(("ce", "sln", "bce", "mse", "max-margin", "batch-ce"), (rows(4), classes(3))):
        if name == "max-margin" and plan.path == "classes":
            continue
        found = linear_loss(*parts[:2], labels, name, parts[2], plan=plan)
        expected = dense(make(name), parts, labels)
        torch.testing.assert_close(*(torch.autograd.grad(v, parts[wanted])[0] for v in (found, expected)))


@pytest.mark.parametrize("name", ["ce", "max-margin", "batch-ce", "sln"])
def test_without_gradients_and_twice(name: str) -> None:
    parts, labels = layer(), target("index")
    with torch.no_grad():
        still = linear_loss(*parts[:2], labels, name, plan=rows(4))
    assert not still.requires_grad
    value = linear_loss(*parts[:2], labels, name, plan=rows(4))
    torch.testing.assert_close(value.detach(), still)
    first = torch.autograd.grad(value, parts[:2], retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(value, parts[:2]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_second_derivatives_are_refused(plan: Plan) -> None:
    parts = layer()
    value = linear_loss(*parts[:2], target("index"), "ce", plan=plan)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(value, parts[0], create_graph=True)


@pytest.mark.parametrize(
    ("name", "number"),
    [("ce", "temperature"), ("focal", "gamma"), ("bce", "label_smoothing"), ("sln", "gamma"), ("self-norm", "alpha")],
)
def test_the_backward_pass_has_the_numbers_of_its_forward_pass(name: str, number: str) -> None:
    for plan, reduction in itertools.product(plans_for(name, 4, 3), REDUCTIONS):
        found = []
        for how in (plan, Plan("dense", "test")):
            parts, module = layer(), make(name, reduction=reduction)
            value = linear_loss(*parts[:2], target("index"), module, parts[2], plan=how)
            setattr(module, number, 0.25)
            found.append(gradients(value, parts))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["index", "probabilities", "pair"])
@pytest.mark.parametrize("changed", ["target", "weight"])
def test_a_target_or_class_weight_written_to_before_the_backward_pass_is_told(kind: str, changed: str) -> None:
    for plan in plans_for("ce", 4, 3):
        parts, labels, weight = layer(), target(kind), torch.linspace(0.2, 2.0, K, dtype=torch.float64)
        module = losses.CrossEntropyLoss(weight=weight, reduction="none")
        value = linear_loss(*parts[:2], labels, module, parts[2], plan=plan).sum()
        if changed == "weight":
            module.weight.mul_(2)
        else:
            (labels[0] if isinstance(labels, tuple) else labels).zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()
