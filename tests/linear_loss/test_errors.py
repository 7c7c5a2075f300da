"""What linear_loss refuses, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import WEIGHT, WHOLE, D, K, N, classes, layer, make, rows, target


class OwnBatchLoss(losses.BatchCrossEntropyLoss):
    """Of a class that is not known to have a form of its own by rows."""


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"group": object()}, ValueError, "init_process_group"),
        ({"group": object(), "loss": "focal"}, ValueError, "focal takes no weight sharded"),
        ({"loss": "kd"}, ValueError, "teacher"),
        ({"loss": "cee"}, ValueError, "did you mean"),
        ({"loss": 3}, TypeError, r"a function of \(logits, target\), got 3"),
        ({"loss": losses.CrossEntropyLoss(num_classes=K + 1)}, ValueError, "num_classes"),
        ({"loss": losses.CrossEntropyLoss(temperature=-1.0), "plan": classes(3)}, ValueError, "temperature"),
        ({"loss": losses.MaxMarginLoss(margin=-1.0), "plan": rows(3)}, ValueError, "margin"),
        ({"loss": "large-margin", "bias": torch.zeros(K).double()}, ValueError, "no bias"),
        ({"features": torch.zeros(2, N, D).double()}, ValueError, "reshape"),
        ({"features": torch.zeros(N, D + 1).double()}, ValueError, "agree in d"),
        ({"features": torch.zeros(N, D)}, TypeError, "convert one"),
        ({"features": torch.zeros(N, D).long()}, TypeError, "floating point"),
        ({"bias": torch.zeros(K + 1)}, ValueError, "bias"),
        ({"bias": [0.0] * K}, TypeError, "bias must be a tensor, got list"),
        ({"bias": torch.zeros(K).long()}, TypeError, "bias must be floating point"),
        ({"target": [0] * N}, TypeError, "target must be a tensor"),
        ({"target": [0] * N, "plan": rows(3)}, TypeError, "target must be a tensor"),
        ({"scale": 3.0}, ValueError, "normalized"),
        ({"normalized": True, "scale": torch.ones(D).double()}, ValueError, "one number"),
        ({"normalized": True, "scale": -1.0}, ValueError, "positive"),
        ({"target": torch.full((N,), K), "plan": rows(3)}, ValueError, "labels must lie"),
        ({"target": torch.zeros(N + 1).long(), "plan": classes(3)}, ValueError, "class indices"),
        ({"target": torch.zeros(N, K), "loss": losses.CrossEntropyLoss(ignore_index=1), "plan": rows(3)}, ValueError,
         "ignore_index"),
        ({"plan": "rows"}, TypeError, "Plan"),
        ({"target": torch.rand(N, K).double().requires_grad_(), "plan": rows(3)}, ValueError, "detach"),
        ({"loss": losses.BatchCrossEntropyLoss(group=object()), "plan": rows(3)}, ValueError, "ranks"),
        ({"loss": OwnBatchLoss(), "plan": rows(3)}, ValueError, "no value for each sample.*'dense'"),
        ({"loss": losses.CrossEntropyLoss(weight=torch.nn.Parameter(WEIGHT)), "plan": rows(3)}, ValueError, "weight"),
    ],
)  # fmt: skip
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    features, weight, _ = layer()
    given = {"features": features, "weight": weight, "target": target("index"), "loss": "ce"} | change
    with pytest.raises(error, match=words):
        linear_loss(**given)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_function_transforms_are_refused_in_words_of_its_own(plan: Plan) -> None:
    features, weight, _ = (p.detach() for p in layer())
    labels = target("index")
    for transform in (torch.func.grad, torch.func.vmap):
        several = weight.expand(2, K, D) if transform is torch.func.vmap else weight
        with pytest.raises(RuntimeError, match="plan 'dense'"):
            transform(lambda w: linear_loss(features, w, labels, "ce", plan=plan))(several)
    found = torch.func.grad(lambda w: linear_loss(features, w, labels, "ce", plan=WHOLE))(weight)
    torch.testing.assert_close(found, torch.func.grad(lambda w: F.cross_entropy(features @ w.T, labels))(weight))


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("name", "plan"), [("large-margin", rows(4)), ("mse", classes(3)), ("batch-ce", rows(N)), ("ce", classes(3))]
)
def test_forward_mode_derivatives_are_refused_in_words_of_its_own(name: str, plan: Plan, enabled: bool) -> None:
    """Also without a gradient. There large-margin by rows would drop them silently."""
    features, weight, _ = (p.detach() for p in layer())
    with torch.set_grad_enabled(enabled), forward_ad.dual_level():
        given = (forward_ad.make_dual(features, torch.ones_like(features)), weight, target("index"), make(name))
        with pytest.raises(RuntimeError, match=r"forward-mode derivative .* plan 'dense' has it"):
            linear_loss(*given, plan=plan)
        assert forward_ad.unpack_dual(linear_loss(*given)).tangent is not None  # few logits are dense by themselves
