"""Folders of images, with one folder per class; and Omniglot. Tests: tests/data/readers/test_folders.py."""

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


@dataclass(frozen=True)
class ImageFiles(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Image files and their labels (N,), as a data set of torch that decodes an image when it is asked for.

    If `size` is given, each image is scaled and cropped to a square with this side.
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
    """List the images of a folder that has one folder per class, without decoding them.

    When an image is read, it is scaled and cropped to a square of this size. `classes` are class names in label order;
    with None, the names of the folders, sorted.

    ValueError if there are no class folders, a class has no images, or a folder is not one of the known classes.

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
    """Decode all files into a split, in memory or, if they would not fit there, in a mapped file. Adds the SHA-256."""
    fits = stored_bytes(files.paths, files.size) <= image_cache.in_memory_limit()
    images, sha256 = (decode_all if fits else image_cache.decode_to_disk)(files.paths, files.size, colour)
    return Split(images, files.target), sha256


def subfolder(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of these folders that exists."""
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _refuse_misnamed(folder: Path, train_folder: Path | None) -> None:
    """Refuse folders named like a part of the data in another spelling: they would become classes, or be left out."""
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
    once into $LASTLAYER_CACHE (else lastlayer/images in the user's cache folder), and read from there when used.

    Args:
        folder: FOLDER/<class>/<image>, or FOLDER/train/<class>/<image> with FOLDER/test (or val, valid, validation).
        size: the shorter side is scaled to it and the middle cut out. With None, all images must have one size.
        test_fraction, seed: share of each class to test on, drawn at random, if there is no test folder.
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
        files = image_files(train_folder or folder, size=size)
        whole, sha256 = decode_split(files, colour)
        splits, checksums = random_test_set(whole, test_fraction, seed), {"images": sha256}
    else:
        files = image_files(train_folder, size=size)
        train, sha256 = decode_split(files, colour)
        test_files = image_files(test_folder, size=size, classes=files.class_names)
        if not len(test_files):
            raise ValueError(f"{test_folder} holds no image files")
        test, test_sha256 = decode_split(test_files, train.inputs.shape[1] == 3)
        splits, checksums = {"train": train, "test": test}, {"train": sha256, "test": test_sha256}
    dataset = Dataset(folder.name, class_names=files.class_names, scale=255.0, checksums=checksums, **splits)
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

    The two official parts have different characters: 964 (background) and 659 (evaluation). There is no official split
    within a character: we test on the `test_drawers` of the 20 drawers with the highest numbers. The archives are
    verified when they are fetched. Images have 105 pixels on each side, or `size`.
    """
    if part not in ("both", "background", "evaluation"):
        raise ValueError(f'part is "both", "background" or "evaluation", not {part!r}')
    if not 1 <= test_drawers <= 19:
        raise ValueError(f"test_drawers is 1 to 19, not {test_drawers}")
    wanted = tuple(f"images_{one}" for one in (("background", "evaluation") if part == "both" else (part,)))
    folder = replace(describe("omniglot"), probes=wanted).locate(root)
    names: list[str] = []
    found: dict[str, tuple[list[Path], list[int]]] = {"train": ([], []), "test": ([], [])}
    for alphabets in (require(folder / name, "omniglot") for name in wanted):
        for alphabet in class_folders(alphabets):
            for character in class_folders(alphabets / alphabet):
                for path in sorted(p for p in (alphabets / alphabet / character).iterdir() if is_image(p)):
                    paths, labels = found["test" if _drawer(path) > 20 - test_drawers else "train"]
                    paths.append(path)
                    labels.append(len(names))
                names.append(f"{alphabet}/{character}")
    classes, splits, checksums = tuple(names), {}, {}
    for name, (paths, labels) in found.items():
        if not paths:
            raise CorruptFileError(f"{folder} holds no images for {name}")
        files = ImageFiles(tuple(paths), torch.tensor(labels, dtype=torch.int64), classes, size)
        splits[name], checksums[name] = decode_split(files, colour=False)
    note = f"{part} characters; test set: drawers {21 - test_drawers} to 20"
    train, test = splits["train"], splits["test"]
    dataset = Dataset("omniglot", train, test, classes, scale=255.0, checksums=checksums, notes=(note,))
    return dataset.with_statistics()


def _drawer(path: Path) -> int:
    number = path.stem.rpartition("_")[2]
    if not number.isdigit():
        raise CorruptFileError(f"{path}: the name does not end in _<drawer>, as Omniglot's do")
    return int(number)
