"""What a trial's data are: reading its samples, and the facts that are known of them.

Tests: tests/training/test_facts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lastlayer import data
from lastlayer.training.trial import DataChoice

LARGEST_LOGITS = 1 << 26  # logits held at once; a split with more of them is measured in part


@dataclass(frozen=True)
class Facts:
    """What is known of a data set: all that a network and a loss are built from, and what a result tells of it.

    Attributes:
        name: of the data set.
        class_names: one name per class, in label order.
        in_shape: shape of one input.
        mean, std, scale: how inputs are normalised, (x / scale - mean) / std.
        dtype: of the inputs as stored, such as "uint8".
        counts: training samples per class; None if the facts come from a finished run, which does not keep them.
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
        """What a result tells of the data; the counts are told by the share of the largest class."""
        assert self.counts is not None
        counts = torch.tensor(self.counts)
        return {
            "name": self.name,
            "class_names": list(self.class_names),
            "in_shape": list(self.in_shape),
            "normalize": self.normalize,
            "samples": dict(self.samples),
            "largest_class": float(counts.max() / counts.sum()),
            "checksums": dict(self.checksums),
            "dtype": self.dtype,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Facts:
        """The facts that `to_dict` told, without the counts."""
        normalize = content["normalize"]
        mean, std = (None if normalize[key] is None else tuple(normalize[key]) for key in ("mean", "std"))
        return cls(
            name=content["name"],
            class_names=tuple(content["class_names"]),
            in_shape=tuple(content["in_shape"]),
            mean=mean,
            std=std,
            scale=normalize["scale"],
            dtype=content["dtype"],
            samples=content.get("samples", {}),
            checksums=content.get("checksums", {}),
            notes=tuple(content.get("notes", ())),
        )

    @property
    def normalize(self) -> dict[str, Any]:
        """The numbers of the normalisation, by name."""
        return {"mean": self.mean, "std": self.std, "scale": self.scale}


def measured_rows(samples: int, num_classes: int) -> int:
    """How many of a split's samples are measured: as many as leave LARGEST_LOGITS logits."""
    return min(samples, max(1, LARGEST_LOGITS // num_classes))


def limits(dataset: data.Dataset) -> tuple[str, ...]:
    """A note for each split that is measured in part."""
    notes = []
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        rows = measured_rows(len(split), dataset.num_classes)
        if rows < len(split):
            notes.append(
                f"{name}: measured on {rows} of {len(split)} samples, an even share of each class; accuracy on all"
            )
    return tuple(notes)


def load_data(choice: DataChoice, root: str | Path | None = None) -> data.Dataset:
    """Read the samples of a trial, chosen in this order: classes, subset, open set, long tail, hold-out."""
    dataset = data.load(choice.name, root, **choice.options)
    if dataset.num_classes < 2:
        raise ValueError(f"{choice.name} has one class, {dataset.class_names[0]}: a classifier needs two or more")
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
