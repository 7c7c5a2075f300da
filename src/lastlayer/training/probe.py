"""Heads on given features: reading embeddings as a data set, and the trial that suits them.

A probe is a trial like any other (model `identity`, large batches), so that it resumes, is listed and is compared as
all runs are. Tests: tests/training/test_probe.py.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer import data, losses
from lastlayer.data import Dataset
from lastlayer.training.facts import limits
from lastlayer.training.trial import DataChoice, ModelChoice, Optimiser, Schedule, Trial

STEPS = 800  # more overfit; a million rows take more for their five epochs
EPOCHS = (5, 50)
BATCH = (64, 1024)
BLOCK = 1 << 22  # entries of features in float64 at once


def load_features(
    train: str | Path,
    test: str | Path | None = None,
    *,
    standardize: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Read embeddings and their labels from .safetensors or .npz files.

    The names and types of the arrays are those of `lastlayer.data.arrays`; features are (N, d). A .safetensors file is
    mapped, not read: rows come into memory as they are used, in the dtype they have.

    Args:
        train: the training samples, or both splits.
        test: the test samples.
        standardize: subtract the mean of each entry over the training samples and divide by its deviation.
        test_fraction: share of each class to test on, if one file holds one set.
        seed: of that split.

    Returns:
        A data set named by the training file, whose notes say what is measured in part.

    Raises:
        ValueError: for missing arrays (those found are listed), shapes, dtypes or labels that do not fit, or features
            that are not finite.
        FileNotFoundError, CorruptFileError: for files that are not there or not what their name says.
    """
    dataset = data.arrays(train, test=test, test_fraction=test_fraction, seed=seed, standardize=False)
    if len(dataset.in_shape) != 1:
        raise ValueError(f"{train}: features must be (N, d), got inputs of shape {dataset.in_shape}")
    if dataset.num_classes < 2:
        raise ValueError(f"{train} has one class, {dataset.class_names[0]}: a classifier needs two or more")
    if standardize:
        mean, std = _statistics(dataset.train.tensor())
        dataset = dataset.replace(mean=mean, std=std)
    return dataset.replace(notes=(*dataset.notes, *limits(dataset)))


def _statistics(features: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each entry, in float64 and block by block: a float64 copy of all would be too large."""
    blocks = torch.split(features, max(1, BLOCK // features.shape[1]))
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(features)
    square = torch.stack([(block.double() - mean).square().sum(0) for block in blocks]).sum(0)
    std = (square / len(features)).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std == 0, 1.0, std).tolist())


def probe_trial(dataset: Dataset, train: str | Path, test: str | Path | None = None, **options: Any) -> Trial:
    """The trial that trains a linear head on the features of `load_features`, before a loss is chosen.

    AdamW; batches of an eightieth of the rows within 64 to 1024, and 5 to 50 epochs for about 800 steps.

    Args:
        dataset: what `load_features` gave.
        train, test: the files it was given, and `options` what else: they name the data in the trial.

    Example:
        >>> split = data.Split(torch.randn(1000, 8), torch.arange(1000) % 10)
        >>> trial = probe_trial(Dataset("some", split, split, tuple("abcdefghij")), "some.npz")
        >>> trial.model.name, trial.batch_size, trial.schedule.epochs
        ('identity', 64, 50)
    """
    rows = len(dataset.train)
    batch = min(rows, max(BATCH[0], min(BATCH[1], rows // 80)))
    epochs = max(EPOCHS[0], min(EPOCHS[1], round(STEPS / (rows // batch))))
    named = {} if test is None else {"test": str(test)}
    return Trial(
        data=DataChoice(str(train), {**named, **options}),
        model=ModelChoice("identity"),
        optimiser=Optimiser("adamw"),
        schedule=Schedule(epochs=epochs),
        batch_size=batch,
        evaluations=1,
    )


def choose_rate(trial: Trial) -> Trial:
    """The trial with the learning rate that suits its loss on fixed features, where AdamW has none yet."""
    if trial.optimiser.name != "adamw" or trial.optimiser.lr is not None:
        return trial
    rate = losses.entry(trial.loss.name).module.probe_rate
    return dataclasses.replace(trial, optimiser=dataclasses.replace(trial.optimiser, lr=rate))
