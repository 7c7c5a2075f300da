"""Folders of images by class, with and without train and test; Omniglot's official folders, in small."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lastlayer import data
from tests.data.pictures import picture, write


def make(folder: Path, *classes: str, count: int = 5, grey: bool = False, start: int = 0) -> None:
    for label, name in enumerate(classes):
        for i in range(count):
            write(folder / name / f"{i}.png", picture(start + 100 * label + i, grey=grey))


def test_folder_by_class_is_split_by_class(tmp_path: Path) -> None:
    make(tmp_path / "pets", "dog", "cat", count=10)
    (tmp_path / "pets/cat/notes.txt").write_text("not an image")
    (tmp_path / "pets/cat/.hidden.png").write_text("not an image")
    (tmp_path / "pets/.cache").mkdir()
    dataset = data.load(str(tmp_path / "pets"))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_counts.tolist() == [8, 8]
    assert dataset.test.target.bincount().tolist() == [2, 2]
    assert dataset.notes == ("test set: 0.2 of each class at random, seed 0",)
    assert dataset.name == "pets"
    every = torch.cat((dataset.train.inputs, dataset.test.inputs))
    wanted = {picture(seed).transpose(2, 0, 1).tobytes() for seed in [*range(10), *range(100, 110)]}
    assert {image.numpy().tobytes() for image in every} == wanted


def test_train_and_test_folders(tmp_path: Path) -> None:
    make(tmp_path / "train", "a", "b")
    make(tmp_path / "val", "b", start=500)
    dataset = data.load(tmp_path)
    assert len(dataset.train) == 10
    assert dataset.test.target.tolist() == [1] * 5
    assert np.array_equal(dataset.test.inputs[0].numpy(), picture(500).transpose(2, 0, 1))
    assert dataset.notes == ()
    assert set(dataset.checksums) == {"train", "test"}


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "test"), ("train", "Val"), ("test",), ("a", "val")])
def test_parts_that_are_misspelt_or_alone_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        make(tmp_path / name, "a", "b")
    with pytest.raises(ValueError, match=r"looks like a part of the data .* to train on train and the one to test on"):
        data.load(tmp_path)


def test_a_train_folder_alone_has_its_test_set_held_out(tmp_path: Path) -> None:
    make(tmp_path / "train", "a", "b")
    assert data.load(tmp_path).class_names == ("a", "b")


def test_relative_to_the_data_root(tmp_path: Path) -> None:
    make(tmp_path / "pets", "a", "b")
    assert data.load("pets", tmp_path).num_classes == 2


def test_grey_images_have_one_channel_unless_some_have_colour(tmp_path: Path) -> None:
    make(tmp_path, "a", "b", grey=True)
    grey = data.load(tmp_path)
    assert grey.in_shape == (1, 6, 6)
    write(tmp_path / "b/colour.png", picture(3))
    mixed = data.load(tmp_path)
    assert mixed.in_shape == (3, 6, 6)


def test_grey_test_images_follow_the_training_images(tmp_path: Path) -> None:
    make(tmp_path / "train", "a", "b")
    make(tmp_path / "test", "a", "b", grey=True)
    dataset = data.load(tmp_path)
    assert dataset.test.inputs.shape == (10, 3, 6, 6)


def test_class_without_images_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"class 'empty' has no images"):
        data.load(tmp_path)


def test_test_class_without_training_images_is_named(tmp_path: Path) -> None:
    make(tmp_path / "train", "a", "b")
    make(tmp_path / "test", "a", "c")
    with pytest.raises(ValueError, match=r"class folders without training images: c"):
        data.load(tmp_path)


def test_image_files_are_decoded_when_asked_for(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    files = data.image_files(tmp_path, size=3)
    loader = torch.utils.data.DataLoader(files, batch_size=4)
    images, target = next(iter(loader))
    assert images.shape == (4, 3, 3, 3)
    assert images.dtype == torch.uint8
    assert target.tolist() == [0, 0, 0, 0]
    assert len(files) == 10


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    for size in (0, -3, 2.5, "large"):
        with pytest.raises(ValueError, match="size must be a whole number of pixels"):
            data.load(tmp_path, size=size)


def make_omniglot(root: Path) -> None:
    number = 0
    for part, alphabet in (("background", "Latin"), ("evaluation", "Atlantean")):
        for character in ("character01", "character02"):
            number += 1
            for drawer in range(1, 21):
                pixels = (picture(number * 100 + drawer, grey=True) > 128).astype(np.uint8) * 255
                name = f"{number:04d}_{drawer:02d}.png"
                write(root / "omniglot" / f"images_{part}" / alphabet / character / name, pixels)


def test_omniglot_drawers_are_split(tmp_path: Path) -> None:
    make_omniglot(tmp_path)
    dataset = data.load("omniglot", tmp_path)
    assert dataset.in_shape == (1, 6, 6)
    assert dataset.class_names == (
        "Latin/character01",
        "Latin/character02",
        "Atlantean/character01",
        "Atlantean/character02",
    )
    assert dataset.train_counts.tolist() == [15] * 4
    assert dataset.test.target.bincount().tolist() == [5] * 4
    first = (picture(116, grey=True) > 128).astype(np.uint8) * 255
    assert np.array_equal(dataset.test.inputs[0, 0].numpy(), first)


def test_omniglot_one_part_and_other_drawers(tmp_path: Path) -> None:
    make_omniglot(tmp_path)
    dataset = data.load("omniglot", tmp_path, part="evaluation", test_drawers=1)
    assert dataset.num_classes == 2
    assert len(dataset.test) == 2
    assert dataset.notes == ("evaluation characters; test set: drawers 20 to 20",)


def test_omniglot_wrong_choices_and_names(tmp_path: Path) -> None:
    make_omniglot(tmp_path)
    with pytest.raises(ValueError, match=r"part is"):
        data.load("omniglot", tmp_path, part="all")
    with pytest.raises(ValueError, match=r"test_drawers is 1 to 19"):
        data.load("omniglot", tmp_path, test_drawers=20)
    write(tmp_path / "omniglot/images_background/Latin/character01/strange.png", picture(0, grey=True))
    with pytest.raises(data.CorruptFileError, match=r"strange.png"):
        data.load("omniglot", tmp_path)
