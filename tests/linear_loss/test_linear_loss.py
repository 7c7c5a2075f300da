"""linear_loss against the loss on the whole logits: values and gradients, by autograd in float64."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lastlayer import heads, losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    BATCH,
    KINDS,
    PER_SAMPLE,
    WEIGHT,
    WHOLE,
    D,
    K,
    N,
    assert_same,
    classes,
    dense,
    layer,
    make,
    peak,
    plans_for,
    rows,
    target,
    variants,
)


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("kind", KINDS)
def test_row_chunks_equal_dense(name: str, kind: str) -> None:
    for module, parts, labels in variants(name, kind):
        expected = dense(module, parts, labels)
        for size in (4, 1, N, 100):  # uneven, one row, all, more than all
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=rows(size))
            assert_same(found, expected, parts, rtol=1e-10, atol=1e-11)


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


@pytest.mark.parametrize("name", [n for n in PER_SAMPLE if n != "logit-adjusted"] + BATCH)
def test_chunks_hold_far_less_than_the_logits(name: str) -> None:
    n, d, k = 2048, 8, 1024
    parts, labels = layer(n, d, k, dtype=torch.float32), target("index", n, k)
    matrix = 4 * n * k
    for plan in plans_for(name, 64, 32):

        def step(plan: Plan = plan) -> None:
            torch.autograd.grad(linear_loss(*parts[:2], labels, name, plan=plan), parts[:2])

        step()
        assert peak(step) < matrix / 3


def test_imports_torch_and_numpy_alone() -> None:
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import lastlayer.linear_loss; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - {'lastlayer', 'torch', 'numpy'}"
        " - set(sys.stdlib_module_names)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
