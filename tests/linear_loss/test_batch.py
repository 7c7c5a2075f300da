"""Targets of every form and dtype, ignored labels, and what the mean divides by."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    PER_SAMPLE,
    REDUCTIONS,
    WEIGHT,
    WHOLE,
    N,
    assert_same,
    classes,
    dense,
    gradients,
    layer,
    make,
    plans_for,
    rows,
    target,
)


@pytest.mark.parametrize("ignore_index", [-100, 2, 300])
def test_ignore_index_of_any_number(ignore_index: int) -> None:
    parts, labels = layer(), target("index")
    labels[::2] = ignore_index
    module = losses.CrossEntropyLoss(ignore_index=ignore_index, weight=WEIGHT)
    expected = F.cross_entropy(parts[0] @ parts[1].T + parts[2], labels, weight=WEIGHT, ignore_index=ignore_index)
    for plan in (rows(3), classes(3)):
        assert_same(linear_loss(*parts[:2], labels, module, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_dtype(plan: Plan, dtype: torch.dtype) -> None:
    parts, labels = layer(), target("index")
    found = linear_loss(*parts[:2], labels.to(dtype), "ce", plan=plan)
    torch.testing.assert_close(found, F.cross_entropy(parts[0] @ parts[1].T, labels))


def test_a_pair_may_be_a_list() -> None:
    parts, labels = layer(), target("pairs")
    for plan in (WHOLE, rows(3), classes(2)):
        found = linear_loss(*parts[:2], list(labels), "ce", plan=plan)
        torch.testing.assert_close(found, dense(make("ce"), [*parts[:2], None], labels))


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_all_ignored(name: str) -> None:
    parts = [*layer()[:2], None]
    labels = torch.full((N,), -100)
    for plan, reduction in itertools.product(plans_for(name, 4, 3), REDUCTIONS):
        module = make(name, reduction=reduction)
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        torch.testing.assert_close(found, dense(module, parts, labels), equal_nan=True)
        for gradient in gradients(found, parts)[:2]:
            assert torch.equal(gradient, torch.zeros_like(gradient))
