"""SVHN, the cropped street-view house numbers in MATLAB files. Tests: tests/data/readers/test_svhn.py."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from lastlayer.data.dataset import Dataset, Split
from lastlayer.data.files import CorruptFileError, read, require
from lastlayer.data.sources import describe, register


def read_mat(path: Path, known: Mapping[str, str] | None = None) -> tuple[Split, str]:
    """Read X (32, 32, 3, N) and y (N, 1) of a MATLAB 5 file; the label 10 of the digit 0 becomes 0.

    Raises:
        CorruptFileError: wrong checksum, not a MATLAB 5 file, or without such X and y.
    """
    from scipy.io import loadmat  # a slow import, and only needed here

    data, sha256 = read(path, known)
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
    return Split(inputs, torch.from_numpy(labels.reshape(-1).astype(np.int64)) % 10), sha256


@register("svhn")
def svhn(root: Path, *, verify: bool = True, extra: bool = False) -> Dataset:
    """Read `root/svhn/{train,test}_32x32.mat`.

    Args:
        root: the data root.
        verify: compare with the known checksums.
        extra: add extra_32x32.mat (531,131 easier samples) to the training set.
    """
    source = describe("svhn")
    folder, known = source.locate(root), source.checksums if verify else None
    splits, checksums = {}, {}
    for name in ("train", "test", "extra") if extra else ("train", "test"):
        path = require(folder / f"{name}_32x32.mat", "svhn")
        splits[name], checksums[path.name] = read_mat(path, known)
    train = splits["train"]
    if extra:
        more = splits["extra"]
        train = Split(torch.cat((train.tensor(), more.tensor())), torch.cat((train.target, more.target)))
    classes = tuple(str(k) for k in range(10))
    dataset = Dataset("svhn", train, splits["test"], classes, scale=255.0, checksums=checksums)
    return dataset.replace("extra samples in train" if extra else None).with_statistics()
