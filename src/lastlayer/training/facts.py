"""The data of a trial: reading its samples, and the facts that are known of them.

Tests: tests/training/test_facts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer import data
from lastlayer.training.trial import DataChoice

LARGEST_LOGITS = 1 << 26  # logits held at once; a split with more of them is measured in part
BLOCK = 1 << 22  # entries of features in float64 at once


@dataclass(frozen=True)
class Facts:
    """What is known of a data set: all that a network and a loss are built from, and what a result tells of it.

    Attributes:
        name: of the data set.
        class_names: one name per class, in label order.
        in_shape: shape of one input.
        mean, std, scale: how inputs are normalised, (x / scale - mean) / std.
        dtype: of the inputs as stored, such as "uint8".
        counts: training samples per class; None if the facts come from an older run, which does not tell them.
        samples: how many there are for training and for testing.
        checksums: SHA-256 per source file.
        notes: every choice made on the way, in order.
    """

    name: str
    class_names: tuple[str, ...]
    in_shape: tuple[int, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float = 1.0
    dtype: str = "float32"
    counts: tuple[int, ...] | None = None
    samples: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @classmethod
    def of(cls, dataset: data.Dataset) -> Facts:
        """The facts of a data set.

        Example:
            >>> facts = Facts.of(data.load("iris"))
            >>> facts.in_shape, facts.counts
            ((4,), (40, 40, 40))
        """
        return cls(
            name=dataset.name,
            class_names=dataset.class_names,
            in_shape=dataset.in_shape,
            mean=dataset.mean,
            std=dataset.std,
            scale=dataset.scale,
            dtype=str(dataset.train.inputs.dtype).removeprefix("torch."),
            counts=tuple(dataset.train_counts.tolist()),
            samples={"train": len(dataset.train), "test": len(dataset.test)},
            checksums=dict(dataset.checksums),
            notes=(*dataset.notes, *(note for note in limits(dataset) if note not in dataset.notes)),
        )

    def to_dict(self) -> dict[str, Any]:
        """What a result tells of the data."""
        assert self.counts is not None
        counts = torch.tensor(self.counts)
        return {
            "name": self.name,
            "class_names": list(self.class_names),
            "in_shape": list(self.in_shape),
            "normalize": self.normalize,
            "samples": dict(self.samples),
            "counts": list(self.counts),
            "largest_class": float(counts.max() / counts.sum()),
            "checksums": dict(self.checksums),
            "dtype": self.dtype,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Facts:
        """The facts that `to_dict` told. Older runs told no counts."""
        plain: dict[str, Any] = {**content, **content["normalize"]}
        tupled: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return cls(**{name: tupled[name] for name in cls.__dataclass_fields__ if name in tupled})

    @property
    def normalize(self) -> dict[str, Any]:
        """The numbers of the normalisation, by name."""
        return {"mean": self.mean, "std": self.std, "scale": self.scale}


def measured_rows(samples: int, num_classes: int) -> int:
    """How many of a split's samples are measured: all, or so many that there are at most LARGEST_LOGITS logits."""
    return min(samples, max(1, LARGEST_LOGITS // num_classes))


def limits(dataset: data.Dataset) -> tuple[str, ...]:
    """A note for each split that is measured in part."""
    sizes = {"train": len(dataset.train), "test": len(dataset.test)}
    rows = {name: measured_rows(size, dataset.num_classes) for name, size in sizes.items()}
    return tuple(
        f"{name}: measured on {rows[name]} of {size} samples, an even share of each class; accuracy on all"
        for name, size in sizes.items()
        if rows[name] < size
    )


def load_data(choice: DataChoice, root: str | Path | None = None) -> data.Dataset:
    """Read a data set, and choose the samples of a trial from it by `choose`."""
    dataset = data.load(choice.name, root, **choice.options)
    _check_classes(dataset, choice.name)
    return choose(dataset, choice, root)


def choose(dataset: data.Dataset, choice: DataChoice, root: str | Path | None = None) -> data.Dataset:
    """The samples of a trial, chosen in this order: fold, classes, subset, open set, long tail, hold-out.

    Args:
        dataset: as it was read.
        choice: what to take of it.
        root: where the data set with the unknown classes lies, if that is another one.

    Raises:
        ValueError: for a choice that the data set does not allow, such as a fold if it has a test set of its own.

    Example:
        >>> folds = [choose(data.load("iris"), DataChoice("iris", fold=fold)) for fold in range(5)]
        >>> [len(fold.test) for fold in folds]
        [30, 30, 30, 30, 30]
    """
    if choice.fold is not None:
        if dataset.random_test is None:
            why = f"{dataset.name} has a test set of its own, which all runs are tested on; leave data.fold out"
            raise ValueError(f"data.fold={choice.fold}: {why}")
        dataset = data.fold(dataset, choice.fold, seed=choice.seed)
    if choice.classes is not None or choice.train is not None:
        dataset = data.subset(dataset, choice.train, classes=choice.classes, seed=choice.seed)
    if choice.unknown is not None or choice.unknown_from is not None or choice.arpl:
        other = None if choice.unknown_from is None else data.load(choice.unknown_from, root)
        split = choice.seed if choice.arpl else None
        dataset = data.open_set(dataset, choice.unknown, seed=choice.seed, split=split, unknown_from=other)
    if choice.long_tail is not None:
        dataset = data.long_tail(dataset, choice.long_tail, choice.seed)
    if choice.holdout:
        dataset = data.hold_out(dataset, choice.holdout, choice.seed)
    return dataset


def load_features(
    train: str | Path,
    test: str | Path | None = None,
    *,
    standardize: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> data.Dataset:
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
    _check_classes(dataset, train)
    if standardize:
        mean, std = _statistics(dataset.train.tensor())
        dataset = dataset.replace(mean=mean, std=std)
    return dataset.replace(notes=(*dataset.notes, *limits(dataset)))


def _check_classes(dataset: data.Dataset, name: str | Path) -> None:
    if dataset.num_classes < 2:
        raise ValueError(f"{name} has one class, {dataset.class_names[0]}: a classifier needs two or more")


def _statistics(features: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each entry, in float64 and block by block: a float64 copy of all would be too large."""
    blocks = torch.split(features, max(1, BLOCK // features.shape[1]))
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(features)
    square = torch.stack([(block.double() - mean).square().sum(0) for block in blocks]).sum(0)
    std = (square / len(features)).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std == 0, 1.0, std).tolist())
