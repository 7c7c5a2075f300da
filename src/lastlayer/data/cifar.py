"""CIFAR-10 and CIFAR-100: the binary version and the Python batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ._files import CorruptFileError, Places, how_to_get, locate, read, require
from ._unpickle import unpickle
from .dataset import Dataset, Split
from .download import Remote
from .registry import register

Version = Literal["auto", "binary", "python"]
_CITATION = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
_HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_LICENCE = "none stated by the owners; cite the technical report"
_CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_KNOWN10 = {
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
_KNOWN100 = {
    "train": "md5:16019d7e3df5f24257cddd939b257f8d",
    "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
}


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


def _read_split(
    folder: Path, files: tuple[str, ...], known: Mapping[str, str] | None, python: bool, coarse: bool
) -> tuple[Split, dict[str, str]]:
    """The batches of one split, in order; `coarse`: CIFAR-100's two labels a record."""
    parts, checksums = [], {}
    for file in files:
        path = require(folder / file, folder.name)
        data, checksums[file] = read(path, known)
        if python:
            parts.append(read_python(path, data, "fine_labels" if coarse else "labels"))
        else:
            parts.append(read_binary(path, data, 2 if coarse else 1))
    inputs = torch.cat([part.tensor() for part in parts])
    return Split(inputs, torch.cat([part.target for part in parts])), checksums


def _read(root: Path, name: str, version: Version, known: Mapping[str, str] | None, layout: "_Layout") -> Dataset:
    if version not in ("auto", *layout.folders):
        raise ValueError(f'version is "auto", "binary" or "python", not {version!r}')
    places = layout.places() if version == "auto" else layout.places(version)
    folder = locate(root, name, places, how_to_get(name, root))
    python = version == "python" or not (folder / layout.train["binary"][0]).exists()
    kind = "python" if python else "binary"
    coarse = name == "cifar100"
    train, checksums = _read_split(folder, layout.train[kind], known, python, coarse)
    test, more = _read_split(folder, layout.test[kind], known, python, coarse)
    classes = _class_names(folder, layout, python)
    dataset = Dataset(name, train, test, classes, scale=255.0, checksums={**checksums, **more})
    return dataset.with_statistics()


class _Layout:
    """Names of the folders and files of the two versions of a CIFAR set."""

    def __init__(
        self,
        folders: tuple[str, str],
        train: tuple[str, ...],
        test: str,
        names: tuple[str, str, str],
        classes: tuple[str, ...],
    ) -> None:
        kinds = ("binary", "python")
        self.folders = dict(zip(kinds, folders, strict=True))
        self.train = {"binary": tuple(f"{file}.bin" for file in train), "python": train}
        self.test = {"binary": (f"{test}.bin",), "python": (test,)}
        self.text_names, self.pickled_names, self.pickled_key = names
        self.classes = classes

    def places(self, *kinds: str) -> Places:
        """Where the versions `kinds` may lie; both if none is given."""
        chosen = kinds or tuple(self.folders)
        return Places(tuple(self.folders[kind] for kind in chosen), tuple(self.train[kind][0] for kind in chosen))


def _class_names(folder: Path, layout: _Layout, python: bool) -> tuple[str, ...]:
    """Names from the data set's own file where it is there, else those known here."""
    path = folder / (layout.pickled_names if python else layout.text_names)
    if not path.exists():
        return layout.classes
    if python:
        names: Any = unpickle(path, path.read_bytes()).get(layout.pickled_key, ())
    else:
        names = [line for line in path.read_text().splitlines() if line.strip()]
    return tuple(names) if len(names) == len(layout.classes) else layout.classes


_LAYOUT10 = _Layout(
    ("cifar-10-batches-bin", "cifar-10-batches-py"),
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test_batch",
    ("batches.meta.txt", "batches.meta", "label_names"),
    _CLASSES10,
)
_LAYOUT100 = _Layout(
    ("cifar-100-binary", "cifar-100-python"),
    ("train",),
    "test",
    ("fine_label_names.txt", "meta", "fine_label_names"),
    tuple(str(k) for k in range(100)),
)


@register(
    "cifar10",
    summary="photographs, 32x32 in colour, 50,000 / 10,000",
    homepage=_HOMEPAGE,
    licence=_LICENCE,
    citation=_CITATION,
    remotes=(
        Remote(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            unpacks_to="cifar-10-batches-bin",
        ),
    ),
    places=_LAYOUT10.places(),
)
def cifar10(root: Path, *, verify: bool = True, version: Version = "auto") -> Dataset:
    """Read CIFAR-10 from `root/cifar-10-batches-bin` or `root/cifar-10-batches-py`."""
    return _read(root, "cifar10", version, _KNOWN10 if verify else None, _LAYOUT10)


@register(
    "cifar100",
    summary="photographs, 32x32 in colour, 100 classes, 50,000 / 10,000",
    homepage=_HOMEPAGE,
    licence=_LICENCE,
    citation=_CITATION,
    remotes=(
        Remote(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            unpacks_to="cifar-100-binary",
        ),
    ),
    places=_LAYOUT100.places(),
)
def cifar100(root: Path, *, verify: bool = True, version: Version = "auto") -> Dataset:
    """Read CIFAR-100 with its fine labels from `root/cifar-100-binary` or `root/cifar-100-python`."""
    return _read(root, "cifar100", version, _KNOWN100 if verify else None, _LAYOUT100)
