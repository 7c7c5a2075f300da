"""Data sets that come with scikit-learn: digits, wine, breast cancer, iris."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .dataset import Dataset, Split, tensor_checksum
from .registry import register
from .splits import random_test_set

_HOMEPAGE = "https://archive.ics.uci.edu"


def _read(file: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Rows of measurements ending in a label, and the names of the classes, of a file of scikit-learn's.

    The package is not imported for it: that takes longer than everything else between a command and its first step.
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


def _split(
    name: str,
    inputs: torch.Tensor,
    labels: NDArray[np.float64],
    class_names: tuple[str, ...],
    test_fraction: float,
    seed: int,
    scale: float = 1.0,
) -> Dataset:
    target = torch.from_numpy(labels.astype(np.int64))
    train, test, note = random_test_set(Split(inputs, target), test_fraction, seed)
    return Dataset(
        name,
        train,
        test,
        class_names,
        scale=scale,
        checksums={"tensors": tensor_checksum(inputs, target)},
        notes=(note,),
    ).with_statistics()


def _table(name: str, file: str, test_fraction: float, seed: int) -> Dataset:
    rows, class_names = _read(file)
    return _split(name, torch.from_numpy(rows[:, :-1]).float(), rows[:, -1], class_names, test_fraction, seed)


@register(
    "digits",
    summary="handwritten digits, 8x8, 1,797 in all; the default, comes with the package",
    homepage=_HOMEPAGE + "/dataset/80/optical+recognition+of+handwritten+digits",
    licence="CC BY 4.0",
    citation="Alpaydin, Kaynak 1998, Optical recognition of handwritten digits, UCI",
    needs_files=False,
)
def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """The digits of scikit-learn as uint8 images (N, 1, 8, 8) with values 0 to 16; the split is fixed by seed 0."""
    rows, class_names = _read("digits.csv.gz")
    images = torch.from_numpy(rows[:, :-1]).to(torch.uint8).view(-1, 1, 8, 8)
    return _split("digits", images, rows[:, -1], class_names, test_fraction, seed, 16.0)


@register(
    "wine",
    summary="13 chemical measurements of 178 wines, 3 classes; comes with the package",
    homepage=_HOMEPAGE + "/dataset/109/wine",
    licence="CC BY 4.0",
    citation="Aeberhard, Forina 1992, Wine, UCI",
    needs_files=False,
)
def wine(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """The wine recognition data of scikit-learn as features (N, 13)."""
    return _table("wine", "wine_data.csv", test_fraction, seed)


@register(
    "breast-cancer",
    summary="30 measurements of 569 cell samples, 2 classes; comes with the package",
    homepage=_HOMEPAGE + "/dataset/17/breast+cancer+wisconsin+diagnostic",
    licence="CC BY 4.0",
    citation="Wolberg, Mangasarian, Street, Street 1995, Breast cancer Wisconsin (diagnostic), UCI",
    needs_files=False,
)
def breast_cancer(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """The Wisconsin diagnostic data of scikit-learn as features (N, 30)."""
    return _table("breast-cancer", "breast_cancer.csv", test_fraction, seed)


@register(
    "iris",
    summary="4 measurements of 150 flowers, 3 classes; comes with the package",
    homepage=_HOMEPAGE + "/dataset/53/iris",
    licence="CC BY 4.0",
    citation="Fisher 1936, The use of multiple measurements in taxonomic problems",
    needs_files=False,
)
def iris(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """The iris data of scikit-learn as features (N, 4)."""
    return _table("iris", "iris.csv", test_fraction, seed)
