"""Folders of images: one folder per class, with or without train and test folders; and Omniglot, which is one.

Tests: tests/data/readers/test_folders.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lastlayer.data import image_cache
from lastlayer.data.dataset import Dataset, Split
from lastlayer.data.files import CorruptFileError, require
from lastlayer.data.images import decode, decode_all, is_image, stored_bytes
from lastlayer.data.sources import describe, register
from lastlayer.data.splits import random_test_set

_TRAIN, _TEST = ("train",), ("test", "val", "valid", "validation")
_CHARACTERS = {"background": "images_background", "evaluation": "images_evaluation"}


@dataclass(frozen=True)
class ImageFiles(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Image files that are decoded one by one, when they are asked for; a torch map-style data set.

    Attributes:
        paths: the files.
        target: their labels, int64 (N,).
        class_names: one name per class.
        size: side of the square to which each image is scaled and cropped.
    """

    paths: tuple[Path, ...]
    target: Tensor
    class_names: tuple[str, ...]
    size: int | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return decode(self.paths[index], self.size, colour=True)[0], int(self.target[index])


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the folders in a folder, sorted, without hidden ones."""
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))


def image_files(folder: str | Path, *, size: int | None = None, classes: Sequence[str] | None = None) -> ImageFiles:
    """List the images of a folder that has one folder per class; nothing is decoded yet.

    Args:
        folder: holds a folder for each class.
        size: side of the square to which each image is scaled and cropped when it is read.
        classes: class names in label order; with None, the folders, sorted.

    Raises:
        ValueError: there are no class folders, a class has no images, or a folder is no known class.

    Example:
        >>> import tempfile
        >>> image_files(tempfile.mkdtemp())
        Traceback (most recent call last):
        ValueError: ... holds no class folders: expected FOLDER/<class>/<image>
    """
    folder = Path(folder)
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"{folder}: size must be a whole number of pixels, at least 1, got {size!r}")
    found = class_folders(folder)
    if not found:
        raise ValueError(f"{folder} holds no class folders: expected FOLDER/<class>/<image>")
    names = found if classes is None else tuple(classes)
    foreign = [name for name in found if name not in set(names)]
    if foreign:
        raise ValueError(f"{folder} has class folders without training images: {', '.join(foreign[:10])}")
    paths: list[Path] = []
    target: list[int] = []
    for label, name in enumerate(names):
        files = sorted(path for path in (folder / name).rglob("*") if is_image(path)) if name in found else []
        if not files and classes is None:
            raise ValueError(f"class {name!r} has no images: {folder / name} holds no image files")
        paths += files
        target += [label] * len(files)
    return ImageFiles(tuple(paths), torch.tensor(target, dtype=torch.int64), names, size)


def decode_split(files: ImageFiles, colour: bool | None = None) -> tuple[Split, str]:
    """Decode every file into a split: in memory, or in a mapped file if that is too small; also the SHA-256."""
    fits = stored_bytes(files.paths, files.size) <= image_cache.in_memory_limit()
    images, sha256 = (decode_all if fits else image_cache.decode_to_disk)(files.paths, files.size, colour)
    return Split(images, files.target), sha256


def subfolder(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of these folders that is there."""
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _refuse_misnamed(folder: Path, train_folder: Path | None) -> None:
    """Raise if a folder has the name of a part in another spelling: it would become a class, or be left out."""
    parts = {*_TRAIN, *_TEST, "training", "testing"}
    found = [name for name in class_folders(folder) if folder / name != train_folder]
    if misnamed := [name for name in found if name.lower() in parts]:
        raise ValueError(
            f"{folder} holds {', '.join(misnamed)}, which looks like a part of the data and not like a class: call the "
            f"folder to train on {' or '.join(_TRAIN)} and the one to test on {', '.join(_TEST[:-1])} or {_TEST[-1]}, "
            "both there; or rename the class"
        )


def image_folder(
    folder: str | Path,
    *,
    size: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    colour: bool | None = None,
) -> Dataset:
    """Read a folder of images by class, or one with train and test folders of that kind.

    If the images would take more than a quarter of the free memory, divided by the number of cores, they are decoded
    once into $LASTLAYER_CACHE (else lastlayer/images in the user's cache folder) and read from there as they are used.

    Args:
        folder: FOLDER/<class>/<image>, or FOLDER/train/<class>/<image> with FOLDER/test (or val, valid, validation).
        size: scale the shorter side to it and cut out the middle; with None, all images must have one size.
        test_fraction: share of each class to test on, if there is no test folder.
        seed: of that split.
        colour: three channels (True) or one (False); with None, three if any image has colour.

    Raises:
        ValueError: no classes, a class without images, images of different sizes, a train or test folder without the
            other or in another spelling. The message names the folder or file.
        CorruptFileError: a file cannot be decoded.
        ImportError: Pillow is missing.
    """
    folder = Path(folder)
    train_folder, test_folder = subfolder(folder, _TRAIN), subfolder(folder, _TEST)
    if train_folder is None or test_folder is None:
        _refuse_misnamed(folder, train_folder)
    notes: tuple[str, ...]
    if train_folder is None or test_folder is None:
        whole = image_files(folder if train_folder is None else train_folder, size=size)
        split, sha256 = decode_split(whole, colour)
        train, test, note = random_test_set(split, test_fraction, seed)
        names, checksums, notes = whole.class_names, {"images": sha256}, (note,)
    else:
        listed = image_files(train_folder, size=size)
        names = listed.class_names
        train, first = decode_split(listed, colour)
        test_files = image_files(test_folder, size=size, classes=names)
        if not len(test_files):
            raise ValueError(f"{test_folder} holds no image files")
        test, second = decode_split(test_files, train.inputs.shape[1] == 3)
        checksums, notes = {"train": first, "test": second}, ()
    dataset = Dataset(folder.name, train, test, names, scale=255.0, checksums=checksums, notes=notes)
    return dataset.with_statistics()


@register("omniglot")
def omniglot(
    root: Path,
    *,
    part: Literal["both", "background", "evaluation"] = "both",
    test_drawers: int = 5,
    size: int | None = None,
) -> Dataset:
    """Read `root/omniglot/images_{background,evaluation}/<alphabet>/<character>/*_<drawer>.png`.

    The two official parts have different characters and there is no official split within a character: here the
    drawers with the highest numbers are held for testing. The archives are verified when they are fetched.

    Args:
        root: the data root.
        part: which characters: 964 (background), 659 (evaluation) or all 1,623.
        test_drawers: how many of the 20 drawers to test on.
        size: scale images to this side; with None they keep 105.
    """
    if part not in ("both", *_CHARACTERS):
        raise ValueError(f'part is "both", "background" or "evaluation", not {part!r}')
    if not 1 <= test_drawers <= 19:
        raise ValueError(f"test_drawers is 1 to 19, not {test_drawers}")
    wanted = list(_CHARACTERS.values()) if part == "both" else [_CHARACTERS[part]]
    folder = replace(describe("omniglot"), probes=tuple(wanted)).locate(root)
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
