"""The network, the loss and the optimiser of a trial. Every network is built here.

Tests: tests/training/test_build.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lastlayer import heads, losses, models
from lastlayer._core.registry import digest, options_of, split_path
from lastlayer.data import Normalize
from lastlayer.models.external import find_factory
from lastlayer.training.facts import Facts
from lastlayer.training.trial import Optimiser, Schedule, Trial

LOSS = "loss."  # before the names of the loss's own tensors if they are written beside those of the network


class Network(nn.Module):
    """A classifier from inputs as stored (8-bit images, features) to logits.

    Attributes:
        normalize: inputs as stored to what the backbone takes.
        backbone: normalised inputs to features.
        head: features to logits.
    """

    def __init__(self, normalize: Normalize, backbone: nn.Module, head: heads.Head) -> None:
        super().__init__()
        self.normalize = normalize
        self.backbone = backbone
        self.head = head

    def features(self, inputs: Tensor) -> Tensor:
        """What the head's weight multiplies, (N, d). Geometry is measured on it."""
        return self.head.features(self.backbone(self.normalize(inputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, K) of inputs as stored."""
        logits: Tensor = self.head(self.backbone(self.normalize(inputs)))
        return logits


def build(trial: Trial, facts: Facts, group: Any = None) -> tuple[Network, losses.Loss]:
    """The network and the loss of a trial.

    Weights are drawn from torch's global generator: first those of the backbone, then those of the head.

    Args:
        trial: resolved.
        facts: what is known of its data.
        group: the process group that shares each batch. A loss that couples the batch couples it over the group.
    """
    backbone, width = build_backbone(trial, facts)
    head = heads.create(trial.head.name, width, facts.num_classes, **trial.head.options)
    network = Network(Normalize(facts.mean, facts.std, facts.scale), backbone, head)
    return network, build_loss(trial, facts, group)


def build_backbone(trial: Trial, facts: Facts) -> tuple[nn.Module, int]:
    """The trial's model, which ends in features, and how many features it returns.

    Raises:
        TypeError: if the model does not say how many.
    """
    backbone = models.create(trial.model.name, facts.in_shape, **trial.model.options)
    width = backbone.num_features
    if not isinstance(width, int):
        raise TypeError(f"model {trial.model.name}: num_features must be an int, got {width!r}")
    return backbone, width


def build_loss(trial: Trial, facts: Facts, group: Any = None) -> losses.Loss:
    """The trial's loss. If it asks for the training samples per class, it is told.

    A finished run does not keep these counts. Its loss gets ones, and then reads its own from the run's weights.
    """
    options = dict(trial.loss.options)
    if group is not None and "group" in options_of(losses.entry(trial.loss.name).module):
        options["group"] = group
    return losses.create_for(facts.counts or [1] * facts.num_classes, trial.loss.name, **options)


def own_modules(trial: Trial) -> list[str]:
    """The modules of the user's own parts of a trial."""
    names = [
        *([trial.loss.name] if trial.loss.name not in losses.available() else []),
        *([trial.head.name] if trial.head.name not in heads.available() else []),
        *([trial.model.name] if ":" in trial.model.name else []),
    ]
    return [path[0] for name in names if (path := split_path(name)) and path[0] not in ("timm", "hf")]


def code_of(trial: Trial) -> dict[str, str]:
    """Checksums of the code of the user's own parts of a trial. A key names the part, such as "loss my_loss.Mine"."""
    code = {}
    if trial.loss.name not in losses.available() and (path := split_path(trial.loss.name)):
        code[f"loss {trial.loss.name}"] = digest(path[0], losses.entry(trial.loss.name).module)
    if trial.head.name not in heads.available() and (path := split_path(trial.head.name)):
        code[f"head {trial.head.name}"] = digest(path[0], heads.class_of(trial.head.name))
    module, colon, _ = trial.model.name.partition(":")
    if colon and module not in ("timm", "hf"):
        code[f"model {trial.model.name}"] = digest(module, find_factory(trial.model.name))
    return code


def changed_code(trial: Trial, then: Mapping[str, str]) -> list[str]:
    """The user's own parts whose code differs from what `code_of` noted then."""
    return [part for part, now in code_of(trial).items() if then.get(part, now) != now]


def make_optimiser(choice: Optimiser, network: Network, rate: Tensor) -> torch.optim.Optimizer:
    """The optimiser over all parameters that learn. Weight decay acts on all of them or on those of the head.

    Args:
        choice: resolved.
        network: what learns.
        rate: the learning rate, a scalar tensor. On a GPU the training changes it in place.
    """
    assert choice.weight_decay is not None
    head = {id(p) for p in network.head.parameters()}
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            decays = choice.decay == "all" or id(parameter) in head
            groups.setdefault(choice.weight_decay if decays else 0.0, []).append(parameter)
    described = [{"params": members, "weight_decay": decay} for decay, members in groups.items()]
    # On a GPU only a fused optimiser reads the rate on the device. On a CPU torch's default costs more than a small
    # network.
    lr = rate if rate.is_cuda else rate.item()
    if choice.name == "sgd":
        return torch.optim.SGD(described, lr=lr, momentum=choice.momentum, nesterov=choice.nesterov, fused=True)
    kind = torch.optim.Adam if choice.name == "adam" else torch.optim.AdamW
    return kind(described, lr=lr, fused=True, capturable=rate.is_cuda)


def rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """What the peak learning rate is multiplied by at a step of `steps`, counted from 0.

    Example:
        >>> schedule = Schedule("milestones", epochs=10, milestones=(0.5,), factor=0.1, warmup=1)
        >>> [rate_factor(schedule, step, 100) for step in (0, 4, 9, 10, 49, 50)]
        [0.1, 0.5, 1.0, 1.0, 1.0, 0.1]
    """
    warmup = schedule.warmup / schedule.epochs * steps
    if step < warmup:
        return (step + 1) / math.ceil(warmup)
    if schedule.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
    if schedule.name == "linear":
        return (steps - step) / max(steps - warmup, 1)
    if schedule.name == "milestones":
        passed = sum(step >= round(share * steps) for share in schedule.milestones)
        return float(schedule.factor**passed)
    return 1.0
