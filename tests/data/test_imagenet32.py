"""ImageNet32's batches, pickled and npz, written here."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data

RNG = np.random.default_rng(0)


def write(folder: Path, npz: bool, batches: int = 10, side: int = 4) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    pixels = {}
    for name in [*(f"train_data_batch_{i}" for i in range(1, batches + 1)), "val_data"]:
        content = {"data": RNG.integers(0, 256, (6, 3 * side * side), np.uint8), "labels": [1, 2, 3, 1, 2, 3]}
        pixels[name] = content["data"]
        if npz:
            np.savez(folder / f"{name}.npz", mean=np.zeros(3), **content)
        else:
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return pixels


@pytest.mark.parametrize("npz", [True, False])
def test_reads_what_was_written(tmp_path: Path, npz: bool) -> None:
    pixels = write(tmp_path / "imagenet32", npz)
    dataset = data.load("imagenet32", tmp_path)
    assert dataset.in_shape == (3, 4, 4)
    assert dataset.train.target[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(dataset.train.inputs[6:12].flatten(1).numpy(), pixels["train_data_batch_2"])
    assert np.array_equal(dataset.test.inputs.flatten(1).numpy(), pixels["val_data"])
    assert len(dataset.checksums) == 11


def test_fewer_batches(tmp_path: Path) -> None:
    write(tmp_path / "imagenet32", npz=False, batches=2)
    dataset = data.load("imagenet32", tmp_path, batches=2)
    assert len(dataset.train) == 12
    assert dataset.notes == ("the first 2 of 10 training batches",)
    with pytest.raises(FileNotFoundError, match=r"train_data_batch_3"):
        data.load("imagenet32", tmp_path)
    with pytest.raises(ValueError, match=r"batches is 1 to 10"):
        data.load("imagenet32", tmp_path, batches=0)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "imagenet32", npz=True, batches=1)
    file = tmp_path / "imagenet32/val_data.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(data.CorruptFileError, match=r"val_data.npz is damaged"):
        data.load("imagenet32", tmp_path, batches=1)


def test_rows_that_are_no_square_image_are_named(tmp_path: Path) -> None:
    write(tmp_path / "imagenet32", npz=False, batches=1)
    content = {"data": np.zeros((2, 47), np.uint8), "labels": [1, 2]}
    (tmp_path / "imagenet32/val_data").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(data.CorruptFileError, match=r"47 values a row"):
        data.load("imagenet32", tmp_path, batches=1)
