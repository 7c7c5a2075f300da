"""What a trial takes when the user says nothing: by the shape and the kind of the data, in one place."""

from __future__ import annotations

import dataclasses

from lastlayer.data import Dataset
from lastlayer.training.trial import Augmentation, ModelChoice, Schedule, Trial

NOT_MIRRORED = ("digits", "mnist", "fashion-mnist", "svhn", "omniglot")  # a mirrored digit is another sign


def default_model(in_shape: tuple[int, ...]) -> ModelChoice:
    """An MLP for features and tiny images, ResNet-20 up to 64 pixels, ResNet-18 beyond.

    Example:
        >>> default_model((3, 32, 32)).name, default_model((1, 8, 8)).name
        ('resnet20', 'mlp')
    """
    if len(in_shape) == 1 or min(in_shape[1:]) < 16:
        return ModelChoice("mlp", {"width": 128})
    return ModelChoice("resnet20") if max(in_shape[1:]) <= 64 else ModelChoice("resnet18")


def default_augmentation(dataset: Dataset) -> Augmentation:
    """Crops and flips for photographs: pad by an eighth, as is usual for CIFAR; nothing for features and digits."""
    if len(dataset.in_shape) == 1 or dataset.name in NOT_MIRRORED or min(dataset.in_shape[1:]) < 16:
        return Augmentation()
    return Augmentation(crop=dataset.in_shape[1] // 8, flip=True)


def default_trial(dataset: Dataset) -> Trial:
    """A trial that suits the data: what `lastlayer compare` starts from."""
    small = len(dataset.train) < 20_000
    return dataclasses.replace(
        Trial(),
        model=default_model(dataset.in_shape),
        augmentation=default_augmentation(dataset),
        schedule=Schedule(epochs=30),
        batch_size=64 if small else 128,
    )
