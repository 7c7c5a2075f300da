"""Data sets that come with scikit-learn: digits, wine, breast cancer, iris."""

from typing import Any

import numpy as np
import torch

from .dataset import Dataset, Split, tensor_checksum
from .registry import register
from .splits import stratified

_HOMEPAGE = "https://archive.ics.uci.edu"


def _split(name: str, inputs: torch.Tensor, bunch: Any, test_fraction: float, seed: int, scale: float) -> Dataset:
    target = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    kept, held = stratified(target, test_fraction, seed)
    whole = Split(inputs, target)
    return Dataset(
        name,
        whole.select(kept),
        whole.select(held),
        tuple(str(label) for label in bunch.target_names),
        scale=scale,
        checksums={"tensors": tensor_checksum(inputs, target)},
        notes=(f"test set: {test_fraction:g} of each class at random, seed {seed}",),
    ).with_statistics()


def _table(name: str, bunch: Any, test_fraction: float, seed: int) -> Dataset:
    return _split(name, torch.from_numpy(bunch.data).float(), bunch, test_fraction, seed, 1.0)


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
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    return _split("digits", images, bunch, test_fraction, seed, 16.0)


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
    from sklearn.datasets import load_wine

    return _table("wine", load_wine(), test_fraction, seed)


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
    from sklearn.datasets import load_breast_cancer

    return _table("breast-cancer", load_breast_cancer(), test_fraction, seed)


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
    from sklearn.datasets import load_iris

    return _table("iris", load_iris(), test_fraction, seed)
