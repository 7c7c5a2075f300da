"""Roughly how long trials will take on this machine.

The operations of a model, times the samples it sees, are divided by a rate of operations that is measured here.
"""

import functools
import itertools
import json
import os
import time
from collections.abc import Iterable

import torch
from torch import nn

from lastlayer import data, models
from lastlayer._core.precision import threads
from lastlayer.training.trial import DataChoice, ModelChoice, Trial

TRAINING_FACTOR = 3  # one part forward, two parts backward
STEP_SECONDS = {"cpu": 4e-4, "cuda": 3e-4}  # what a step takes at least, however small the model is
TRIAL_SECONDS = 0.5  # what it takes to build a trial, measure it once and write its files, however short it is


def shape(choice: DataChoice) -> tuple[int, tuple[int, ...], int]:
    """Training samples, shape of an input and classes of the data of a trial, without reading its files."""
    size = data.describe(choice.name).size
    if size is None:  # it needs no files
        dataset = data.load(choice.name, **choice.options)
        size = len(dataset.train), dataset.in_shape, dataset.num_classes
    samples, in_shape, classes = size
    if len(in_shape) == 3 and "size" in choice.options:  # the reader scales images to this
        in_shape = (in_shape[0], choice.options["size"], choice.options["size"])
    if choice.classes is not None:
        samples, classes = samples * choice.classes // classes, choice.classes
    known = classes - (choice.unknown or 0)
    if choice.arpl:
        known = len(data.known_classes(choice.name, choice.unknown_from)[choice.seed])
    samples, classes = samples * known // classes, known
    samples = samples if choice.train is None else min(samples, choice.train)
    return int(samples * (1 - choice.holdout)), in_shape, classes


def seconds(trials: Iterable[Trial], device: str) -> float:
    """Time of all trials on all cores or one GPU, without evaluations. NaN if a model cannot be built here."""
    cores = 1 if device == "cuda" else os.cpu_count() or 1
    total = 0.0
    alike = itertools.groupby(trials, lambda trial: (trial.data, trial.model, trial.batch_size, trial.schedule.epochs))
    for (choice, model, batch_size, epochs), group in alike:
        try:
            samples, in_shape, _ = shape(choice)
            work = operations(model, in_shape)
        except (ImportError, ValueError, OSError):
            return float("nan")
        steps = epochs * max(samples // batch_size, 1)
        step = max(TRAINING_FACTOR * work * batch_size / rate(device), STEP_SECONDS[device] / cores)
        total += len(list(group)) * (steps * step + TRIAL_SECONDS / cores)
    return total


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
    """Operations per second of a convolution like those of the models, forward and backward.

    Measuring takes half a second. On a CPU one core is measured and multiplied, because each trial runs on one core.
    Several threads of one trial would wait for each other on a busy machine.
    """
    batch, channels, cores = (512, 64, 1) if device == "cuda" else (32, 32, os.cpu_count() or 1)
    layer = nn.Conv2d(channels, channels, 3, padding=1).to(device)
    inputs = torch.randn(batch, channels, 16, 16, device=device, requires_grad=True)
    work = 2 * 9 * channels**2 * 16 * 16 * batch * TRAINING_FACTOR
    with threads(1):
        layer(inputs).sum().backward()
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < 0.5:
            for _ in range(5):
                layer(inputs).sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            count += 5
    return cores * work * count / passed
