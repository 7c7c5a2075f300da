"""One step of a training: forward, loss, backward, update.

Tests: tests/training/engine/test_step.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lastlayer.heads import Head
from lastlayer.linear_loss import linear_loss, plan
from lastlayer.linear_loss.plan import SMALL as MANY_LOGITS
from lastlayer.losses import Loss, Target
from lastlayer.training.engine.feed import Feed
from lastlayer.training.engine.state import State

DECIDED_AT_ONCE = 2**24  # logits

Step = Callable[[], None]
Extract = Callable[[nn.Module, Tensor], Tensor]


def extract(backbone: nn.Module, inputs: Tensor) -> Tensor:
    """The features of normalised inputs. A runner may put a faster function in the place of this one."""
    features: Tensor = backbone(inputs)
    return features


def step(state: State, feed: Feed, extract: Extract = extract) -> None:
    """Take one step. The CPU never waits for the device here, so that a GPU can capture the step and replay it."""
    network, clip = state.network, state.trial.optimiser.clip
    with state.own_draws():
        batch = feed.draw(state)

        with state.autocast():
            taught = None
            if state.teacher is not None:
                with torch.no_grad():
                    features = extract(state.teacher.backbone, batch.inputs)
                    taught = state.teacher.head(features), features
            features = extract(network.backbone, batch.inputs)
            loss, logits = loss_of(network.head, state.loss, features, batch.target, taught)

        state.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]

        if state.ranks is not None:
            state.ranks.average_gradients(network)
        if clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        state.update()
        state.count(loss.detach(), logits, batch.labels)


def loss_of(
    head: Head, loss: Loss, features: Tensor, target: Target, taught: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The loss and the plain logits of features.

    If the logits would not fit in memory, returns the predicted classes, shape (N,), in their place.

    Args:
        head: features (N, d) to logits (N, K).
        loss: of the logits.
        features: (N, d).
        target: as the loss takes it.
        taught: logits and features of the teacher, if there is one.
    """
    if taught is None and len(features) * head.num_classes > MANY_LOGITS:
        by_parts: tuple[Tensor, Tensor] | None = loss_by_parts(head, loss, features, target)
        if by_parts is not None:
            return by_parts
    return loss.from_features(head, features, target, taught)


@torch._disable_dynamo  # type: ignore[attr-defined]  # unlike torch.compiler.disable it imports the compiler when called
def loss_by_parts(head: Head, loss: Loss, features: Tensor, target: Target) -> tuple[Tensor, Tensor] | None:
    """The loss and the predicted classes, (N,), by `linear_loss`, which never holds all logits at once.

    Returns None if `linear_loss` would hold them all, and if the loss couples the batch over ranks.
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
