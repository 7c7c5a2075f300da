"""Folders of images by class, with and without train and test; ImageNet and miniImageNet."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lastlayer import data
from lastlayer.data import folders

from .images import picture, write


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


def test_different_sizes_are_named_and_size_mends_it(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    write(tmp_path / "b/wide.png", np.full((4, 9, 3), 200, np.uint8))
    with pytest.raises(ValueError, match=r"0.png is 6x6, .*wide.png is 9x4 .*size="):
        data.load(tmp_path)
    dataset = data.load(tmp_path, size=4)
    assert dataset.in_shape == (3, 4, 4)


def test_scaling_keeps_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    write(tmp_path / "a/x.png", wide)
    image, _ = folders.decode(tmp_path / "a/x.png", 4, colour=True)
    assert (image == 255).all()


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


def test_unreadable_image_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    file = tmp_path / "b/2.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(data.CorruptFileError, match=r"b/2.png cannot be decoded"):
        data.load(tmp_path)
    assert data.check(str(tmp_path)).status == "corrupt"


@pytest.mark.parametrize("options", [{}, {"size": 8}])
def test_a_file_that_is_no_image_is_told_without_an_address_in_memory(tmp_path: Path, options: dict[str, int]) -> None:
    make(tmp_path, "a", "b")
    (tmp_path / "b/2.png").write_bytes(b"a page that says 404")
    with pytest.raises(data.CorruptFileError) as raised:
        data.load(tmp_path, **options)
    told = "b/2.png cannot be decoded as an image: its content is of no known image format; repair or delete it"
    assert str(raised.value).endswith(told)


def test_a_link_to_nothing_is_an_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    (tmp_path / "a/0.png").unlink()
    (tmp_path / "a/0.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(data.CorruptFileError, match=r"a/0.png cannot be decoded as an image: No such file or dir\w+$"):
        data.load(tmp_path)
    assert data.check(str(tmp_path)).status == "corrupt"


def test_missing_pillow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a", "b")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"Pillow.*lastlayer\[images\]"):
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


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024) + 77
    for name in "ab":
        (tmp_path / name).mkdir()
        for number, ending in enumerate(("png", "tif", "png", "tif", "png")):
            Image.fromarray(deep).save(tmp_path / name / f"{number}.{ending}")
    dataset = data.load(tmp_path)
    assert dataset.in_shape == (1, 8, 8)
    expected = torch.from_numpy((deep // 256).astype(np.uint8))
    assert (dataset.train.tensor() == expected).all()


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((8, 8), np.float32), "floating-point"),
        (np.full((8, 8), 70000, np.int32), "beyond 16 bits"),
        (None, "the file is empty"),
    ],
)
def test_images_that_no_eight_bits_can_hold_are_named(tmp_path: Path, pixels: np.ndarray | None, words: str) -> None:
    (tmp_path / "a").mkdir()
    if pixels is None:
        (tmp_path / "a" / "odd.tif").touch()
    else:
        Image.fromarray(pixels).save(tmp_path / "a" / "odd.tif")
    with pytest.raises(data.CorruptFileError, match=rf"odd\.tif cannot be decoded as an image: .*{words}"):
        data.load(tmp_path, size=8, colour=True)


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    for size in (0, -3, 2.5, "large"):
        with pytest.raises(ValueError, match="size must be a whole number of pixels"):
            data.load(tmp_path, size=size)
