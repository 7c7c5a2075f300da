"""CIFAR-10 and CIFAR-100: the binary version and the Python batches. Tests: tests/data/readers/test_cifar.py."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lastlayer.data.dataset import Dataset, Split
from lastlayer.data.files import CorruptFileError, read, require
from lastlayer.data.sources import describe, register

from .unpickle import unpickle

Version = Literal["auto", "binary", "python"]
_VERSIONS = ("binary", "python")  # in the order of the folders in sources.toml


@dataclass(frozen=True)
class _Layout:
    """Names of the files of a CIFAR set; in the binary version they end in .bin."""

    train: tuple[str, ...]
    test: str
    binary_names: str  # the file with the names of the classes
    python_names: tuple[str, str]  # that of the Python version, and the key in it
    labels: str  # the key of the labels in a Python batch
    label_bytes: int  # before the pixels of a binary record
    classes: tuple[str, ...]  # where no file names them

    def class_names(self, folder: Path, python: bool) -> tuple[str, ...]:
        """Names from the data set's own file if it is there, else those known here."""
        path = folder / (self.python_names[0] if python else self.binary_names)
        if not path.exists():
            return self.classes
        if python:
            names: Any = unpickle(path, path.read_bytes()).get(self.python_names[1], ())
        else:
            names = [line for line in path.read_text().splitlines() if line.strip()]
        return tuple(names) if len(names) == len(self.classes) else self.classes


_CIFAR10 = _Layout(
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    binary_names="batches.meta.txt",
    python_names=("batches.meta", "label_names"),
    labels="labels",
    label_bytes=1,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
_CIFAR100 = _Layout(
    train=("train",),
    test="test",
    binary_names="fine_label_names.txt",
    python_names=("meta", "fine_label_names"),
    labels="fine_labels",
    label_bytes=2,  # coarse and fine
    classes=tuple(str(k) for k in range(100)),
)


def read_binary(path: Path, data: bytes, label_bytes: int) -> Split:
    """Split a binary batch into images and labels.

    A record is `label_bytes` labels (the last one is used) and 3072 pixels, red plane first.

    Raises:
        CorruptFileError: the length is not a whole number of records.
    """
    record = label_bytes + 3072
    if not data or len(data) % record:
        raise CorruptFileError(
            f"{path} has {len(data)} bytes, which is not a whole number of records of {record} bytes: truncated?"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    images = torch.from_numpy(rows[:, label_bytes:].copy()).view(-1, 3, 32, 32)
    return Split(images, torch.from_numpy(rows[:, label_bytes - 1].astype(np.int64)))


def read_python(path: Path, data: bytes, label_key: str) -> Split:
    """Split a pickled batch, a dictionary with "data" (N, 3072) and labels, into images and labels.

    Raises:
        CorruptFileError: it is no such dictionary, or holds what only a general unpickler could build.
    """
    batch = unpickle(path, data)
    pixels, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        raise CorruptFileError(f"{path}: data is not a uint8 array (N, 3072); found keys {sorted(batch)}")
    if labels is None or len(labels) != len(pixels):
        raise CorruptFileError(f"{path}: {label_key} is missing or not of length {len(pixels)}")
    images = torch.from_numpy(pixels.copy()).view(-1, 3, 32, 32)
    return Split(images, torch.tensor([int(label) for label in labels]))


def _read(root: Path, name: str, version: Version, verify: bool, layout: _Layout) -> Dataset:
    source = describe(name)
    if version not in ("auto", *_VERSIONS):
        raise ValueError(f'version is "auto", "binary" or "python", not {version!r}')
    if version != "auto":
        number = _VERSIONS.index(version)
        source = replace(source, folders=(source.folders[number],), probes=(source.probes[number],))
    folder = source.locate(root)
    python = version == "python" or not (folder / f"{layout.train[0]}.bin").exists()
    known = source.checksums if verify else None
    train, checksums = _read_split(folder, layout.train, known, layout, python)
    test, more = _read_split(folder, (layout.test,), known, layout, python)
    classes = layout.class_names(folder, python)
    dataset = Dataset(name, train, test, classes, scale=255.0, checksums={**checksums, **more})
    return dataset.with_statistics()


def _read_split(
    folder: Path, files: tuple[str, ...], known: Mapping[str, str] | None, layout: _Layout, python: bool
) -> tuple[Split, dict[str, str]]:
    """The batches of one split, in order."""
    parts, checksums = [], {}
    for file in files if python else [f"{file}.bin" for file in files]:
        path = require(folder / file, folder.name)
        data, checksums[file] = read(path, known)
        if python:
            parts.append(read_python(path, data, layout.labels))
        else:
            parts.append(read_binary(path, data, layout.label_bytes))
    inputs = torch.cat([part.tensor() for part in parts])
    return Split(inputs, torch.cat([part.target for part in parts])), checksums


@register("cifar10")
def cifar10(root: Path, *, verify: bool = True, version: Version = "auto") -> Dataset:
    """Read CIFAR-10 from `root/cifar-10-batches-bin` or `root/cifar-10-batches-py`."""
    return _read(root, "cifar10", version, verify, _CIFAR10)


@register("cifar100")
def cifar100(root: Path, *, verify: bool = True, version: Version = "auto") -> Dataset:
    """Read CIFAR-100 with its fine labels from `root/cifar-100-binary` or `root/cifar-100-python`."""
    return _read(root, "cifar100", version, verify, _CIFAR100)
