"""Omniglot: handwritten characters of many alphabets, twenty drawers each."""

from pathlib import Path
from typing import Literal

import torch

from ._files import CorruptFileError, Places, how_to_get, locate, require
from ._images import is_image
from .dataset import Dataset
from .download import Remote
from .folders import ImageFiles, class_folders, decode_split
from .registry import register

_PLACE = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_FOLDERS = ("omniglot", "omniglot-py")
_PARTS = {"background": "images_background", "evaluation": "images_evaluation"}


@register(
    "omniglot",
    summary="characters, 105x105 black on white, 1,623 classes, 20 images each",
    homepage="https://github.com/brendenlake/omniglot",
    licence="MIT",
    citation="Lake, Salakhutdinov, Tenenbaum 2015, Human-level concept learning through program induction",
    remotes=(
        Remote(
            (_PLACE + "images_background.zip",),
            "omniglot/images_background.zip",
            md5="68d2efa1b9178cc56df9314c21c6e718",
            unpacks_to="omniglot/images_background",
            unpack_in="omniglot",
        ),
        Remote(
            (_PLACE + "images_evaluation.zip",),
            "omniglot/images_evaluation.zip",
            md5="6b91aef0f799c5bb55b94e3f2daec811",
            unpacks_to="omniglot/images_evaluation",
            unpack_in="omniglot",
        ),
    ),
    places=Places(_FOLDERS, tuple(_PARTS.values())),
)
def omniglot(
    root: Path,
    *,
    part: Literal["both", "background", "evaluation"] = "both",
    test_drawers: int = 5,
    size: int | None = None,
) -> Dataset:
    """Read `root/omniglot/images_{background,evaluation}/<alphabet>/<character>/*_<drawer>.png`.

    The two official parts have different characters and there is no official split within a character: here the
    drawers with the highest numbers are tested on. The archives are verified when they are fetched.

    Args:
        root: the data root.
        part: which characters: 964 (background), 659 (evaluation) or all 1,623.
        test_drawers: how many of the 20 drawers to test on.
        size: scale images to this side; None keeps 105.
    """
    if part not in ("both", *_PARTS):
        raise ValueError(f'part is "both", "background" or "evaluation", not {part!r}')
    if not 1 <= test_drawers <= 19:
        raise ValueError(f"test_drawers is 1 to 19, not {test_drawers}")
    wanted = list(_PARTS.values()) if part == "both" else [_PARTS[part]]
    folder = locate(root, "omniglot", Places(_FOLDERS, tuple(wanted)), how_to_get("omniglot", root))
    names: list[str] = []
    train: tuple[list[Path], list[int]] = ([], [])
    test: tuple[list[Path], list[int]] = ([], [])
    for alphabets in (require(folder / name, "omniglot") for name in wanted):
        for alphabet in class_folders(alphabets):
            for character in class_folders(alphabets / alphabet):
                for path in sorted(p for p in (alphabets / alphabet / character).iterdir() if is_image(p)):
                    paths, labels = test if _drawer(path) > 20 - test_drawers else train
                    paths.append(path)
                    labels.append(len(names))
                names.append(f"{alphabet}/{character}")
    classes = tuple(names)
    splits, checksums = [], {}
    for name, (paths, labels) in (("train", train), ("test", test)):
        if not paths:
            raise CorruptFileError(f"{folder} holds no images for {name}")
        files = ImageFiles(tuple(paths), torch.tensor(labels, dtype=torch.int64), classes, size)
        split, checksums[name] = decode_split(files, colour=False)
        splits.append(split)
    note = f"{part} characters; test set: drawers {21 - test_drawers} to 20"
    dataset = Dataset("omniglot", splits[0], splits[1], classes, scale=255.0, checksums=checksums, notes=(note,))
    return dataset.with_statistics()


def _drawer(path: Path) -> int:
    number = path.stem.rpartition("_")[2]
    if not number.isdigit():
        raise CorruptFileError(f"{path}: the name does not end in _<drawer>, as Omniglot's do")
    return int(number)
