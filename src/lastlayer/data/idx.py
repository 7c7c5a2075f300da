"""MNIST and Fashion-MNIST: the idx format, gzipped or not."""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ._files import CorruptFileError, Places, digest, how_to_get, locate, require, verify
from .dataset import Dataset, Split
from .download import Remote
from .registry import register

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_PROBES = (_FILES["train"][0], _FILES["train"][0] + ".gz")
_MNIST_PLACES = Places(("mnist", "MNIST/raw"), _PROBES)
_FASHION_PLACES = Places(("fashion-mnist", "FashionMNIST/raw"), _PROBES)
# of the unpacked files, so that any gzip of the same content is recognised
_MNIST = {
    "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_FASHION_CLASSES = (
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


def _remotes(folder: str, places: tuple[str, ...], md5: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(
        Remote(tuple(place + name for place in places), f"{folder}/{name}", md5=value) for name, value in md5.items()
    )


def read_idx(path: Path, expected: str | None = None) -> tuple[Tensor, str]:
    """Read an idx file of unsigned bytes, gzipped where its name ends in .gz.

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


def _read(root: Path, name: str, places: Places, classes: tuple[str, ...], known: Mapping[str, str] | None) -> Dataset:
    folder = locate(root, name, places, how_to_get(name, root))
    splits, checksums = {}, {}
    for part, files in _FILES.items():
        tensors = []
        for file in files:
            path = folder / file
            if not path.exists():
                path = require(folder / (file + ".gz"), name)
            tensor, checksums[file] = read_idx(path, None if known is None else known.get(file))
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


@register(
    "mnist",
    summary="handwritten digits, 28x28, 60,000 / 10,000",
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="none stated by the owners; widely redistributed",
    citation="LeCun, Bottou, Bengio, Haffner 1998, Gradient-based learning applied to document recognition",
    remotes=_remotes(
        "mnist",
        ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    places=_MNIST_PLACES,
)
def mnist(root: Path, *, verify: bool = True) -> Dataset:
    """Read MNIST from `root/mnist` or `root/MNIST/raw`."""
    digits = tuple(str(k) for k in range(10))
    return _read(root, "mnist", _MNIST_PLACES, digits, _MNIST if verify else None)


@register(
    "fashion-mnist",
    summary="pictures of clothes, 28x28, 60,000 / 10,000",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
    remotes=_remotes(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    places=_FASHION_PLACES,
)
def fashion_mnist(root: Path, *, verify: bool = True) -> Dataset:
    """Read Fashion-MNIST from `root/fashion-mnist` or `root/FashionMNIST/raw`."""
    return _read(root, "fashion-mnist", _FASHION_PLACES, _FASHION_CLASSES, _FASHION if verify else None)
