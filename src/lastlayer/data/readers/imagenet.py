"""ImageNet and its smaller versions. Tests: tests/data/readers/test_imagenet.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lastlayer.data.dataset import Dataset, Split, joined
from lastlayer.data.files import CorruptFileError, file_digest, read, require
from lastlayer.data.sources import describe, register
from lastlayer.data.splits import stratified

from .arrays import arrays, read_arrays
from .folders import ImageFiles, decode_split, image_files, image_folder, subfolder
from .small_images import pickled_images
from .unpickle import unpickle

_OFFICIAL = "val/val_annotations.txt"


@register("imagenet")
def imagenet(root: Path, *, size: int = 64) -> Dataset:
    """Read `root/imagenet/{train,val}/<wnid>/*.JPEG` in colour; no checksums are known."""
    return image_folder(describe("imagenet").locate(root), size=size, colour=True)


@register("miniimagenet")
def miniimagenet(root: Path, *, size: int = 84, seed: int = 0) -> Dataset:
    """Read `root/miniimagenet/<class>/*` or `.../{train,val,test}/<class>/*`; no checksums are known.

    The few-shot parts have different classes. For classification we take them together, and draw 1/6 of each class
    (100 of 600) for testing.
    """
    folder = describe("miniimagenet").locate(root)
    parts = [part for name in ("train", "val", "test") if (part := subfolder(folder, (name,))) is not None]
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
    train, test = split.select(kept), split.select(held)
    dataset = Dataset("miniimagenet", train, test, names, scale=255.0, checksums={"images": sha256}, notes=(note,))
    return dataset.with_statistics()


@register("tiny-imagenet")
def tiny_imagenet(root: Path, *, size: int = 64) -> Dataset:
    """Read `root/tiny-imagenet-200`: train/<wnid>/images/*.JPEG, and val/images with val/val_annotations.txt as test.

    Labels count the WordNet ids in sorted order. Class names come from words.txt if it is there. The archive is
    verified when it is fetched; single images are not.

    Without these folders we read arrays of images of the given size, such as `tiny-imagenet-32.npz` with x_train,
    y_train, x_test and y_test. A note says so, because they are not the official images.
    """
    scaled = f"tiny-imagenet-{size}.npz"
    folder = replace(describe("tiny-imagenet"), probes=(_OFFICIAL, scaled)).locate(root)
    if not (folder / _OFFICIAL).exists():
        dataset = arrays(folder / scaled)
        if dataset.in_shape != (3, size, size):
            raise ValueError(f"{folder / scaled} holds inputs of {dataset.in_shape}, not (3, {size}, {size})")
        return dataset.replace(f"images from {scaled}, not the official files")
    train_files = image_files(require(folder / "train", "tiny-imagenet"), size=size)
    test_files = _validation(folder / "val", train_files.class_names, size)
    train, first = decode_split(train_files, colour=True)
    test, second = decode_split(test_files, colour=True)
    lines = (folder / "words.txt").read_text().splitlines() if (folder / "words.txt").exists() else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = tuple(words.get(wnid, wnid) for wnid in train_files.class_names)
    checksums, notes = {"train": first, "val": second}, ("test set: the official validation set",)
    dataset = Dataset("tiny-imagenet", train, test, names, scale=255.0, checksums=checksums, notes=notes)
    return dataset.with_statistics()


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


@register("imagenet32")
def imagenet32(root: Path, *, batches: int = 10) -> Dataset:
    """Read `root/imagenet32/train_data_batch_1..10` and `val_data`, pickled or with the ending .npz.

    Labels 1 to 1000 of the files become 0 to 999. No checksums are known. `batches` says how many of the ten training
    batches to read.
    """
    if not 1 <= batches <= 10:
        raise ValueError(f"batches is 1 to 10, not {batches}")
    folder = describe("imagenet32").locate(root)
    checksums: dict[str, str] = {}
    train = joined([_batch(folder, f"train_data_batch_{k}", checksums) for k in range(1, batches + 1)])
    test = _batch(folder, "val_data", checksums)
    notes = () if batches == 10 else (f"the first {batches} of 10 training batches",)
    classes = tuple(str(k) for k in range(1, int(max(train.target.max(), test.target.max())) + 2))
    dataset = Dataset("imagenet32", train, test, classes, scale=255.0, checksums=checksums, notes=notes)
    return dataset.with_statistics()


def _batch(folder: Path, stem: str, checksums: dict[str, str]) -> Split:
    """The samples of one file, whose checksum is added to the others."""
    places = [folder / stem, folder / f"{stem}.npz"]
    places += [folder.parent / "Imagenet32_val" / place.name for place in places]
    path = next((place for place in places if place.exists()), None) or require(places[0], "imagenet32")
    if path.suffix == ".npz":
        content: dict[str, Any] = {**read_arrays(path, ("data", "labels"))[0]}
        checksums[path.name] = file_digest(path)
    else:
        data, checksums[path.name] = read(path)
        content = unpickle(path, data)
    split = pickled_images(path, content, "labels")
    return Split(split.inputs, split.target - 1)
