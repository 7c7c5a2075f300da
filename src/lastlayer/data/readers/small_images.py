"""Sets of small images in the file formats of their makers: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and SVHN."""

import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lastlayer._core.files import sha256
from lastlayer.data.dataset import Dataset, Split, joined
from lastlayer.data.files import CorruptFileError, read, require, verified
from lastlayer.data.sources import describe, register

from .unpickle import unpickle

_DIGITS = tuple(str(k) for k in range(10))
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def read_idx(path: Path, expected: str | None = None) -> tuple[Tensor, str]:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz, and the SHA-256 of the unpacked content.

    The format: two zero bytes, type 8, number of dimensions, each dimension as a big-endian int32, then the values.
    `expected` is "algorithm:hexdigest" of the unpacked content.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            wanted = "" if expected is None else f"{expected.replace(':', ' ')} expected of what it holds, "
            raise CorruptFileError(
                f"{path} is truncated or not gzip ({error}): {wanted}found a file with sha256 {sha256(data)} that does "
                "not unpack. Delete it and fetch it again"
            ) from error
    found = verified(path, data, expected)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise CorruptFileError(f"{path} is not an idx file of unsigned bytes (it begins with {data[:4].hex()})")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise CorruptFileError(f"{path} is truncated: {len(data)} bytes, the header alone has {header}")
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, header, 4)]
    if len(data) != header + math.prod(shape):
        raise CorruptFileError(
            f"{path} has {len(data)} bytes; its header promises {header + math.prod(shape)} (shape {tuple(shape)})"
        )
    values = np.frombuffer(data, np.uint8, offset=header).reshape(shape)
    return torch.from_numpy(values.copy()), found


def _read_mnist(name: str, classes: tuple[str, ...], root: Path, *, verify: bool = True) -> Dataset:
    source = describe(name)
    folder = source.locate(root)
    splits, checksums = {}, {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        files, tensors = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"), []
        for file in files:
            path = folder / file
            if not path.exists():
                path = require(folder / (file + ".gz"), name)
            tensor, checksums[file] = read_idx(path, source.checksums.get(file) if verify else None)
            tensors.append(tensor)
        images, labels = tensors
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise CorruptFileError(
                f"{folder}: {files[0]} has shape {tuple(images.shape)} and {files[1]} {tuple(labels.shape)}; "
                "(N, H, W) and (N,) were expected"
            )
        splits[part] = Split(images[:, None], labels.long())
    dataset = Dataset(name, splits["train"], splits["test"], classes, scale=255.0, checksums=checksums)
    return dataset.with_statistics()


register("mnist")(partial(_read_mnist, "mnist", _DIGITS))
register("fashion-mnist")(partial(_read_mnist, "fashion-mnist", _CLOTHES))


@dataclass(frozen=True)
class _Cifar:
    """What differs between the two CIFAR sets. In the binary version the names of files end in .bin."""

    train: tuple[str, ...]
    test: str
    binary_names: str  # the file with the names of the classes
    python_names: tuple[str, str]  # the one of the Python version, and the key in it
    labels: str  # the key of the labels in a Python batch
    label_bytes: int  # before the pixels of a binary record
    classes: tuple[str, ...]  # used if the file with the names is missing

    def class_names(self, folder: Path, python: bool) -> tuple[str, ...]:
        path = folder / (self.python_names[0] if python else self.binary_names)
        if not path.exists():
            return self.classes
        if python:
            names: Any = unpickle(path, path.read_bytes()).get(self.python_names[1], ())
        else:
            names = [line for line in path.read_text().splitlines() if line.strip()]
        return tuple(names) if len(names) == len(self.classes) else self.classes

    def read_binary(self, path: Path, data: bytes) -> Split:
        """A record holds `label_bytes` labels, of which the last one is used, and 3072 pixels, the red ones first."""
        record = self.label_bytes + 3072
        if not data or len(data) % record:
            raise CorruptFileError(
                f"{path} has {len(data)} bytes, which is not a whole number of records of {record} bytes: truncated?"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, record)
        images = torch.from_numpy(rows[:, self.label_bytes :].copy()).view(-1, 3, 32, 32)
        return Split(images, torch.from_numpy(rows[:, self.label_bytes - 1].astype(np.int64)))

    def read_python(self, path: Path, data: bytes) -> Split:
        return pickled_images(path, unpickle(path, data), self.labels, side=32)


def pickled_images(path: Path, batch: dict[str, Any], labels: str, *, side: int | None = None) -> Split:
    """The samples of a dictionary with "data", bytes (N, 3 side^2), and labels (N,). Without a side, any is taken."""
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise CorruptFileError(f"{path}: data is not a uint8 array (N, 3 side^2); found keys {sorted(batch)}")
    side = math.isqrt(pixels.shape[1] // 3) if side is None else side
    if 3 * side * side != pixels.shape[1]:
        raise CorruptFileError(f"{path}: {pixels.shape[1]} values per row are no square colour image of side {side}")
    found = batch.get(labels)
    target = np.array([] if found is None else found, dtype=np.int64)
    if target.shape != (len(pixels),):
        raise CorruptFileError(f"{path}: {labels} are missing or not of length {len(pixels)}")
    return Split(torch.from_numpy(pixels.copy()).view(-1, 3, side, side), torch.from_numpy(target))


_CIFAR = {
    "cifar10": _Cifar(
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        binary_names="batches.meta.txt",
        python_names=("batches.meta", "label_names"),
        labels="labels",
        label_bytes=1,
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": _Cifar(
        train=("train",),
        test="test",
        binary_names="fine_label_names.txt",
        python_names=("meta", "fine_label_names"),
        labels="fine_labels",
        label_bytes=2,  # coarse and fine
        classes=tuple(str(k) for k in range(100)),
    ),
}


def _read_cifar(
    name: str, root: Path, *, verify: bool = True, version: Literal["auto", "binary", "python"] = "auto"
) -> Dataset:
    source, cifar = describe(name), _CIFAR[name]
    versions = ("binary", "python")  # in the order of the folders in sources.toml
    if version not in ("auto", *versions):
        raise ValueError(f'version is "auto", "binary" or "python", not {version!r}')
    if version != "auto":
        number = versions.index(version)
        source = replace(source, folders=(source.folders[number],), probes=(source.probes[number],))
    folder, known = source.locate(root), source.checksums if verify else None
    python = version == "python" or not (folder / f"{cifar.train[0]}.bin").exists()
    read_batch = cifar.read_python if python else cifar.read_binary
    checksums = {}

    def batches(files: Sequence[str]) -> Split:
        parts = []
        for file in files if python else [f"{file}.bin" for file in files]:
            path = require(folder / file, folder.name)
            data, checksums[file] = read(path, known)
            parts.append(read_batch(path, data))
        return joined(parts)

    train, test = batches(cifar.train), batches([cifar.test])
    classes = cifar.class_names(folder, python)
    return Dataset(name, train, test, classes, scale=255.0, checksums=checksums).with_statistics()


for _name in _CIFAR:
    register(_name)(partial(_read_cifar, _name))


def read_mat(path: Path, known: Mapping[str, str] | None = None) -> tuple[Split, str]:
    """Read X (32, 32, 3, N) and y (N, 1) of a MATLAB 5 file. The label 10 of the digit 0 becomes 0."""
    from scipy.io import loadmat  # a slow import, and only needed here

    data, found = read(path, known)
    try:
        content = loadmat(io.BytesIO(data), variable_names=("X", "y"))
    except Exception as error:  # a damaged file can raise nearly anything
        raise CorruptFileError(f"{path} is truncated or not a MATLAB 5 file: {error}") from error
    images, labels = content.get("X"), content.get("y")
    if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        raise CorruptFileError(f"{path}: X is not a uint8 array (H, W, 3, N)")
    if labels is None or labels.size != images.shape[3]:
        raise CorruptFileError(f"{path}: y is missing or not of length {images.shape[3]}")
    inputs = torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1)))
    return Split(inputs, torch.from_numpy(labels.reshape(-1).astype(np.int64)) % 10), found


@register("svhn")
def svhn(root: Path, *, verify: bool = True, extra: bool = False) -> Dataset:
    """Read `root/svhn/{train,test}_32x32.mat`. `extra` adds 531,131 easier samples (extra_32x32.mat) to train."""
    source = describe("svhn")
    folder, known = source.locate(root), source.checksums if verify else None
    splits, checksums = {}, {}
    for name in ("train", "test", "extra") if extra else ("train", "test"):
        path = require(folder / f"{name}_32x32.mat", "svhn")
        splits[name], checksums[path.name] = read_mat(path, known)
    train = joined([splits["train"], splits["extra"]]) if extra else splits["train"]
    dataset = Dataset("svhn", train, splits["test"], _DIGITS, scale=255.0, checksums=checksums)
    return dataset.replace("extra samples in train" if extra else None).with_statistics()
