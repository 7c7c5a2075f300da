"""Sets that need no files: those of scikit-learn, sample by sample, and the synthetic ones by their properties."""

import itertools

import numpy as np
import pytest
import sklearn.datasets
import torch
from sklearn.linear_model import Perceptron

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


def test_conic_hull_classes_are_cones_separated_by_hyperplanes() -> None:
    dataset = data.load("conic-hull", train=600, test=200)
    assert dataset.in_shape == (16,)
    assert dataset.num_classes == 4
    x, y = dataset.train.inputs.numpy(), dataset.train.target.numpy()
    for a, b in itertools.combinations(range(4), 2):
        pair = (y == a) | (y == b)
        model = Perceptron(fit_intercept=False, tol=None, max_iter=2000, random_state=0).fit(x[pair], y[pair])
        assert model.score(x[pair], y[pair]) == 1.0
    counts = dataset.train_counts
    assert counts.min() > 60
    assert counts.sum() == 600


@pytest.mark.parametrize("num_classes", [2, 3, 5, 8])
def test_conic_hull_with_any_number_of_classes(num_classes: int) -> None:
    dataset = data.load("conic-hull", num_classes=num_classes, dim=6, train=101, test=50, balanced=True)
    counts = dataset.train_counts
    assert counts.sum() == 101
    assert counts.max() - counts.min() <= 1


def test_mlp_teacher_is_balanced_and_a_function_of_the_input() -> None:
    dataset = data.load("mlp-teacher", train=802, test=200, seed=2)
    assert dataset.train_counts.tolist() == [201, 201, 200, 200]
    assert dataset.test.target.bincount().tolist() == [50] * 4
    # a network without biases is homogeneous, so the teacher cannot be linear but must beat chance for its neighbours
    x, y = dataset.train.inputs, dataset.train.target
    nearest = torch.cdist(dataset.test.inputs, x).argmin(1)
    assert (y[nearest] == dataset.test.target).float().mean() > 0.35


def test_mlp_teacher_raw_labels_match_a_network_written_here() -> None:
    dataset = data.load("mlp-teacher", train=200, test=50, seed=0, width=7, dim=3, num_classes=3, balanced=False)
    generator = torch.Generator().manual_seed(0)
    weights = []
    for fan_in, fan_out in ((3, 7), (7, 7), (7, 3)):
        weights.append(torch.randn(fan_out, fan_in, generator=generator).double().numpy() * np.sqrt(2 / fan_in))
    hidden = dataset.train.inputs.double().numpy()
    for weight in weights[:-1]:
        hidden = np.maximum(hidden @ weight.T, 0)
    assert np.array_equal((hidden @ weights[-1].T).argmax(1), dataset.train.target.numpy())


def test_gaussian_moments() -> None:
    dataset = data.load("gaussian", num_classes=3, dim=4, per_class=4000, separation=5.0)
    for k in range(3):
        x = dataset.train.inputs[dataset.train.target == k]
        assert x.mean(0).norm().item() == pytest.approx(5.0, abs=0.1)
        torch.testing.assert_close(torch.cov(x.T), torch.eye(4), atol=0.1, rtol=0)


@pytest.mark.parametrize("name", ["conic-hull", "mlp-teacher", "gaussian"])
def test_seeds(name: str) -> None:
    first, again, other = data.load(name), data.load(name), data.load(name, seed=1)
    assert first.checksums == again.checksums
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert first.checksums != other.checksums
    assert not torch.equal(first.train.inputs[:100], first.test.inputs[:100])


@pytest.mark.parametrize("options", [{"num_classes": 1}, {"train": 3}, {"test": 0}, {"dim": 0}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"synthetic data need"):
        data.load("conic-hull", **options)


def test_class_too_rare_to_be_drawn_is_named() -> None:
    with pytest.raises(ValueError, match=r"classes \[.*\] are too rare"):
        data.load("conic-hull", num_classes=4, dim=1, train=8, test=4, balanced=True)
