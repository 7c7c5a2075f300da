"""ImageNet32 (and 64): the official downsampled batches, pickled or npz."""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ._files import CorruptFileError, Places, locate, read
from ._unpickle import unpickle
from .dataset import Dataset, Split
from .registry import register

_PLACES = Places(("imagenet32", "Imagenet32_train"), ("train_data_batch_1", "train_data_batch_1.npz"))


@register(
    "imagenet32",
    summary="ImageNet-1K at 32x32, 1,281,167 / 50,000 (3.9 GB)",
    homepage="https://image-net.org/download-images",
    licence="research use under ImageNet's terms of access",
    citation="Chrabaszcz, Loshchilov, Hutter 2017, A downsampled variant of ImageNet, arXiv:1707.08819",
    places=_PLACES,
)
def imagenet32(root: Path, *, batches: int = 10) -> Dataset:
    """Read `root/imagenet32/train_data_batch_1..10` and `val_data`, pickled or with the ending .npz.

    Labels 1 to 1000 of the files become 0 to 999. No checksums are known.

    Args:
        root: the data root.
        batches: how many of the ten training batches to read.
    """
    if not 1 <= batches <= 10:
        raise ValueError(f"batches is 1 to 10, not {batches}")
    hint = "Fetch it by hand from https://image-net.org/download-images"
    folder = locate(root, "imagenet32", _PLACES, hint)
    parts, checksums = [], {}
    for number in range(1, batches + 1):
        split, file, sha256 = _batch(folder, f"train_data_batch_{number}")
        parts.append(split)
        checksums[file] = sha256
    train = Split(torch.cat([part.tensor() for part in parts]), torch.cat([part.target for part in parts]))
    test, file, sha256 = _batch(folder, "val_data")
    checksums[file] = sha256
    notes = () if batches == 10 else (f"the first {batches} of 10 training batches",)
    classes = tuple(str(k) for k in range(1, int(max(train.target.max(), test.target.max())) + 2))
    dataset = Dataset("imagenet32", train, test, classes, scale=255.0, checksums=checksums, notes=notes)
    return dataset.with_statistics()


def _batch(folder: Path, stem: str) -> tuple[Split, str, str]:
    places = [folder / stem, folder / f"{stem}.npz"]
    places += [folder.parent / "Imagenet32_val" / place.name for place in places]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"imagenet32: {folder / stem} (or .npz) is missing; the data set is incomplete: fetch it again"
        )
    data, sha256 = read(path)
    content = _npz(path, data) if path.suffix == ".npz" else unpickle(path, data)
    pixels, labels = content.get("data"), content.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise CorruptFileError(f"{path}: data is not a uint8 array (N, 3 side^2); found keys {sorted(content)}")
    side = math.isqrt(pixels.shape[1] // 3)
    if 3 * side * side != pixels.shape[1]:
        raise CorruptFileError(f"{path}: {pixels.shape[1]} values a row are no square colour image")
    target = np.asarray(labels if labels is not None else [], dtype=np.int64) - 1
    if target.shape != (len(pixels),):
        raise CorruptFileError(f"{path}: labels are missing or not of length {len(pixels)}")
    images = torch.from_numpy(pixels.copy()).view(-1, 3, side, side)
    return Split(images, torch.from_numpy(target)), path.name, sha256


def _npz(path: Path, data: bytes) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {key: archive[key] for key in ("data", "labels") if key in archive.files}
    except (zipfile.BadZipFile, EOFError, ValueError, OSError) as error:
        raise CorruptFileError(f"{path} is damaged or not an npz file: {error}") from error
