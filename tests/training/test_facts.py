"""The data of a trial and what is known of them: embeddings from files, published open sets, notes, round trips."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lastlayer import data
from lastlayer.data import CorruptFileError
from lastlayer.training import DataChoice, Facts, load_data
from lastlayer.training.facts import choose, load_features
from tests.training.conftest import K, points


def test_facts_survive_json() -> None:
    for known in (Facts.of(data.load("digits")), Facts.of(data.load("wine"))):
        told = json.loads(json.dumps(known.to_dict()))
        assert Facts.from_dict(told) == known
        del told["counts"]  # older runs did not tell them
        assert Facts.from_dict(told) == dataclasses.replace(known, counts=None)
    digits = Facts.of(data.load("digits")).to_dict()
    target = data.load("digits").train.target
    assert digits["largest_class"] == pytest.approx(max(target.tolist().count(k) for k in range(10)) / len(target))
    assert (digits["dtype"], digits["in_shape"], digits["normalize"]["scale"]) == ("uint8", [1, 8, 8], 16.0)


def test_published_open_sets_take_their_number_from_the_seed() -> None:
    digits = dataclasses.replace(data.load("digits"), name="mnist")
    opened = choose(digits, DataChoice("mnist", arpl=True, seed=2))
    assert opened.class_names == tuple(digits.class_names[k] for k in (5, 8, 3, 2, 4, 6))  # the third list of ARPL
    assert opened.unknown is not None
    assert sorted(opened.unknown.target.unique().tolist()) == [0, 1, 7, 9]
    with pytest.raises(ValueError, match=r"leave out data\.unknown=4"):
        DataChoice("mnist", arpl=True, unknown=4)


def test_folds_share_out_the_samples_and_every_other_choice_follows() -> None:
    whole = data.load("digits")
    label = torch.cat([whole.train.target, whole.test.target])

    factors = torch.randint(2**40, (64,))

    def keys(split: data.Split) -> torch.Tensor:
        """A number for each sample. No two samples have the same."""
        return (split.tensor().flatten(1).long() * factors).sum(1)

    key = torch.cat([keys(whole.train), keys(whole.test)]).sort().values
    assert len(key.unique()) == 1797
    tested = []
    for fold in range(5):
        dataset = load_data(DataChoice("digits", fold=fold, holdout=0.1))
        assert dataset.validation is not None
        parts = [keys(split) for split in (dataset.train, dataset.test, dataset.validation)]
        assert torch.equal(torch.cat(parts).sort().values, key)
        assert dataset.test.target.bincount().tolist() == pytest.approx((label.bincount() / 5).tolist(), abs=1)
        tested.append(parts[1])
    assert torch.equal(torch.cat(tested).sort().values, key)
    assert not torch.equal(keys(load_data(DataChoice("digits", fold=5)).test), tested[0])


def test_a_fold_of_data_with_a_test_set_of_its_own_is_refused(files):
    with pytest.raises(ValueError, match=r"data\.fold=2: train has a test set of its own.*leave data\.fold out"):
        choose(load_features(*files), DataChoice("x", fold=2))


def flowers() -> data.Dataset:
    """A data set that counts how often it is read; found by its import path."""
    READ.append("flowers")
    return data.load("iris")


READ: list[str] = []


def test_folds_read_the_data_set_once() -> None:
    READ.clear()
    with data.reading_once():
        folds = [load_data(DataChoice(f"{__name__}:flowers", fold=fold)) for fold in range(5)]
    assert READ == ["flowers"]
    assert [len(fold.test) for fold in folds] == [30] * 5


def test_features_keep_their_bits_and_are_standardised_on_the_way(files):
    dataset = load_features(*files)
    features, target = points(600, 1)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(features))
    assert dataset.train.target.tolist() == target.tolist()
    np.testing.assert_allclose(dataset.mean, features.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, features.astype(np.float64).std(0), rtol=1e-12)
    assert set(dataset.checksums) == {"train.safetensors", "test.safetensors"}
    assert load_features(*files, standardize=False).mean is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f4"])
def test_npz_of_any_float_and_integer(tmp_path, dtype):
    features, target = points(100, 1)
    np.savez(tmp_path / "a.npz", x=features.astype(dtype), y=target.astype(np.uint8))
    dataset = load_features(tmp_path / "a.npz")
    assert len(dataset.train) == 80
    assert dataset.notes == ("test set: 0.2 of each class at random, seed 0",)
    assert dataset.train.inputs.dtype == torch.from_numpy(np.zeros(1, np.dtype(dtype).newbyteorder("="))).dtype


def test_one_file_may_hold_both_splits(tmp_path):
    (a, b), (c, d) = points(100, 1), points(50, 2)
    np.savez(tmp_path / "data.npz", x_train=a, y_train=b, x_test=c, y_test=d)
    np.savez(tmp_path / "own.npz", features_train=a, target_train=b, features_test=c, target_test=d)
    for name in ("data.npz", "own.npz"):
        dataset = load_features(tmp_path / name)
        assert (len(dataset.train), len(dataset.test)) == (100, 50)


def test_constant_entries_have_deviation_one(tmp_path):
    features, target = points(50, 0)
    features[:, 2] = 7.0
    np.savez(tmp_path / "a.npz", features=features, target=target)
    assert load_features(tmp_path / "a.npz").std[2] == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, r"holds no features \(or x, features_train, x_train\); it holds target"),
        ({"target": None}, "holds no target"),
        ({"features": np.zeros((4, 2, 2))}, r"features must be \(N, d\), got inputs of shape \(1, 2, 2\)"),
        ({"features": np.zeros((4, 0))}, "features must be real numbers and not empty"),
        (
            {"target": np.zeros(4)},
            r"target must be integers \(N,\), not torch.float64 \(4,\): save target.astype\(int\)$",
        ),
        ({"target": np.zeros(3, int)}, r"features has 4 rows but target has 3"),
        ({"target": np.array([0, 1, 0, -1])}, "label -1"),
        ({"target": np.array([0, 1, 0, 10**9])}, "labels must be 0 to K-1"),
        ({"features": np.array([[0.0], [np.nan], [1.0], [1.0]])}, "not finite in float32, first at row 1"),
        ({"features": np.array([[0.0], [1.0], [1e300], [1.0]])}, "not finite in float32, first at row 2"),
        ({"target": np.array(list("abab"), object)}, "without unpickling, which is refused .*: save numbers"),
        ({"target": np.zeros(4, "datetime64[s]")}, "a.npz: target must be numbers, got datetime64"),
        ({"target": np.zeros(4, int)}, "a.npz has one class, 0: a classifier needs two or more"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, change, message):
    content = {"features": np.ones((4, 2)), "target": np.array([0, 1, 0, 1]), **change}
    content = {name: value for name, value in content.items() if value is not None}
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(ValueError, match=message):
        load_features(tmp_path / "a.npz", tmp_path / "a.npz")


def test_whole_numbers_and_texts_are_read_as_data_load_reads_them(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.arange(20).reshape(10, 2), target=np.array(list("ab") * 5))
    dataset = load_features(tmp_path / "a.npz")
    assert dataset.train.inputs.dtype == torch.float32
    assert dataset.class_names == ("a", "b")


def test_rows_that_are_not_finite_are_named_wherever_they_come_to_lie(tmp_path):
    features, target = points(50, 0)
    for row in range(50):
        broken = features.copy()
        broken[row, 1] = np.inf
        np.savez(tmp_path / "a.npz", features=broken, target=target)
        with pytest.raises(
            ValueError, match=rf"a.npz: features has numbers that are not finite in float32, first at row {row}$"
        ):
            load_features(tmp_path / "a.npz")


def test_a_test_set_that_does_not_fit_is_named(tmp_path):
    features, target = points(50, 0)
    np.savez(tmp_path / "train.npz", features=features, target=target)
    for more, message in (
        ({"target": target + 1000}, "label 1004"),
        ({"features": features + np.inf}, "first at row 0"),
    ):
        np.savez(tmp_path / "test.npz", **{"features": features, "target": target, **more})
        with pytest.raises(ValueError, match=rf"test.npz: .*{message}"):
            load_features(tmp_path / "train.npz", tmp_path / "test.npz")


def test_one_sample_a_class_leaves_none_to_test_on(tmp_path):
    features, target = points(K, 0)
    np.savez(tmp_path / "a.npz", features=features, target=target)
    with pytest.raises(ValueError, match=r"every class has one sample.*give a test set"):
        load_features(tmp_path / "a.npz")


def test_a_class_without_training_samples_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((4, 2)), target=np.array([0, 2, 0, 2]))
    with pytest.raises(ValueError, match="no training samples for 1 of 3 classes: 1; add"):
        load_features(tmp_path / "a.npz", tmp_path / "a.npz")


def test_damaged_files(tmp_path):
    for name in ("a.npz", "a.safetensors"):
        (tmp_path / name).write_bytes(b"\xff" * 100)
        with pytest.raises(CorruptFileError, match=name):
            load_features(tmp_path / name)
    np.savez(tmp_path / "pickled.npz", features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CorruptFileError):
        load_features(tmp_path / "pickled.npz")


def test_what_is_measured_in_part_is_noted(files, largest_logits):
    largest_logits(100 * K)
    assert load_features(*files).notes == (
        "train: measured on 100 of 600 samples, an even share of each class; accuracy on all",
        "test: measured on 100 of 200 samples, an even share of each class; accuracy on all",
    )
