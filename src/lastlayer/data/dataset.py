"""What a data set is: splits of tensors, and where they come from. Tests: tests/data/test_dataset.py."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .image_cache import MappedImages


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs and their labels.

    Inputs are images uint8 or float (N, C, H, W), features float (N, d), or tokens int32 (N, 2, L) as `tokenise` makes
    them. Images that do not fit in memory are `MappedImages`.
    """

    inputs: Tensor | MappedImages
    target: Tensor  # labels int64 (N,)

    def __post_init__(self) -> None:
        inputs, target = self.inputs, self.target
        if target.dtype != torch.int64 or target.ndim != 1:
            raise TypeError(f"target must be int64 of shape (N,), not {target.dtype} {tuple(target.shape)}")
        tokens = inputs.ndim == 3 and inputs.dtype == torch.int32
        if inputs.ndim not in (2, 4) and not tokens:
            found = f"{inputs.dtype} {tuple(inputs.shape)}"
            raise ValueError(f"inputs must be (N, C, H, W), (N, d) or tokens int32 (N, 2, L), not {found}")
        if inputs.ndim == 2 and not inputs.is_floating_point():
            raise TypeError(f"features must be floating point, not {inputs.dtype}")
        if inputs.ndim == 4 and not (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            raise TypeError(f"images must be uint8 or floating point, not {inputs.dtype}")
        if len(inputs) != len(target):
            raise ValueError(f"{len(inputs)} inputs but {len(target)} labels")

    def __len__(self) -> int:
        return len(self.target)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples, {self.inputs.dtype} {tuple(self.inputs.shape[1:])})"

    def select(self, indices: Tensor) -> "Split":
        """The samples at `indices`, in that order."""
        inputs = self.inputs
        chosen = inputs.subset(indices) if isinstance(inputs, MappedImages) else inputs[indices]
        return Split(chosen, self.target[indices])

    def tensor(self) -> Tensor:
        """All inputs as a tensor, in memory."""
        return self.inputs[:] if isinstance(self.inputs, MappedImages) else self.inputs

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        return Split(self.inputs.to(device), self.target.to(device))


def joined(splits: Sequence[Split]) -> Split:
    """The samples of several splits, one split after the other. Images of one file stay there; others are in memory."""
    target = torch.cat([split.target for split in splits])
    mapped = [split.inputs for split in splits if isinstance(split.inputs, MappedImages)]
    if len(mapped) == len(splits) and len({images.pixels for images in mapped}) == 1:
        return Split(mapped[0].with_rows(np.concatenate([images.rows for images in mapped])), target)
    return Split(torch.cat([split.tensor() for split in splits]), target)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A labelled data set, and what is known of its origin.

    Pixels stay as stored. `scale`, `mean` and `std` say how to normalise them: (x / scale - mean) / std, per channel
    for images and per entry for features (see `lastlayer.data.Normalize`).
    """

    name: str  # by which it was loaded
    train: Split  # every class has at least one sample
    test: Split
    class_names: tuple[str, ...]  # in label order
    scale: float = 1.0  # the value of full intensity: 255 for 8-bit images, 1 for features
    mean: tuple[float, ...] | None = None  # of inputs / scale over training samples; None leaves inputs as they are
    std: tuple[float, ...] | None = None  # of the same, with 1 in place of 0
    validation: Split | None = None  # samples that `hold_out` took out of `train`
    unknown: Split | None = None  # test samples of other classes (`open_set`), with the labels of their own set
    checksums: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by source file, or of the tensors if none
    source: str = ""  # where the data comes from
    licence: str = ""  # its terms of use
    citation: str = ""  # what to cite
    notes: tuple[str, ...] = ()  # every choice made on the way, such as splits and subsets, for people to read
    imbalance: float | None = None  # what `long_tail` was given, if it thinned the training set
    random_test: float | None = None  # share of samples in `test`, if drawn at random because the data has no test set

    def __post_init__(self) -> None:
        for part, split in self._splits().items():
            shape = tuple(split.inputs.shape[1:])
            if shape != self.in_shape:
                raise ValueError(f"{self.name}: train inputs are {self.in_shape} but {part} inputs are {shape}")
            if part != "unknown":
                self._check_labels(part, split)

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(split)} {part}" for part, split in self._splits().items())
        inputs = f"{self.train.inputs.dtype} {self.in_shape}"
        return f"Dataset({self.name}: {parts}, {self.num_classes} classes, inputs {inputs})"

    def _check_labels(self, part: str, split: Split) -> None:
        if split.target.device.type != "cpu":  # on a GPU, to read labels would make the CPU wait
            return
        if len(split) == 0:
            raise ValueError(f"{self.name}: there are no {part} samples")
        low, high = int(split.target.min()), int(split.target.max())
        if low < 0 or high >= self.num_classes:
            wrong = low if low < 0 else high
            where = int((split.target == wrong).nonzero()[0])
            raise ValueError(
                f"{self.name}: {part} label {wrong} at sample {where} is out of range; with {self.num_classes} classes "
                f"labels are 0 to {self.num_classes - 1}"
            )
        empty = (self.train_counts == 0).nonzero().flatten().tolist() if part == "train" else []
        if empty:
            remedy = "add some, or number the labels without gaps"
            if self.class_names[0] == "0" and empty == list(range(low)):
                remedy = f"the lowest label is {low} and should be 0: subtract {low} from all"
            names = [str(k) if self.class_names[k] == str(k) else f"{k} ({self.class_names[k]})" for k in empty]
            raise ValueError(
                f"{self.name}: no training samples for {len(empty)} of {self.num_classes} classes: "
                f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}; {remedy}"
            )

    def _splits(self) -> dict[str, Split]:
        parts = ("train", "test", "validation", "unknown")
        return {part: split for part in parts if (split := getattr(self, part)) is not None}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one input, what `lastlayer.models.create` takes."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def train_counts(self) -> Tensor:
        """Number of training samples per class, int64 (K,)."""
        return self.train.target.bincount(minlength=self.num_classes)

    def replace(self, note: str | None = None, **changes: Any) -> "Dataset":
        """A copy with some fields changed and a note added."""
        notes = self.notes if note is None else (*self.notes, note)
        return replace(self, notes=changes.pop("notes", notes), **changes)

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set on another device."""
        moved: dict[str, Any] = {part: split.to(device) for part, split in self._splits().items()}
        return replace(self, **moved)

    def with_statistics(self) -> "Dataset":
        """A copy whose `mean` and `std` are the `statistics` of its training samples."""
        mean, std = statistics(self.train.inputs, self.scale)
        return replace(self, mean=mean, std=std)


def statistics(inputs: Tensor | MappedImages, scale: float = 1.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (biased) standard deviation of inputs / scale, per channel of images (N, C, H, W), per entry of (N, d).

    Instead of a standard deviation of 0 we return 1, so that a constant channel stays constant.

    Example:
        >>> statistics(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
        ((1.0, 5.0), (1.0, 1.0))
    """
    if isinstance(inputs, MappedImages) or inputs.dtype == torch.uint8:
        if isinstance(inputs, MappedImages):
            sums = inputs.channel_sums()
        else:
            # we count how often each value occurs, because a wider copy of the whole data set would be too large
            values = torch.arange(256)
            counts = [channel.flatten().bincount(minlength=256).cpu() for channel in inputs.unbind(1)]
            sums = [(int(count @ values), int(count @ values.square())) for count in counts]
        n = inputs.shape.numel() // inputs.shape[1]
        means = [total / n / scale for total, _ in sums]
        stds = [math.sqrt(n * squares - total**2) / n / scale for total, squares in sums]  # exact below the root
    else:
        dims = (0, 2, 3) if inputs.ndim == 4 else (0,)
        scaled = inputs.double() / scale
        means, stds = scaled.mean(dims).tolist(), scaled.std(dims, unbiased=False).tolist()
    return tuple(means), tuple(std or 1.0 for std in stds)


@dataclass(frozen=True, eq=False, repr=False)
class TextSplit:
    """Texts and their labels. If a sample is a pair of texts, `pairs` holds the second ones."""

    texts: tuple[str, ...]
    target: Tensor
    pairs: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"TextSplit({len(self)} {'texts' if self.pairs is None else 'pairs of texts'})"


@dataclass(frozen=True, eq=False)
class TextDataset:
    """A labelled data set of texts, which `tokenise` turns into a `Dataset`. The fields mean the same as there."""

    name: str
    train: TextSplit
    test: TextSplit
    class_names: tuple[str, ...]
    checksums: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    licence: str = ""
    citation: str = ""
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)
