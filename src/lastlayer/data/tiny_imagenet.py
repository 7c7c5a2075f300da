"""Tiny-ImageNet-200 in its official folders."""

from pathlib import Path

import torch

from ._files import CorruptFileError, Places, how_to_get, locate, require
from .arrays import arrays
from .dataset import Dataset
from .download import Remote
from .folders import ImageFiles, decode_split, image_files
from .registry import register

_OFFICIAL = "val/val_annotations.txt"
_FOLDERS = ("tiny-imagenet-200",)


@register(
    "tiny-imagenet",
    summary="photographs, 64x64 in colour, 200 classes, 100,000 / 10,000",
    homepage="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    licence="research use under ImageNet's terms of access",
    citation="Le, Yang 2015, Tiny ImageNet visual recognition challenge",
    remotes=(
        Remote(
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            unpacks_to="tiny-imagenet-200",
        ),
    ),
    places=Places(_FOLDERS, (_OFFICIAL, "tiny-imagenet-32.npz")),
)
def tiny_imagenet(root: Path, *, size: int = 64) -> Dataset:
    """Read `root/tiny-imagenet-200`: train/<wnid>/images/*.JPEG, and val/images with val/val_annotations.txt as test.

    Labels count the WordNet ids in sorted order; class names come from words.txt where it is there. The archive is
    verified when it is fetched; single images are not.

    Where the folders are not there, arrays of images of this size are read: `tiny-imagenet-32.npz` with x_train,
    y_train, x_test and y_test for size 32. A note says so: they are not the official images.
    """
    scaled = f"tiny-imagenet-{size}.npz"
    places = Places(_FOLDERS, (_OFFICIAL, scaled))
    folder = locate(root, "tiny-imagenet", places, how_to_get("tiny-imagenet", root))
    if not (folder / _OFFICIAL).exists():
        dataset = arrays(folder / scaled)
        if dataset.in_shape != (3, size, size):
            raise ValueError(f"{folder / scaled} holds inputs of {dataset.in_shape}, not (3, {size}, {size})")
        return dataset.replace(f"images from {scaled}, not the official files")
    train_files = image_files(require(folder / "train", "tiny-imagenet"), size=size)
    test_files = _validation(folder / "val", train_files.class_names, size)
    train, first = decode_split(train_files, colour=True)
    test, second = decode_split(test_files, colour=True)
    names = _words(folder / "words.txt", train_files.class_names)
    checksums = {"train": first, "val": second}
    dataset = Dataset("tiny-imagenet", train, test, names, scale=255.0, checksums=checksums)
    return dataset.replace("test set: the official validation set").with_statistics()


def _validation(folder: Path, classes: tuple[str, ...], size: int) -> ImageFiles:
    annotations = folder / "val_annotations.txt"
    labels = {name: k for k, name in enumerate(classes)}
    paths, target = [], []
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in labels:
            raise CorruptFileError(f"{annotations}, line {number}: {line!r} names no known class")
        paths.append(require(folder / "images" / fields[0], "tiny-imagenet"))
        target.append(labels[fields[1]])
    return ImageFiles(tuple(paths), torch.tensor(target, dtype=torch.int64), classes, size)


def _words(path: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    if not path.exists():
        return classes
    words = dict(line.split("\t", 1) for line in path.read_text().splitlines() if "\t" in line)
    return tuple(words.get(wnid, wnid) for wnid in classes)
