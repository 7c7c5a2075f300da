"""Several trainings of one architecture as one: their backbones run together, in fewer and larger kernels.

The layers of a small network are too small to fill a GPU, even from several streams. Here the parameters of WIDTH
backbones lie in common tensors, every training holding its slices, and `torch.func.vmap` makes one of each layer of
theirs: of convolutions a grouped convolution, of matrix products a batched one. Heads, losses, optimisers, batches and
generators stay each training's own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lastlayer.data import Dataset
from lastlayer.losses import Target
from lastlayer.training.loop import Training, call, judge, teach
from lastlayer.training.parts import make_network
from lastlayer.training.trial import Trial

WIDTH = 8  # always, with idle slots if need be: another width has other kernels, which round differently
Result = TypeVar("Result")
LARGEST_LAYER = 2e9  # operations of a layer and batch from which on it fills a GPU by itself


def is_small(trial: Trial, dataset: Dataset) -> bool:
    """Whether layers of the trial's network leave most of a GPU idle; no where only building it could tell."""
    from torch.utils.flop_counter import FlopCounterMode

    if ":" in trial.model.name:  # from elsewhere: building it may mean fetching it
        return False
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            backbone = make_network(trial, dataset).backbone
            backbone(torch.empty(trial.batch_size, *dataset.in_shape))
    except Exception:  # the trial will meet it again and say so
        return False
    layers = sum(isinstance(module, nn.Conv2d | nn.Linear) for module in backbone.modules())
    return bool(counter.get_total_flops() <= LARGEST_LAYER * max(layers, 1))


def stacking_key(trial: Trial) -> str:
    """Trials with equal keys may share a stack, and come to their epochs' ends together."""
    content = trial.to_dict()
    kept = ("data", "model", "batch_size", "precision", "evaluations")
    return json.dumps([*(content[name] for name in kept), trial.schedule.epochs], sort_keys=True)


class Stack:
    """Trainings with equal backbones, which from now on are slices of common tensors.

    Args:
        trainings: at most WIDTH of them, their data on the device.
        compiled: calls its first argument with the others, compiled; without it everything runs as it is.

    Raises:
        ValueError: when the trainings cannot be stacked.
    """

    def __init__(self, trainings: Sequence[Training], compiled: Callable[..., Any] = call) -> None:
        if not all(training.resident and training.ranks is None for training in trainings):
            raise ValueError("a stack needs its data on the device")
        if any(training.draws for training in trainings):
            raise ValueError("dropout draws for all at once")
        self.trainings = list(trainings)
        self.idle = WIDTH - len(self.trainings)
        self.call = compiled
        self.forward = _together(self.trainings[0])
        device = self.trainings[0].device
        self.branches: list[Any] = []
        if device.type == "cuda":
            self.branches = [torch.cuda.Stream(device) for _ in self.trainings]  # type: ignore[no-untyped-call]
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        backbones = [training.network.backbone for training in self.trainings]
        for name, first in backbones[0].named_parameters():
            whole = self._stacked([backbone.get_parameter(name).data for backbone in backbones])
            for slot, backbone in enumerate(backbones):
                backbone.get_parameter(name).data = whole[slot]
            self.parameters[name] = whole.requires_grad_(first.requires_grad)
        for name, _ in backbones[0].named_buffers():
            whole = self._stacked([backbone.get_buffer(name) for backbone in backbones])
            owner, _, last = name.rpartition(".")
            for slot, backbone in enumerate(backbones):
                backbone.get_submodule(owner)._buffers[last] = whole[slot]
            self.buffers[name] = whole

    def _stacked(self, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows + rows[:1] * self.idle)

    def step(self) -> None:
        """One step of every training."""
        drawn = self._apart(lambda slot: self.trainings[slot].draw())
        inputs = [batch for batch, _, _ in drawn]
        together = torch.stack(inputs + inputs[:1] * self.idle, 1)  # (N, WIDTH, ...)
        for whole in self.parameters.values():
            whole.grad = None
        with self.trainings[0].autocast():
            features = self.call(self.forward, self.parameters, self.buffers, together).unbind(1)
            judged = self._apart(lambda slot: self._judge(slot, features[slot], *drawn[slot]))
        torch.autograd.backward([loss for loss, _ in judged])
        self._apart(lambda slot: self._descend(slot, *judged[slot], drawn[slot][2]))

    def _apart(self, work: Callable[[int], Result]) -> list[Result]:
        """What each training does by itself, in branches that the device may run side by side.

        Whatever passes between the branches and the rest must live to the end of the step: only the next one's
        branches wait for all of this one before they take its memory.
        """
        if not self.branches:
            return [work(slot) for slot in range(len(self.trainings))]
        main = torch.cuda.current_stream(self.trainings[0].device)
        for branch in self.branches:
            branch.wait_stream(main)
        results = []
        for slot, branch in enumerate(self.branches):
            with torch.cuda.stream(branch):
                results.append(work(slot))
        for branch in self.branches:
            main.wait_stream(branch)
        return results

    def _judge(
        self, slot: int, features: Tensor, inputs: Tensor, answer: Target, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        training = self.trainings[slot]
        training.optimiser.zero_grad(set_to_none=True)
        taught = teach(training.teacher, inputs, self.call)
        judged: tuple[Tensor, Tensor] = self.call(judge, training.network.head, training.loss, features, answer, taught)
        return judged

    def _descend(self, slot: int, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        training = self.trainings[slot]
        for name, parameter in training.network.backbone.named_parameters():
            gradient = self.parameters[name].grad
            parameter.grad = None if gradient is None else gradient[slot]
        training.descend(loss, logits, target)


_FORWARDS: dict[str, Callable[..., Tensor]] = {}


def _together(training: Training) -> Callable[..., Tensor]:
    """(parameters, buffers, inputs) -> features, over slots: one function an architecture, to be compiled once."""
    trial = training.trial
    shape = [tuple(p.shape) for p in training.network.backbone.parameters()]
    key = json.dumps([trial.model.name, dict(trial.model.options), str(training.device), shape], sort_keys=True)
    if key not in _FORWARDS:
        plan = copy.deepcopy(training.network.backbone).train()

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
            features: Tensor = functional_call(plan, (parameters, buffers), (inputs,))
            return features

        # slots beside the channels, where a grouped convolution wants them: nothing is moved between layers
        _FORWARDS[key] = vmap(one, in_dims=(0, 0, 1), out_dims=1)
    return _FORWARDS[key]
