"""ImageNet and its relatives, in small: class folders, Tiny ImageNet's official folders, ImageNet32's batches."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data
from tests.data.pictures import picture, write

RNG = np.random.default_rng(0)
WNIDS = ("n02", "n01", "n03")


def make(folder: Path, *classes: str, count: int = 5, grey: bool = False, start: int = 0) -> None:
    for label, name in enumerate(classes):
        for i in range(count):
            write(folder / name / f"{i}.png", picture(start + 100 * label + i, grey=grey))


def test_imagenet_class_folders(tmp_path: Path) -> None:
    make(tmp_path / "imagenet/train", "n01", "n02")
    make(tmp_path / "imagenet/val", "n01", "n02")
    dataset = data.load("imagenet", tmp_path, size=5)
    assert dataset.in_shape == (3, 5, 5)
    assert dataset.class_names == ("n01", "n02")
    assert "ImageNet" in dataset.licence


def test_miniimagenet_parts_are_taken_together(tmp_path: Path) -> None:
    for part, name in (("train", "n3"), ("val", "n1"), ("test", "n2")):
        make(tmp_path / "miniimagenet" / part, name, count=6)
    dataset = data.load("miniimagenet", tmp_path, size=6)
    assert dataset.class_names == ("n1", "n2", "n3")
    assert dataset.train_counts.tolist() == [5, 5, 5]
    assert len(dataset.test) == 3


def make_tiny(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            pixels = picture(10 * label + i, (64, 64), grey=(wnid == "n03" and i == 1))
            write(folder / "train" / wnid / "images" / f"{wnid}_{i}.png", pixels)
    lines = []
    for i, wnid in enumerate(("n03", "n01")):
        write(folder / "val/images" / f"val_{i}.png", picture(50 + i, (64, 64)))
        lines.append(f"val_{i}.png\t{wnid}\t0\t0\t62\t62")
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("n01\tgoldfish\nn02\tbullfrog, Rana\nn99\tother\n")
    return folder


def test_reads_the_official_layout(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    dataset = data.load("tiny-imagenet", tmp_path)
    assert dataset.class_names == ("goldfish", "bullfrog, Rana", "n03")
    assert dataset.in_shape == (3, 64, 64)
    assert dataset.train_counts.tolist() == [2, 2, 2]
    assert dataset.test.target.tolist() == [2, 0]
    assert np.array_equal(dataset.test.inputs[1].numpy(), picture(51, (64, 64)).transpose(2, 0, 1))
    assert dataset.notes == ("test set: the official validation set",)
    assert data.load("tiny-imagenet", tmp_path, size=32).in_shape == (3, 32, 32)


def test_annotation_of_an_unknown_class_is_named(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_0.png\tn77\t0\t0\t1\t1\n")
    with pytest.raises(data.CorruptFileError, match=r"val_annotations.txt, line 1: .*n77"):
        data.load("tiny-imagenet", tmp_path)


def test_missing_validation_image_is_named(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path)
    (folder / "val/images/val_1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_1.png is missing"):
        data.load("tiny-imagenet", tmp_path)


def arrays_file(root: Path, name: str, size: int) -> None:
    images = np.stack([picture(k, (size, size)) for k in range(6)])  # (N, H, W, 3)
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / name, x_train=images[:4], y_train=[0, 1, 2, 2], x_test=images[4:], y_test=[2, 0])


def test_arrays_of_the_size_asked_for_take_the_place_of_folders_that_are_not_there(tmp_path: Path) -> None:
    arrays_file(tmp_path, "tiny-imagenet-32.npz", 32)
    dataset = data.load("tiny-imagenet", tmp_path, size=32)
    assert dataset.name == "tiny-imagenet"
    assert dataset.in_shape == (3, 32, 32)
    assert dataset.train.target.tolist() == [0, 1, 2, 2]
    assert np.array_equal(dataset.test.inputs[1].numpy(), picture(5, (32, 32)).transpose(2, 0, 1))
    assert "not the official files" in " ".join(dataset.notes)
    assert data.describe("tiny-imagenet").find(tmp_path) == tmp_path
    with pytest.raises(FileNotFoundError, match=r"no val/val_annotations.txt or tiny-imagenet-64.npz in"):
        data.load("tiny-imagenet", tmp_path)


def test_the_folders_go_before_arrays_and_arrays_must_have_the_size(tmp_path: Path) -> None:
    arrays_file(tmp_path, "tiny-imagenet-32.npz", 32)
    make_tiny(tmp_path)
    assert data.load("tiny-imagenet", tmp_path, size=32).class_names[0] == "goldfish"
    arrays_file(tmp_path / "other", "tiny-imagenet-32.npz", 16)
    with pytest.raises(ValueError, match=r"inputs of \(3, 16, 16\), not \(3, 32, 32\)"):
        data.load("tiny-imagenet", tmp_path / "other", size=32)


def write_batches(folder: Path, npz: bool, batches: int = 10, side: int = 4) -> dict[str, np.ndarray]:
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
def test_batches_are_read_as_written(tmp_path: Path, npz: bool) -> None:
    pixels = write_batches(tmp_path / "imagenet32", npz)
    dataset = data.load("imagenet32", tmp_path)
    assert dataset.in_shape == (3, 4, 4)
    assert dataset.train.target[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(dataset.train.inputs[6:12].flatten(1).numpy(), pixels["train_data_batch_2"])
    assert np.array_equal(dataset.test.inputs.flatten(1).numpy(), pixels["val_data"])
    assert len(dataset.checksums) == 11


def test_fewer_batches(tmp_path: Path) -> None:
    write_batches(tmp_path / "imagenet32", npz=False, batches=2)
    dataset = data.load("imagenet32", tmp_path, batches=2)
    assert len(dataset.train) == 12
    assert dataset.notes == ("the first 2 of 10 training batches",)
    with pytest.raises(FileNotFoundError, match=r"train_data_batch_3"):
        data.load("imagenet32", tmp_path)
    with pytest.raises(ValueError, match=r"batches is 1 to 10"):
        data.load("imagenet32", tmp_path, batches=0)


def test_damaged_batches_are_named(tmp_path: Path) -> None:
    write_batches(tmp_path / "imagenet32", npz=True, batches=1)
    file = tmp_path / "imagenet32/val_data.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(data.CorruptFileError, match=r"val_data.npz is damaged"):
        data.load("imagenet32", tmp_path, batches=1)


def test_rows_that_are_no_square_image_are_named(tmp_path: Path) -> None:
    write_batches(tmp_path / "imagenet32", npz=False, batches=1)
    content = {"data": np.zeros((2, 47), np.uint8), "labels": [1, 2]}
    (tmp_path / "imagenet32/val_data").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(data.CorruptFileError, match=r"47 values per row"):
        data.load("imagenet32", tmp_path, batches=1)
