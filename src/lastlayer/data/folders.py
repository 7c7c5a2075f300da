"""Folders of images: a folder a class, with or without train and test folders; ImageNet and miniImageNet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import _decoded
from ._files import Places, locate
from ._images import decode, decode_all, is_image, stored_bytes
from .dataset import Dataset, Split
from .registry import register
from .splits import random_test_set, stratified

_IMAGENET = Places(("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"), ("train",))
_MINIIMAGENET = Places(("miniimagenet", "miniImageNet", "mini-imagenet"), ("train", "n01532829"))
_TRAIN, _TEST = ("train",), ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class ImageFiles(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Image files decoded one at a time, when they are asked for; a torch map-style data set.

    Attributes:
        paths: the files.
        target: their labels, int64 (N,).
        class_names: one name a class.
        size: side of the square each image is scaled and cropped to.
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
    """Names of the folders in a folder, sorted; hidden ones are left out."""
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))


def image_files(folder: str | Path, *, size: int | None = None, classes: Sequence[str] | None = None) -> ImageFiles:
    """List the images of a folder that has a folder a class; nothing is decoded yet.

    Args:
        folder: holds a folder for each class.
        size: side of the square each image is scaled and cropped to when it is read.
        classes: class names in label order; None takes the folders, sorted.

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
    """Decode every file into a split, in memory or, where that is too small, in a mapped file; also the SHA-256."""
    fits = stored_bytes(files.paths, files.size) <= _decoded.in_memory_limit()
    images, sha256 = (decode_all if fits else _decoded.decode_to_disk)(files.paths, files.size, colour)
    return Split(images, files.target), sha256


def _subfolder(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _refuse_misnamed(folder: Path, train_folder: Path | None) -> None:
    """Raise where a folder is one of the parts by its name but not as it is spelt: it would be a class, or left out."""
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

    Images that would take more than a quarter of the free memory, divided by the number of cores, are decoded once into
    $LASTLAYER_CACHE (else the user's cache folder, lastlayer/images) and read from there as they are used.

    Args:
        folder: FOLDER/<class>/<image>, or FOLDER/train/<class>/<image> with FOLDER/test (or val, valid, validation).
        size: scale the shorter side to it and cut out the middle; None asks that all images have one size.
        test_fraction: share of each class to test on where there is no test folder.
        seed: of that split.
        colour: three channels (True), one (False); None: three if any image has colour.

    Raises:
        ValueError: no classes, a class without images, images of different sizes, a train or test folder without the
            other or spelt otherwise; the folder or file is named.
        CorruptFileError: a file cannot be decoded.
        ImportError: Pillow is missing.
    """
    folder = Path(folder)
    train_folder, test_folder = _subfolder(folder, _TRAIN), _subfolder(folder, _TEST)
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


@register(
    "imagenet",
    summary="ImageNet-1K as class folders, scaled to size= (default 64)",
    homepage="https://image-net.org/download-images",
    licence="research use under ImageNet's terms of access",
    citation="Russakovsky et al. 2015, ImageNet large scale visual recognition challenge",
    places=_IMAGENET,
)
def imagenet(root: Path, *, size: int = 64) -> Dataset:
    """Read `root/imagenet/{train,val}/<wnid>/*.JPEG` in colour; no checksums are known."""
    hint = "Fetch it by hand from https://image-net.org/download-images and sort both parts into class folders"
    folder = locate(root, "imagenet", _IMAGENET, hint)
    return image_folder(folder, size=size, colour=True)


@register(
    "miniimagenet",
    summary="100 classes of ImageNet, 600 images each, as class folders, scaled to size= (default 84)",
    homepage="https://github.com/twitter-research/meta-learning-lstm",
    licence="research use under ImageNet's terms of access",
    citation="Vinyals et al. 2016, Matching networks for one shot learning; split by Ravi, Larochelle 2017",
    places=_MINIIMAGENET,
)
def miniimagenet(root: Path, *, size: int = 84, seed: int = 0) -> Dataset:
    """Read `root/miniimagenet/<class>/*` or `.../{train,val,test}/<class>/*`, and test on a sixth of each class.

    The few-shot parts have different classes; for classification they are taken together, and 1/6 of each class
    (100 of 600) is drawn for testing. No checksums are known.
    """
    hint = "Fetch it by hand and put it there as class folders"
    folder = locate(root, "miniimagenet", _MINIIMAGENET, hint)
    parts = [part for name in ("train", "val", "test") if (part := _subfolder(folder, (name,))) is not None]
    paths: list[Path] = []
    labels: list[str] = []
    for part in parts or [folder]:
        listed = image_files(part)
        paths += listed.paths
        labels += [listed.class_names[k] for k in listed.target.tolist()]
    names = tuple(sorted(set(labels)))
    index = {name: k for k, name in enumerate(names)}
    target = torch.tensor([index[label] for label in labels])
    split, sha256 = decode_split(ImageFiles(tuple(paths), target, names, size), colour=True)
    kept, held = stratified(split.target, 1 / 6, seed)
    note = f"all parts together; test set: 1/6 of each class at random, seed {seed}"
    dataset = Dataset(
        "miniimagenet",
        split.select(kept),
        split.select(held),
        names,
        scale=255.0,
        checksums={"images": sha256},
        notes=(note,),
    )
    return dataset.with_statistics()
