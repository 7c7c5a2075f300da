"""SVHN's MATLAB files, written here with scipy."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from lastlayer import data
from lastlayer.data.readers.svhn import read_mat

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 32, 3, 20), np.uint8)
LABELS = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]  # the digit 0 is labelled 10


def write(folder: Path, *parts: str) -> None:
    folder.mkdir(parents=True)
    for part in parts:
        savemat(folder / f"{part}_32x32.mat", {"X": IMAGES, "y": LABELS}, do_compression=True)


def test_reads_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "svhn", "train", "test")
    dataset = data.load("svhn", tmp_path, verify=False)
    assert dataset.in_shape == (3, 32, 32)
    assert np.array_equal(dataset.train.inputs[7].numpy(), IMAGES[..., 7].transpose(2, 0, 1))
    assert dataset.train.target.tolist() == [*range(1, 10), 0] * 2


def test_extra_samples_are_added_to_train(tmp_path: Path) -> None:
    write(tmp_path / "svhn", "train", "test", "extra")
    dataset = data.load("svhn", tmp_path, verify=False, extra=True)
    assert len(dataset.train) == 40
    assert dataset.notes == ("extra samples in train",)


def test_known_checksums_are_enforced(tmp_path: Path) -> None:
    write(tmp_path / "svhn", "train", "test")
    with pytest.raises(data.CorruptFileError, match=r"train_32x32.mat.*md5 expected e26dedcc"):
        data.load("svhn", tmp_path)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "svhn", "train")
    file = tmp_path / "svhn/train_32x32.mat"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(data.CorruptFileError, match=r"train_32x32.mat is truncated or not a MATLAB 5 file"):
        read_mat(file)


def test_other_content_is_named(tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"X": IMAGES.astype(float), "y": LABELS})
    savemat(tmp_path / "b.mat", {"X": IMAGES, "y": LABELS[:-1]})
    with pytest.raises(data.CorruptFileError, match=r"X is not a uint8 array"):
        read_mat(tmp_path / "a.mat")
    with pytest.raises(data.CorruptFileError, match=r"y is missing or not of length 20"):
        read_mat(tmp_path / "b.mat")
