"""linear_loss against the loss on the whole logits: values and gradients, by autograd in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lastlayer import heads, losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    BATCH,
    BY_CLASSES,
    KINDS,
    LABELS_BY_CLASSES,
    PER_SAMPLE,
    REDUCTIONS,
    WEIGHT,
    WHOLE,
    D,
    K,
    N,
    assert_same,
    classes,
    dense,
    layer,
    layer_for,
    make,
    options,
    rows,
    target,
)


def variants(name: str, kind: str) -> Iterator[tuple[losses.Loss, list[Any], Any]]:
    """A loss in every reduction, with and without class weights, ignored labels and a bias; its layer and labels."""
    for reduction, weighted, ignore, biased in itertools.product(REDUCTIONS, *[(False, True)] * 3):
        if (ignore and kind == "probabilities") or (biased and name == "large-margin"):
            continue
        module = make(name, **options(name, reduction, weighted))
        yield module, layer_for(name, biased), target(kind, ignore=ignore)


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("kind", KINDS)
def test_row_chunks_equal_dense(name: str, kind: str) -> None:
    for module, parts, labels in variants(name, kind):
        expected = dense(module, parts, labels)
        for size in (4, 1, N, 100):  # uneven, one row, all, more than all
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=rows(size))
            assert_same(found, expected, parts, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", BY_CLASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_class_tiles_equal_dense(name: str, kind: str) -> None:
    if name in LABELS_BY_CLASSES and kind == "probabilities":
        with pytest.raises(ValueError, match="'rows' takes it"):
            linear_loss(*layer()[:2], target(kind), make(name), plan=classes(3))
        return
    for module, parts, labels in variants(name, kind):
        expected = dense(module, parts, labels)
        for size in (3, 1, K, 100):
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=classes(size))
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


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


@pytest.mark.parametrize(
    "module",
    [
        losses.CrossEntropyLoss(temperature=0.3, label_smoothing=0.2),
        losses.SoftLogitNormLoss(gamma=0.5, tau=0.8, label_smoothing=0.1),
        losses.SoftLogitNormLoss(gamma=0.0, tau=0.8),
        losses.BinaryCrossEntropyLoss(label_smoothing=0.3, pos_weight=WEIGHT, weight=WEIGHT),
        losses.MseLoss(kappa=2.5, beta=3.0),
        losses.LogitAdjustedLoss(counts=list(range(1, K + 1)), tau=0.5),
        losses.SelfNormLoss(alpha=0.7, weight=WEIGHT),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", KINDS)
def test_hyperparameters(module: losses.Loss, kind: str) -> None:
    parts, labels = layer(), target(kind, ignore=True)
    expected = dense(module, parts, labels)
    plans = [rows(4)] if isinstance(module, losses.MseLoss) and kind == "probabilities" else [rows(4), classes(3)]
    for plan in plans:
        assert_same(linear_loss(*parts[:2], labels, module, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_learnable_numbers_of_the_loss(plan: Plan) -> None:
    parts, labels = layer(), target("index")
    for module in (
        losses.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))),
        losses.SoftLogitNormLoss(tau=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))),
        losses.SoftLogitNormLoss(gamma=torch.nn.Parameter(torch.tensor(0.6, dtype=torch.float64))),
        losses.FocalLoss(gamma=torch.nn.Parameter(torch.tensor(1.6, dtype=torch.float64)), reduction="none"),
        losses.SelfNormLoss(alpha=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64)), reduction="none"),
    ):
        (number,) = module.parameters()
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        assert_same(found, dense(module, parts, labels), [*parts, number])


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


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", ["ce", "bce", "sln", "mse", "max-margin", "batch-ce", "focal"])
def test_normalized_is_the_normalized_head(name: str, biased: bool) -> None:
    features, weight, bias = layer()
    scale = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    head = heads.NormalizedHead(D, K, scale=torch.nn.Parameter(scale.detach()), bias=biased).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        if biased:
            head.bias.copy_(bias)
    labels, module = target("index"), make(name)
    wanted = torch.autograd.grad(module(head(features), labels), [features, *head.parameters()])
    by_name = dict(zip(["features", *dict(head.named_parameters())], wanted, strict=True))
    for plan in (WHOLE, rows(4), classes(3)):
        if plan.path == "classes" and name == "max-margin":
            continue
        value = linear_loss(
            features, weight, labels, module, bias if biased else None, normalized=True, scale=scale, plan=plan
        )
        leaves = {"features": features, "weight": weight, "scale": scale} | ({"bias": bias} if biased else {})
        for key, found in zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True):
            torch.testing.assert_close(found, by_name[key])


def test_arc_margin_on_normalized_features() -> None:
    features, weight, _ = layer()
    module, labels = losses.ArcMarginLoss(scale=8.0), target("index")
    expected = module(F.normalize(features) @ F.normalize(weight).T, labels)
    found = linear_loss(features, weight, labels, module, normalized=True, plan=rows(4))
    assert_same(found, expected, [features, weight])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["index", "pair", "pairs"])
def test_nce_samples(shared: bool, kind: str) -> None:
    parts, labels = layer(), target(kind, ignore=True)
    samples = torch.randint(K, (4,) if shared else (N, 4), generator=torch.Generator().manual_seed(5))
    samples[..., 0] = samples[..., 1]  # drawn twice
    noise = torch.tensor([0.0, 0.3, 0.2, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    every = itertools.product(REDUCTIONS, (True, False), (None, noise), (None, WEIGHT))
    for reduction, include_target, q, weight in every:
        module = losses.NceLoss(
            samples=samples, include_target=include_target, noise=q, weight=weight, reduction=reduction
        )
        expected = dense(module, parts, labels)
        for plan in (rows(4), classes(4)):
            found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["ce", "sln", "bce", "mse", "self-norm", "batch-ce", "focal", "large-margin"])
def test_gradcheck(name: str) -> None:
    parts, labels = layer(5, 3, 4), target("index", 5, 4)
    if name == "large-margin":
        parts = parts[:2]
    for plan in (rows(2), classes(3)):
        module = make(name, 4) if name == "batch-ce" else make(name, 4, reduction="none")
        assert torch.autograd.gradcheck(
            lambda h, w, b=None, module=module, plan=plan: linear_loss(h, w, labels, module, b, plan=plan), parts
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
