"""The loss of a batch whose logits are too many to be held: a head and its loss as one `linear_loss`."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.heads import Head
from lastlayer.linear_loss import linear_loss, plan
from lastlayer.losses import Loss, Target

DECIDED_AT_ONCE = 2**24  # logits


@torch._disable_dynamo  # type: ignore[attr-defined]  # unlike torch.compiler.disable it imports the compiler when called
def judge_by_parts(head: Head, loss: Loss, features: Tensor, target: Target) -> tuple[Tensor, Tensor] | None:
    """The loss and the predicted class of each sample, (N,), where `linear_loss` would not hold all logits at once.

    None where it would, and where the loss couples the batch over ranks: the caller then takes the plain way.
    """
    if features.dim() != 2 or loss.hyperparameters().get("group") is not None:
        return None
    if plan(len(features), head.in_features, head.num_classes, loss).path == "dense":
        return None
    loss = loss.for_head(head)
    multiplied = head.features(features)
    weight, bias = head.linear()
    value = linear_loss(multiplied, weight, target, loss, bias)
    with torch.no_grad():
        rows = max(1, DECIDED_AT_ONCE // head.num_classes)
        parts = [
            torch.nn.functional.linear(part, weight, bias).argmax(1) for part in torch.split(multiplied.detach(), rows)
        ]
    return value, torch.cat(parts)
