"""Omniglot's official folders, in small."""

from pathlib import Path

import numpy as np
import pytest

from lastlayer import data

from .images import picture, write


def make(root: Path) -> None:
    number = 0
    for part, alphabet in (("background", "Latin"), ("evaluation", "Atlantean")):
        for character in ("character01", "character02"):
            number += 1
            for drawer in range(1, 21):
                pixels = (picture(number * 100 + drawer, grey=True) > 128).astype(np.uint8) * 255
                name = f"{number:04d}_{drawer:02d}.png"
                write(root / "omniglot" / f"images_{part}" / alphabet / character / name, pixels)


def test_drawers_are_split(tmp_path: Path) -> None:
    make(tmp_path)
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


def test_one_part_and_other_drawers(tmp_path: Path) -> None:
    make(tmp_path)
    dataset = data.load("omniglot", tmp_path, part="evaluation", test_drawers=1)
    assert dataset.num_classes == 2
    assert len(dataset.test) == 2
    assert dataset.notes == ("evaluation characters; test set: drawers 20 to 20",)


def test_wrong_choices_and_names(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(ValueError, match=r"part is"):
        data.load("omniglot", tmp_path, part="all")
    with pytest.raises(ValueError, match=r"test_drawers is 1 to 19"):
        data.load("omniglot", tmp_path, test_drawers=20)
    write(tmp_path / "omniglot/images_background/Latin/character01/strange.png", picture(0, grey=True))
    with pytest.raises(data.CorruptFileError, match=r"strange.png"):
        data.load("omniglot", tmp_path)
