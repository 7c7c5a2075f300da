"""Data sets that need no files: four of scikit-learn, and synthetic ones. Tests: tests/data/readers/test_builtin.py."""

import hashlib
import itertools
import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lastlayer.data.dataset import Dataset, Split, joined
from lastlayer.data.sources import register
from lastlayer.data.splits import random_test_set

Labeller = Callable[[Tensor], Tensor]


def _read(file: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Rows of measurements that end in a label, and the names of the classes, from a file of scikit-learn.

    We do not import the package, because that takes longer than all else that a command does before its first step.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ImportError("scikit-learn, whose data this is, is not installed: pip install scikit-learn")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / file
    if path.suffix == ".gz":
        return np.loadtxt(path, delimiter=","), tuple("0123456789")
    with path.open(encoding="utf-8") as lines:
        _, _, *names = next(lines).strip().split(",")  # rows and columns come before them
        return np.loadtxt(lines, delimiter=","), tuple(names)


def _checksum(*tensors: Tensor) -> dict[str, str]:
    """SHA-256 of the shapes, types and bytes of tensors, in place of the checksum of a file."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return {"tensors": digest.hexdigest()}


def _measured(name: str, file: str, *, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """A data set of scikit-learn: features (N, d), or for the digits uint8 images (N, 1, 8, 8) with values 0 to 16."""
    rows, class_names = _read(file)
    inputs, target = torch.from_numpy(rows[:, :-1]).float(), torch.from_numpy(rows[:, -1].astype(np.int64))
    scale = 1.0
    if name == "digits":
        inputs, scale = inputs.to(torch.uint8).view(-1, 1, 8, 8), 16.0
    splits = random_test_set(Split(inputs, target), test_fraction, seed)
    checksums = _checksum(inputs, target)
    return Dataset(name, class_names=class_names, scale=scale, checksums=checksums, **splits).with_statistics()


_FILES = {"digits": "digits.csv.gz", "wine": "wine_data.csv", "breast-cancer": "breast_cancer.csv", "iris": "iris.csv"}
for _name, _file in _FILES.items():
    register(_name)(partial(_measured, _name, _file))


def _points(
    count: int, dim: int, num_classes: int, label: Labeller, balanced: bool, generator: torch.Generator
) -> Split:
    """Standard normal points with labels 0 to K-1. Points with other labels, or of a full class, are left out."""
    drawn: list[Split] = []
    room = torch.full((num_classes,), count)
    if balanced:
        room = count // num_classes + (torch.arange(num_classes) < count % num_classes).long()
    missing = count
    for _ in range(1000):
        x = torch.randn(4 * count, dim, generator=generator)
        y = label(x)
        x, y = x[y < num_classes], y[y < num_classes]
        onehot = torch.nn.functional.one_hot(y, num_classes)
        rank = (onehot.cumsum(0) * onehot).sum(1)  # this is the rank-th sample of its class
        kept = (rank <= room[y]).nonzero().flatten()[:missing]
        drawn.append(Split(x[kept], y[kept]))
        room -= y[kept].bincount(minlength=num_classes)
        missing -= len(kept)
        if missing == 0:
            return joined(drawn)
    rare = room.nonzero().flatten().tolist()
    raise ValueError(f"classes {rare} are too rare to be drawn: change the seed or the sizes")


def _dataset(name: str, train: Split, test: Split, num_classes: int, note: str) -> Dataset:
    checksums = _checksum(train.tensor(), train.target, test.tensor(), test.target)
    names = tuple(str(k) for k in range(num_classes))
    return Dataset(name, train, test, names, checksums=checksums, notes=(note,))


def _check(num_classes: int, dim: int, train: int, test: int) -> None:
    if num_classes < 2 or dim < 1 or train < num_classes or test < 1:
        raise ValueError(
            "synthetic data need at least two classes, one dimension, one training sample per class and one test "
            f"sample; given num_classes={num_classes}, dim={dim}, train={train}, test={test}"
        )


@register("conic-hull")
def conic_hull(
    *, num_classes: int = 4, dim: int = 16, train: int = 8000, test: int = 2000, seed: int = 0, balanced: bool = False
) -> Dataset:
    """Standard normal points (N, d), labelled by their sides of ceil(log2 K) random hyperplanes through 0.

    The label is the sign code sum_i 2^i [<x, u_i> > 0] with u_i standard normal. Points with codes above K - 1 are
    drawn again. A hyperplane separates any two classes. Classes are about equally frequent; with `balanced`, exactly.

    Paper: Pan and Cao 2023, section 3 (C = 4, d = 16, 8000 points; the laws are not stated there).

    Example:
        >>> conic_hull(train=100, test=10).in_shape
        (16,)
    """
    _check(num_classes, dim, train, test)
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(math.ceil(math.log2(num_classes)), dim, generator=generator)
    weights = 2 ** torch.arange(len(normals))

    def label(x: Tensor) -> Tensor:
        return ((x @ normals.T > 0) * weights).sum(1)

    splits = [_points(n, dim, num_classes, label, balanced, generator) for n in (train, test)]
    return _dataset("conic-hull", splits[0], splits[1], num_classes, f"seed {seed}, balanced {balanced}")


@register("mlp-teacher")
def mlp_teacher(
    *,
    num_classes: int = 4,
    dim: int = 16,
    train: int = 8000,
    test: int = 2000,
    seed: int = 0,
    width: int = 32,
    balanced: bool = True,
) -> Dataset:
    """Standard normal points (N, d), labelled by the largest output of a random three-layer ReLU network.

    The weights are N(0, 2 / fan-in), and there are no biases. `width` is that of the two hidden layers; keep it below
    the student's. With `balanced` each output is first standardised over 10,000 points, because a raw teacher can leave
    a class nearly empty. Then points are drawn until all classes are equally frequent.

    Paper: Pan and Cao 2023, section 3 (widths are not stated there).

    Example:
        >>> mlp_teacher(train=100, test=12).train_counts.tolist()
        [25, 25, 25, 25]
    """
    _check(num_classes, dim, train, test)
    generator = torch.Generator().manual_seed(seed)
    sizes = (dim, width, width, num_classes)
    layers = [
        torch.randn(fan_out, fan_in, generator=generator) * math.sqrt(2 / fan_in)
        for fan_in, fan_out in itertools.pairwise(sizes)
    ]

    def outputs(x: Tensor) -> Tensor:
        for weight in layers[:-1]:
            x = (x @ weight.T).relu()
        return x @ layers[-1].T

    shift, spread = torch.zeros(num_classes), torch.ones(num_classes)
    if balanced:
        pilot = outputs(torch.randn(10_000, dim, generator=generator))
        shift, spread = pilot.mean(0), pilot.std(0)

    def label(x: Tensor) -> Tensor:
        return ((outputs(x) - shift) / spread).argmax(1)

    splits = [_points(n, dim, num_classes, label, balanced, generator) for n in (train, test)]
    note = f"seed {seed}, teacher {dim}-{width}-{width}-{num_classes}, balanced {balanced}"
    return _dataset("mlp-teacher", splits[0], splits[1], num_classes, note)


@register("gaussian")
def gaussian(
    *,
    num_classes: int = 10,
    dim: int = 32,
    per_class: int = 100,
    test_per_class: int = 100,
    separation: float = 4.0,
    seed: int = 0,
) -> Dataset:
    """Classes N(separation u_k, I) with u_k random unit vectors, equally frequent. Without separation all are equal.

    Example:
        >>> gaussian(num_classes=3, per_class=5).train_counts.tolist()
        [5, 5, 5]
    """
    _check(num_classes, dim, per_class * num_classes, test_per_class)
    generator = torch.Generator().manual_seed(seed)
    means = torch.nn.functional.normalize(torch.randn(num_classes, dim, generator=generator)) * separation

    def draw(count: int) -> Split:
        target = torch.arange(num_classes).repeat_interleave(count)
        target = target[torch.randperm(len(target), generator=generator)]
        return Split(means[target] + torch.randn(len(target), dim, generator=generator), target)

    train, test = draw(per_class), draw(test_per_class)
    return _dataset("gaussian", train, test, num_classes, f"seed {seed}, separation {separation:g}")
