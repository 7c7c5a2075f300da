"""How long trials will take on this machine, roughly: operations of the model times samples, over a measured rate."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lastlayer import data, models
from lastlayer.training.trial import DataChoice, ModelChoice, Trial

TRAINING_FACTOR = 3  # forward, and twice as much backward
STEP_SECONDS = {"cpu": 4e-4, "cuda": 3e-4}  # that a step takes at least, however small the model
TRIAL_SECONDS = 0.5  # to build a trial, measure it once and write it down, however short


def shape(choice: DataChoice) -> tuple[int, tuple[int, ...], int]:
    """Training samples, shape of an input and classes of the data of a trial, without reading its files."""
    size = data.describe(choice.name).size if choice.name in data.available() else None
    if size is not None:
        samples, in_shape, classes = size
        if "size" in choice.options:  # to which the reader scales
            in_shape = (in_shape[0], choice.options["size"], choice.options["size"])
    else:
        dataset = _embedded(choice.name, tuple(sorted(choice.options.items())))
        samples, in_shape, classes = len(dataset.train), dataset.in_shape, dataset.num_classes
    if choice.classes is not None:
        samples, classes = samples * choice.classes // classes, choice.classes
    known = classes - (choice.unknown or 0)
    if choice.arpl:
        known = len(data.known_classes(choice.name, choice.unknown_from)[choice.seed])
    samples, classes = samples * known // classes, known
    samples = samples if choice.train is None else min(samples, choice.train)
    return int(samples * (1 - choice.holdout)), in_shape, classes


@functools.cache
def _embedded(name: str, options: tuple[tuple[str, Any], ...]) -> data.Dataset:
    return data.load(name, None, **dict(options))


def seconds(trials: Iterable[Trial], device: str) -> float:
    """Time of all trials on all cores or one GPU, evaluations left out; NaN where a model cannot be built here."""
    return sum(_one(trial, device) for trial in trials)


def _one(trial: Trial, device: str) -> float:
    try:
        samples, in_shape, _ = shape(trial.data)
        work = operations(trial.model, in_shape)
    except (ImportError, ValueError, OSError):
        return float("nan")
    steps = trial.schedule.epochs * max(samples // trial.batch_size, 1)
    a_step = TRAINING_FACTOR * work * trial.batch_size / rate(device)
    cores = 1 if device == "cuda" else os.cpu_count() or 1
    return steps * max(a_step, STEP_SECONDS[device] / cores) + TRIAL_SECONDS / cores


def operations(model: ModelChoice, in_shape: tuple[int, ...]) -> float:
    """Floating-point operations of one sample's forward pass."""
    return _operations(model.name, json.dumps(dict(model.options), sort_keys=True), in_shape)


@functools.cache
def _operations(name: str, options: str, in_shape: tuple[int, ...]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        backbone = models.create(name, in_shape, **json.loads(options)).eval()
        inputs = torch.empty(1, *in_shape, dtype=torch.int32 if len(in_shape) == 2 else torch.float32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone(inputs)
    return float(counter.get_total_flops())


@functools.cache
def rate(device: str) -> float:
    """Operations a second of a convolution like those of the models, forward and backward; takes half a second.

    One core is measured, as trials share the cores between them: several threads of one would wait for each other on a
    busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured_rate(device) * (1 if device == "cuda" else os.cpu_count() or 1)
    finally:
        torch.set_num_threads(threads)


def _measured_rate(device: str) -> float:
    batch, channels = (32, 32) if device == "cpu" else (512, 64)
    layer = nn.Conv2d(channels, channels, 3, padding=1).to(device)
    inputs = torch.randn(batch, channels, 16, 16, device=device, requires_grad=True)
    work = 2 * 9 * channels**2 * 16 * 16 * batch * TRAINING_FACTOR
    layer(inputs).sum().backward()
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < 0.5:
        for _ in range(5):
            layer(inputs).sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        count += 5
    return work * count / passed
