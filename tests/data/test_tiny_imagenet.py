"""Tiny-ImageNet's official folders, in small."""

from pathlib import Path

import numpy as np
import pytest

from lastlayer import data

from .images import picture, write

WNIDS = ("n02", "n01", "n03")


def make(root: Path) -> Path:
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
    make(tmp_path)
    dataset = data.load("tiny-imagenet", tmp_path)
    assert dataset.class_names == ("goldfish", "bullfrog, Rana", "n03")
    assert dataset.in_shape == (3, 64, 64)
    assert dataset.train_counts.tolist() == [2, 2, 2]
    assert dataset.test.target.tolist() == [2, 0]
    assert np.array_equal(dataset.test.inputs[1].numpy(), picture(51, (64, 64)).transpose(2, 0, 1))
    assert dataset.notes == ("test set: the official validation set",)
    assert data.load("tiny-imagenet", tmp_path, size=32).in_shape == (3, 32, 32)


def test_annotation_of_an_unknown_class_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_0.png\tn77\t0\t0\t1\t1\n")
    with pytest.raises(data.CorruptFileError, match=r"val_annotations.txt, line 1: .*n77"):
        data.load("tiny-imagenet", tmp_path)


def test_missing_validation_image_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path)
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
    make(tmp_path)
    assert data.load("tiny-imagenet", tmp_path, size=32).class_names[0] == "goldfish"
    arrays_file(tmp_path / "other", "tiny-imagenet-32.npz", 16)
    with pytest.raises(ValueError, match=r"inputs of \(3, 16, 16\), not \(3, 32, 32\)"):
        data.load("tiny-imagenet", tmp_path / "other", size=32)
