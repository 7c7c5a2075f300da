"""Heads on given features: reading embeddings as a data set, and the trial that suits them.

A probe is a trial like any other (model `identity`, large batches), so that it resumes, is listed and is compared as
all runs are. Tests: tests/training/test_probe.py.
"""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer import losses
from lastlayer.data import CorruptFileError, Dataset, Split
from lastlayer.data._files import file_digest
from lastlayer.data._names import INPUTS, LABELS, TEST, TRAIN, WHOLE, find_name, has_parts, not_numbers
from lastlayer.data.splits import random_test_set
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

    A file holds `features` (N, d), also called x, in any floating dtype, and `target` (N,), also called targets, labels
    or y, in any integer dtype; or both splits, under the same names with _train and _test behind. A .safetensors file
    is mapped, not read: rows come into memory as they are used, in the dtype they have.

    Args:
        train: the training samples, or both splits.
        test: the test samples.
        standardize: divide out the mean and deviation of each entry over the training samples.
        test_fraction: where one file holds one set, the share of each class to test on.
        seed: of that split.

    Returns:
        A data set named by the training file, whose notes say what is measured in part.

    Raises:
        ValueError: for missing arrays (those found are listed), shapes, dtypes or labels that do not fit, or features
            that are not finite.
        FileNotFoundError, CorruptFileError: for files that are not there or not what their name says.
    """
    path = Path(train)
    found = _read(path)
    checksums = {path.name: file_digest(path)}
    notes: tuple[str, ...] = ()
    if test is not None:
        other = Path(test)
        more = _read(other)
        checksums[other.name] = file_digest(other)
        splits = _split(path, found, WHOLE, TRAIN), _split(other, more, WHOLE, TEST)
    elif has_parts(found):
        splits = _split(path, found, TRAIN), _split(path, found, TEST)
    else:
        whole = _split(path, found, WHOLE)
        kept, held, note = random_test_set(whole, test_fraction, seed)
        if not len(held):
            raise ValueError(f"{path}: every class has one sample, so that none is left to test on: give a test set")
        splits, notes = (kept, held), (note,)
    highest = max(int(split.target.max()) for split in splits)
    if highest >= len(splits[0]):
        where = path if highest == int(splits[0].target.max()) or test is None else test
        raise ValueError(f"{where}: label {highest} with {len(splits[0])} training samples: labels must be 0 to K-1")
    if not highest:
        raise ValueError(f"{path} has one class, 0: a classifier needs two or more")
    mean, std = _statistics(splits[0].tensor())
    dataset = Dataset(
        path.stem,
        *splits,
        tuple(str(k) for k in range(highest + 1)),
        mean=mean if standardize else None,
        std=std if standardize else None,
        checksums=checksums,
        notes=notes,
    )
    return dataset.replace(notes=(*notes, *limits(dataset)))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors: dict[str, Tensor] = load_file(path)
        except SafetensorError as error:
            raise CorruptFileError(f"{path} is damaged or not a safetensors file: {error}") from error
        return tensors
    if path.suffix != ".npz":
        raise ValueError(f"{path}: features are read from .safetensors and .npz files, not {path.suffix or 'this'}")
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise CorruptFileError(f"{path} is damaged or not an npz file, as numpy.savez writes it")
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptFileError(f"{path} is damaged or not an npz file: {error}") from error
    except ValueError as error:
        raise CorruptFileError(
            f"{path} cannot be read without unpickling, which is refused ({error}): save numbers"
        ) from error
    for name, array in arrays.items():
        if name.removesuffix(TRAIN).removesuffix(TEST) in INPUTS + LABELS and array.dtype.kind not in "biuf":
            raise ValueError(f"{path}: {not_numbers(name, array.dtype)}")
    # torch knows the machine's own byte order alone
    native = {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in native.items() if array.dtype.kind in "biuf"}


def _split(path: Path, found: dict[str, Tensor], *endings: str) -> Split:
    features, target = (found[find_name(path, found, names, endings)] for names in (INPUTS, LABELS))
    if features.dim() != 2 or not features.is_floating_point() or not features.numel():
        described = f"{features.dtype} {tuple(features.shape)}"
        raise ValueError(f"{path}: features must be floating point (N, d) and not empty, got {described}")
    if target.dim() != 1 or target.is_floating_point() or target.dtype is torch.bool or len(target) != len(features):
        described = f"{target.dtype} {tuple(target.shape)}"
        remedy = ": save target.astype(int)" if target.shape == features.shape[:1] else ""
        raise ValueError(
            f"{path}: target must be integers ({len(features)},), one a row of features, got {described}{remedy}"
        )
    target = target.long()
    if int(target.min()) < 0:
        row = int(target.argmin())
        raise ValueError(f"{path}: target has label {int(target[row])} at row {row}: labels must be 0 to K-1")
    _check_finite(path, features)
    return Split(features, target)


def _check_finite(path: Path, features: Tensor) -> None:
    """Refuse what is not finite in float32, in which everything is computed: every trial would fail of it."""
    first = 0
    for block in torch.split(features, max(1, BLOCK // features.shape[1])):
        finite = block.float().isfinite()
        if not bool(finite.all()):
            row = first + int((~finite.all(1)).nonzero()[0])
            raise ValueError(f"{path}: features are not finite in float32, first at row {row}")
        first += len(block)


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
        >>> split = Split(torch.randn(1000, 8), torch.arange(1000) % 10)
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
