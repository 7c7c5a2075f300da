"""Arrays from .npz and .safetensors files: keys, shapes, types, errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lastlayer import data

RNG = np.random.default_rng(0)
LABELS = np.arange(12) % 3


def test_npz_with_train_and_test(tmp_path: Path) -> None:
    x = RNG.standard_normal((12, 4)).astype(np.float32)
    names = np.array(["a", "b", "c"])
    np.savez(tmp_path / "points.npz", x_train=x, y_train=LABELS, x_test=x[:3], y_test=LABELS[:3], class_names=names)
    dataset = data.load(tmp_path / "points.npz")
    assert np.array_equal(dataset.train.inputs.numpy(), x)
    assert dataset.test.target.tolist() == [0, 1, 2]
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.mean == pytest.approx(x.astype(np.float64).mean(0).tolist())
    assert dataset.scale == 1.0
    assert data.load("points", tmp_path, standardize=False).mean is None


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((12, 8, 8, 3), np.uint8, (3, 8, 8)),
        ((12, 3, 8, 8), np.uint8, (3, 8, 8)),
        ((12, 3, 8, 3), np.uint8, (3, 8, 3)),
        ((12, 8, 8), np.uint8, (1, 8, 8)),
        ((12, 8, 8), bool, (1, 8, 8)),
        ((12, 1, 8, 8), np.float64, (1, 8, 8)),
        ((12, 5), np.int32, (5,)),
    ],
)
def test_shapes_and_types(tmp_path: Path, shape: tuple[int, ...], dtype: type, expected: tuple[int, ...]) -> None:
    x = RNG.integers(0, 2, shape).astype(dtype)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=LABELS, x_test=x, y_test=LABELS)
    dataset = data.load(tmp_path / "a.npz")
    assert dataset.in_shape == expected
    assert dataset.mean is not None
    assert len(dataset.mean) == expected[0]
    inputs = dataset.train.inputs
    assert dataset.scale == (255.0 if inputs.dtype == torch.uint8 else 1.0)
    values = inputs.permute(0, 2, 3, 1) if shape == (12, 8, 8, 3) else inputs
    factor = 255 if dtype is bool else 1
    assert np.array_equal(values.numpy().reshape(shape), x * factor)


def test_one_set_is_split_by_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=RNG.standard_normal((12, 2)), y=LABELS, drawer=LABELS)
    dataset = data.load(tmp_path / "a.npz", test_fraction=0.5, seed=3)
    assert dataset.train_counts.tolist() == [2, 2, 2]
    assert dataset.notes == ("test set: 0.5 of each class at random, seed 3",)
    assert dataset.train.inputs.dtype == torch.float64


def test_safetensors_pair(tmp_path: Path) -> None:
    x = torch.randn(12, 4).to(torch.bfloat16)
    y = torch.from_numpy(LABELS).int()
    save_file({"x": x, "y": y}, tmp_path / "train.safetensors")
    save_file({"x": x[:3], "y": y[:3]}, tmp_path / "test.safetensors")
    dataset = data.arrays(tmp_path / "train.safetensors", test=tmp_path / "test.safetensors")
    assert torch.equal(dataset.train.inputs, x)
    assert len(dataset.test) == 3
    assert set(dataset.checksums) == {"train.safetensors", "test.safetensors"}


@pytest.mark.parametrize("labels", ["target", "targets", "labels", "y"])
@pytest.mark.parametrize("inputs", ["features", "x"])
def test_arrays_may_have_other_names(tmp_path: Path, inputs: str, labels: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 4
    np.savez(tmp_path / "whole.npz", **{inputs: x, labels: y})
    assert len(data.load(tmp_path / "whole.npz").train) == 16
    parts = {f"{inputs}_train": x, f"{labels}_train": y, f"{inputs}_test": x[:8], f"{labels}_test": y[:8]}
    save_file({name: torch.from_numpy(array) for name, array in parts.items()}, tmp_path / "parts.safetensors")
    dataset = data.load(tmp_path / "parts.safetensors")
    assert torch.equal(dataset.train.inputs, torch.from_numpy(x))
    assert dataset.test.target.tolist() == y[:8].tolist()
    texts = np.array(["ant", "bee", "cat", "dog"])[y]
    np.savez(tmp_path / "texts.npz", **{inputs: x, labels: texts})
    assert data.load(tmp_path / "texts.npz").class_names == ("ant", "bee", "cat", "dog")


def test_two_names_for_the_same_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, labels=np.arange(4))
    with pytest.raises(ValueError, match=r"a.npz holds labels and y, which mean the same: leave one"):
        data.load(tmp_path / "a.npz")


def test_missing_keys_list_those_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3)), labels=np.zeros(2, int))
    with pytest.raises(ValueError, match=r"holds no features \(or x\); it holds images, labels"):
        data.load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x_train=np.zeros((2, 3)), y_train=np.zeros(2, int))
    with pytest.raises(ValueError, match=r"holds no features_test \(or x_test\); it holds x_train, y_train"):
        data.load(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 3)), np.zeros(2), r"y_train must be integers \(N,\), not torch.float64"),
        (np.zeros((2, 3)), np.zeros((2, 1), int), r"not torch.int64 \(2, 1\)"),
        (np.zeros((3, 3)), np.zeros(2, int), r"x_train has 3 rows but y_train has 2"),
        (np.zeros((0, 3)), np.zeros(0, int), r"x_train and y_train are empty"),
        (np.zeros(3), np.zeros(3, int), r"x_train must be \(N, d\)"),
        (np.zeros((2, 3, 4, 4), int), np.zeros(2, int), r"images in x_train must be uint8"),
        (np.zeros((2, 3)), np.array([0, -1]), r"label -1 at row"),
        (np.zeros((4, 3)), np.array([0, 2, 0, 2]), r"no training samples for 1 of \d+ classes: 1"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, x: np.ndarray, y: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path / "a.npz")


def test_absurd_labels_are_named(tmp_path: Path) -> None:
    x, y = np.zeros((4, 3)), np.array([0, 0, 10**12, 10**12])
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match=r"label 1000000000000 with 4 training samples"):
        data.load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x, y=y)
    with pytest.raises(ValueError, match=r"label 1000000000000 with 4"):
        data.load(tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", x=x, y=np.array([0, 0, -1, -1]))
    with pytest.raises(ValueError, match=r"label -1 at row 2"):
        data.load(tmp_path / "b.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2, int))
    with pytest.raises(data.CorruptFileError, match=r"without unpickling, which is refused"):
        data.load(tmp_path / "a.npz")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((50, 3)), y=np.arange(50) % 2)
    save_file({"x": torch.zeros(4, 2), "y": torch.zeros(4, dtype=torch.int64)}, tmp_path / "a.safetensors")
    for name, kind in (("a.npz", "npz"), ("a.safetensors", "safetensors")):
        file = tmp_path / name
        file.write_bytes(file.read_bytes()[:-30])
        with pytest.raises(data.CorruptFileError, match=rf"{name} is damaged or not a.* {kind} file"):
            data.load(file)


def test_flipped_byte_in_npz_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.zeros((50, 3)), y=np.arange(50) % 2)
    raw = bytearray(file.read_bytes())
    raw[400] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(data.CorruptFileError, match=r"a.npz"):
        data.load(file)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"read from .npz and .safetensors files, not .csv"):
        data.load(tmp_path / "a.csv")


def test_texts_as_labels_name_the_classes_in_sorted_order(tmp_path: Path) -> None:
    x = RNG.standard_normal((12, 4))
    texts = np.array(["pear", "apple", "fig"])[LABELS]
    np.savez(tmp_path / "one.npz", x=x, y=texts.astype(bytes))
    np.savez(tmp_path / "two.npz", x_train=x, y_train=texts, x_test=x[:3], y_test=np.array(["fig", "pear", "apple"]))
    assert data.load(tmp_path / "one.npz").class_names == ("apple", "fig", "pear")
    dataset = data.load(tmp_path / "two.npz")
    assert [dataset.class_names[k] for k in dataset.train.target.tolist()] == texts.tolist()
    assert dataset.test.target.tolist() == [1, 2, 0]
    np.savez(tmp_path / "test.npz", x=x[:2], y=np.array(["pear", "kiwi"]))
    with pytest.raises(ValueError, match=r"no training samples for 1 of \d+ classes: 2 \(kiwi\)"):
        data.load(tmp_path / "one.npz", test=tmp_path / "test.npz")
    np.savez(tmp_path / "mixed.npz", x_train=x, y_train=texts, x_test=x[:3], y_test=LABELS[:3])
    with pytest.raises(ValueError, match="one split are texts"):
        data.load(tmp_path / "mixed.npz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.where(np.arange(48).reshape(12, 4) == 30, np.nan, 1.0)}, "x has numbers .* not finite .* row 7"),
        ({"x": np.full((12, 4), 1e300)}, "not finite in float32, first at row 0"),
        ({"x": np.ones((12, 4), complex)}, "x must be real numbers"),
        ({"x": np.full((12, 4), "a")}, "x must be numbers, got texts"),
        ({"x": np.ones((12, 0))}, "not empty"),
        ({"y": LABELS - 1}, "y has label -1 at row 0: labels must be 0 to K-1"),
        ({"y": np.arange(12)}, "every class has one sample"),
        ({"y": LABELS.astype("datetime64[s]")}, "y must be numbers"),
    ],
)
def test_odd_contents_are_refused_with_the_file_and_the_row(
    tmp_path: Path, changes: dict[str, np.ndarray], words: str
) -> None:
    np.savez(tmp_path / "odd.npz", **{"x": np.ones((12, 4)), "y": LABELS, **changes})
    with pytest.raises(ValueError, match=words) as caught:
        data.load(tmp_path / "odd.npz")
    assert "odd.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        (LABELS.astype(np.float32), r"torch.float32 \(12,\): save y.astype\(int\)$"),
        (LABELS[:, None], r"\(12, 1\): save y.ravel\(\).astype\(int\)$"),
        (np.eye(3)[LABELS], r"\(12, 3\): save y.argmax\(1\), if its rows are one-hot$"),
        (LABELS + 1, "no training samples for 1 of 4 classes: 0; the lowest label is 1 and should be 0: subtract 1"),
        (LABELS * 2, "no training samples for 2 of 5 classes: 1, 3; add some, or number the labels without gaps"),
        (np.array(["a", "b", "c"], dtype=object)[LABELS], r"texts as .astype\(str\) makes them"),
    ],
)
def test_labels_of_another_kind_are_told_with_a_remedy(tmp_path: Path, y: np.ndarray, remedy: str) -> None:
    np.savez(tmp_path / "points.npz", x=RNG.standard_normal((12, 4)), y=y)
    with pytest.raises((ValueError, data.CorruptFileError), match=remedy):
        data.load(tmp_path / "points.npz")


def test_a_file_that_is_no_archive_is_not_called_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("1,2,3")
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, LABELS)
    for name in ("text.npz", "one.npz"):
        with pytest.raises(data.CorruptFileError, match=r"damaged or not an npz file, as numpy\.savez"):
            data.load(tmp_path / name)
