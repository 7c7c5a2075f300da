"""MNIST and Fashion-MNIST: the idx format, gzipped or not. Tests: tests/data/readers/test_idx.py."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lastlayer.data.dataset import Dataset, Split
from lastlayer.data.files import CorruptFileError, digest, require, verify
from lastlayer.data.sources import describe, register

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path, expected: str | None = None) -> tuple[Tensor, str]:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz.

    The format: two zero bytes, type 8, number of dimensions, each dimension as a big-endian int32, then the values.

    Args:
        path: the file.
        expected: "algorithm:hexdigest" of the unpacked content.

    Returns:
        A uint8 tensor of the stated shape, and the SHA-256 of the unpacked content.

    Raises:
        CorruptFileError: wrong checksum, not an idx file of bytes, or its length differs from what its header says.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            wanted = "" if expected is None else f"{expected.replace(':', ' ')} expected of what it holds, "
            raise CorruptFileError(
                f"{path} is truncated or not gzip ({error}): {wanted}found a file with sha256 {digest(data)} that does "
                "not unpack. Delete it and fetch it again"
            ) from error
    sha256 = verify(path, data, expected)
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
    return torch.from_numpy(values.copy()), sha256


def _read(root: Path, name: str, classes: tuple[str, ...], verify: bool) -> Dataset:
    source = describe(name)
    folder = source.locate(root)
    splits, checksums = {}, {}
    for part, files in _FILES.items():
        tensors = []
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


@register("mnist")
def mnist(root: Path, *, verify: bool = True) -> Dataset:
    """Read MNIST from `root/mnist` or `root/MNIST/raw`."""
    return _read(root, "mnist", tuple(str(k) for k in range(10)), verify)


@register("fashion-mnist")
def fashion_mnist(root: Path, *, verify: bool = True) -> Dataset:
    """Read Fashion-MNIST from `root/fashion-mnist` or `root/FashionMNIST/raw`."""
    return _read(root, "fashion-mnist", _FASHION, verify)
