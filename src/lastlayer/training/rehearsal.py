"""One step on two made-up rows, so that a value no loss, head or model takes is told before anything is trained."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from lastlayer import heads
from lastlayer.data import Dataset, Normalize
from lastlayer.models import create
from lastlayer.training.load import load
from lastlayer.training.network import Network
from lastlayer.training.parts import check_inputs, make_loss
from lastlayer.training.steps import objective
from lastlayer.training.trial import Trial

_SOME_WIDTH = 64  # of a model from elsewhere, which may have to be fetched before it can say


def rehearse(trial: Trial, dataset: Dataset) -> tuple[str, ...]:
    """Build a trial's parts for its data and call its loss once; the backbone takes no memory and no time.

    Args:
        trial: resolved.
        dataset: what it trains on.

    Returns:
        What its user should know before it trains.

    Raises:
        ValueError: naming the part and its options, for what only building or calling it brings to light.
    """
    check_inputs(trial, dataset)
    notes: tuple[str, ...] = ()
    with torch.random.fork_rng(devices=[]):
        width = max(_SOME_WIDTH, dataset.num_classes)
        source, elsewhere, _ = trial.model.name.partition(":")
        if source not in ("timm", "hf"):
            # a user's factory may do what tensors without content cannot
            place = torch.device("cpu" if elsewhere else "meta")
            with _part("model", trial.model.name, trial.model.options), place:
                backbone = create(trial.model.name, dataset.in_shape, **trial.model.options)
                _check_batch(trial, backbone)
            width = int(backbone.num_features)  # type: ignore[arg-type]
            if taken_off := getattr(backbone, "taken_off", None):
                notes = (f"model {trial.model.name}: the head takes the place of its last layer ({taken_off})",)
        with _part("head", trial.head.name, trial.head.options):
            head = heads.create(trial.head.name, width, dataset.num_classes, **trial.head.options)
            _check_batch(trial, head)
        if source not in ("timm", "hf"):
            _check_learning(trial, backbone, head)
        network = Network(Normalize(None, None, 1.0), nn.Identity(), head)
        teacher = None if trial.teacher is None else _rehearsed_teacher(trial.teacher, dataset, network)
        with _part("loss", trial.loss.name, trial.loss.options):
            objective(network, make_loss(trial, dataset), teacher, torch.randn(2, width), torch.tensor([0, 1]))
    return notes


def _check_batch(trial: Trial, part: nn.Module) -> None:
    """Refuse batches of one sample where the mean over a batch is taken away: nothing would be left."""
    if trial.batch_size == 1 and any(isinstance(module, nn.BatchNorm1d) for module in part.modules()):
        raise ValueError("it normalises over a batch: batch_size must be >= 2, got 1")


def _check_learning(trial: Trial, *parts: nn.Module) -> None:
    """Refuse parts that are all fixed, such as a simplex on given features: an optimiser would have nothing to move."""
    if not any(parameter.requires_grad for part in parts for parameter in part.parameters()):
        raise ValueError(
            f"head {trial.head.name} on model {trial.model.name} has nothing to learn: choose another of the two"
        )


def _rehearsed_teacher(folder: str, dataset: Dataset, stand_in: Network) -> Network:
    try:
        facts = load(folder).result["data"]  # the whole of it: what cannot be loaded would fail every trial
    except OSError as error:
        raise ValueError(f"teacher {folder} is no finished run: {error}") from error
    theirs, ours = (len(facts["class_names"]), tuple(facts["in_shape"])), (dataset.num_classes, dataset.in_shape)
    if theirs != ours:
        raise ValueError(
            f"teacher {folder} has {theirs[0]} classes and inputs {theirs[1]}; "
            f"{dataset.name} has {ours[0]} and {ours[1]}"
        )
    normalized = {"mean": dataset.mean, "std": dataset.std, "scale": dataset.scale}
    if facts["normalize"] != json.loads(json.dumps(normalized)):  # it is shown the pupil's inputs
        raise ValueError(f"teacher {folder} was trained on inputs normalised otherwise than those of {dataset.name}")
    return stand_in


@contextlib.contextmanager
def _part(part: str, name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Errors within are told as those of a part of the trial."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        what = " ".join([part, name, *(f"{option}={value}" for option, value in options.items())])
        raise ValueError(f"{what}: {error}") from error
