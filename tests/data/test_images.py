"""Decoding: sizes, bits per pixel, and files that are no images."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lastlayer import data
from lastlayer.data.images import decode

from .pictures import picture, write


def make(folder: Path, *classes: str, count: int = 5, grey: bool = False, start: int = 0) -> None:
    for label, name in enumerate(classes):
        for i in range(count):
            write(folder / name / f"{i}.png", picture(start + 100 * label + i, grey=grey))


def test_scaling_keeps_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    write(tmp_path / "a/x.png", wide)
    image, _ = decode(tmp_path / "a/x.png", 4, colour=True)
    assert (image == 255).all()


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


def test_different_sizes_are_named_and_size_mends_it(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    write(tmp_path / "b/wide.png", np.full((4, 9, 3), 200, np.uint8))
    with pytest.raises(ValueError, match=r"0.png is 6x6, .*wide.png is 9x4 .*size="):
        data.load(tmp_path)
    dataset = data.load(tmp_path, size=4)
    assert dataset.in_shape == (3, 4, 4)
