"""The sets that come with scikit-learn: every sample is there once, and the split is fixed."""

import numpy as np
import pytest
import sklearn.datasets
import torch

from lastlayer import data


@pytest.mark.parametrize(
    ("name", "loader"),
    [
        ("digits", sklearn.datasets.load_digits),
        ("wine", sklearn.datasets.load_wine),
        ("breast-cancer", sklearn.datasets.load_breast_cancer),
        ("iris", sklearn.datasets.load_iris),
    ],
)
def test_every_sample_once(name: str, loader: object) -> None:
    bunch = loader()  # type: ignore[operator]
    dataset = data.load(name)
    inputs = torch.cat((dataset.train.inputs, dataset.test.inputs)).flatten(1).double()
    target = torch.cat((dataset.train.target, dataset.test.target)).double()
    found = torch.cat((inputs, target[:, None]), 1).numpy()
    wanted = np.column_stack((bunch.data.astype(np.float32), bunch.target)).astype(np.float64)
    assert np.array_equal(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)])
    assert dataset.class_names == tuple(str(label) for label in bunch.target_names)
    share = dataset.test.target.bincount().numpy() / np.bincount(bunch.target)
    assert (np.abs(share - 0.2) < 0.02).all()


def test_digits_are_bytes_from_0_to_16() -> None:
    digits = data.load("digits")
    assert digits.train.inputs.dtype == torch.uint8
    assert digits.in_shape == (1, 8, 8)
    assert digits.train.inputs.max() == 16 == digits.scale
    x = data.Normalize(digits.mean, digits.std, digits.scale)(digits.train.inputs).double()
    assert x.mean().item() == pytest.approx(0, abs=1e-6)
    assert x.std(unbiased=False).item() == pytest.approx(1, abs=1e-6)


def test_split_is_fixed_and_seeded() -> None:
    digits, again, other = data.load("digits"), data.load("digits"), data.load("digits", seed=1)
    assert torch.equal(digits.train.inputs, again.train.inputs)
    assert not torch.equal(digits.train.target, other.train.target)
    assert digits.checksums == other.checksums
    # the first samples of the split that every result on digits rests on
    assert digits.test.target[:10].tolist() == [0, 4, 1, 2, 6, 7, 5, 6, 9, 1]
