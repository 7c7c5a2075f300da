"""Losses that couple rows, and hinges that tie, are exact across chunks: against the loss on the whole logits."""

from __future__ import annotations

import pytest
import torch

from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    BATCH,
    KINDS,
    K,
    N,
    assert_same,
    classes,
    dense,
    layer,
    make,
    rows,
    target,
)


@pytest.mark.parametrize("name", BATCH)
@pytest.mark.parametrize("kind", KINDS)
def test_batch_losses_are_exact_across_chunks(name: str, kind: str) -> None:
    labels, parts = target(kind), layer()
    if name == "batch-max-margin" and kind in ("probabilities", "pairs"):
        with pytest.raises(ValueError, match="batch_max_margin"):
            linear_loss(parts[0], parts[1], labels, name, plan=rows(4))
        return
    expected = dense(make(name), parts, labels)
    plans = [rows(size) for size in (4, 1, N, 100)]
    if name == "batch-ce":
        plans += [classes(size) for size in (3, 1, K, 100)]
    for plan in plans:
        assert_same(linear_loss(parts[0], parts[1], labels, name, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("plan", [rows(2), classes(2)], ids=["rows", "classes"])
def test_batch_cross_entropy_survives_large_logits_in_any_order(order: int, plan: Plan) -> None:
    parts, labels = layer(), target("index")
    size = torch.logspace(-2.5 * order, 2.5 * order, N, dtype=torch.float64).unsqueeze(1)
    parts[0] = (parts[0].detach() * size).requires_grad_()
    expected = dense(make("batch-ce"), parts, labels)
    assert expected.isfinite()
    assert_same(linear_loss(*parts[:2], labels, "batch-ce", parts[2], plan=plan), expected, parts)


def test_batch_cross_entropy_takes_rows_that_do_not_sum_to_one() -> None:
    parts, labels = layer(), 0.5 * target("probabilities")
    expected = dense(make("batch-ce"), parts, labels)
    for plan in (rows(4), classes(3)):
        assert_same(linear_loss(*parts[:2], labels, "batch-ce", parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("name", ["max-margin", "batch-max-margin"])
@pytest.mark.parametrize("kind", ["index", "pair"])
def test_ties_share_the_gradient(name: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    features, weight = (torch.randint(-1, 2, s, generator=generator).double() for s in ((N, 3), (K, 3)))
    parts = [features.requires_grad_(), weight.requires_grad_(), None]
    labels = target(kind)
    false = (features @ weight.T).scatter(1, (labels if kind == "index" else labels[0]).unsqueeze(1), -9.0)
    assert ((false == false.amax(1, keepdim=True)).sum(1) > 1).any()  # there are ties to share
    module = make(name)
    for size in (2, N):
        found = linear_loss(parts[0], parts[1], labels, module, plan=rows(size))
        assert_same(found, dense(module, parts, labels), parts)
