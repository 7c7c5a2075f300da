"""Optimisers and learning-rate schedules of a trial."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lastlayer.training.build import Network
from lastlayer.training.trial import Optimiser, Schedule


def make_optimiser(choice: Optimiser, network: Network, rate: Tensor) -> torch.optim.Optimizer:
    """The optimiser over all parameters that learn; weight decay on all of them or on the head's alone.

    Args:
        choice: what was asked for.
        network: its parameters.
        rate: the learning rate, a scalar tensor that the training changes in place on a GPU.
    """
    assert choice.weight_decay is not None
    head = {id(p) for p in network.head.parameters()}
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            decays = choice.decay == "all" or id(parameter) in head
            groups.setdefault(choice.weight_decay if decays else 0.0, []).append(parameter)
    described = [{"params": members, "weight_decay": decay} for decay, members in groups.items()]
    # fused: on a GPU it alone reads the rate on the device; on a CPU torch's default costs more than a small network
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
