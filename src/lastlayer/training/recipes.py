"""Settings that a user leaves open: defaults that suit the data.

Tests: tests/training/test_recipes.py.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lastlayer import losses
from lastlayer.data import Dataset
from lastlayer.training.trial import Augmentation, DataChoice, ModelChoice, Optimiser, Schedule, Trial

NOT_MIRRORED = ("digits", "mnist", "fashion-mnist", "svhn", "omniglot")  # a mirrored digit is another sign
PROBE_STEPS = 800  # with more steps heads overfit; but a million rows take more, because five epochs are the least
PROBE_EPOCHS = (5, 50)
PROBE_BATCH = (64, 1024)


def default_trial(dataset: Dataset) -> Trial:
    """A trial that suits the data: what `lastlayer compare` starts from.

    Features and tiny images get an MLP, images up to 64 pixels a ResNet-20, larger ones a ResNet-18. Photographs are
    padded by an eighth and cropped, as is usual for CIFAR, and flipped. Features and digits are not changed.

    Example:
        >>> from lastlayer import data
        >>> trial = default_trial(data.load("digits"))
        >>> trial.model.name, trial.augmentation.flip, trial.batch_size
        ('mlp', False, 64)
    """
    shape, augmentation = dataset.in_shape, Augmentation()
    if len(shape) == 1 or min(shape[1:]) < 16:
        model = ModelChoice("mlp", {"width": 128})
    else:
        model = ModelChoice("resnet20" if max(shape[1:]) <= 64 else "resnet18")
        if dataset.name not in NOT_MIRRORED:
            augmentation = Augmentation(crop=shape[1] // 8, flip=True)
    return Trial(model=model, augmentation=augmentation, batch_size=64 if len(dataset.train) < 20_000 else 128)


def probe_trial(dataset: Dataset, train: str | Path, test: str | Path | None = None, **options: Any) -> Trial:
    """The trial that trains a linear head on the features of `load_features`, before a loss is chosen.

    It is a trial like any other, with the model `identity` and AdamW. A batch has an eightieth of the rows, but 64 to
    1024. There are 5 to 50 epochs, for about 800 steps.

    Args:
        dataset: what `load_features` gave.
        train, test: the files it was given.
        options: the other options it was given. Files and options name the data in the trial.

    Example:
        >>> import torch
        >>> from lastlayer.data import Split
        >>> split = Split(torch.randn(1000, 8), torch.arange(1000) % 10)
        >>> trial = probe_trial(Dataset("some", split, split, tuple("abcdefghij")), "some.npz")
        >>> trial.model.name, trial.batch_size, trial.schedule.epochs
        ('identity', 64, 50)
    """
    rows = len(dataset.train)
    batch = min(rows, max(PROBE_BATCH[0], min(PROBE_BATCH[1], rows // 80)))
    epochs = max(PROBE_EPOCHS[0], min(PROBE_EPOCHS[1], round(PROBE_STEPS / (rows // batch))))
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
    """If AdamW has no learning rate yet, the trial with the one that suits its loss on fixed features."""
    if trial.optimiser.name != "adamw" or trial.optimiser.lr is not None:
        return trial
    rate = losses.entry(trial.loss.name).module.probe_rate
    return dataclasses.replace(trial, optimiser=dataclasses.replace(trial.optimiser, lr=rate))
