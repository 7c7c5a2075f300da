"""Arrays in .npz and .safetensors files.

The keys are `x_train`, `y_train`, `x_test` and `y_test`, or `x` and `y` if the file holds one set. Names may begin with
features instead of `x`, and with target, targets or labels instead of `y`.

- `x` holds features (N, d), grey images (N, H, W), or images (N, C, H, W) or (N, H, W, C).
- `y` holds integers 0 to K-1, (N,), or texts. Texts name the classes, in sorted order.
- `class_names` (K,) is optional and names the classes of integers.

Only .npz files can hold texts. Pickled arrays are refused. No other module opens such files.
"""

import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lastlayer.data.dataset import Dataset, Split
from lastlayer.data.files import CorruptFileError, file_digest
from lastlayer.data.splits import random_test_set

Array = NDArray[Any] | Tensor
INPUTS = ("features", "x")
LABELS = ("target", "targets", "labels", "y")
WHOLE, TRAIN, TEST = "", "_train", "_test"  # endings of a name
_CHANNELS = (1, 3, 4)
_ROWS = 4096  # checked at a time


def arrays(
    path: str | Path,
    *,
    test: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: bool = True,
) -> Dataset:
    """Read a data set from arrays in a .npz or .safetensors file; the top of this module describes them.

    Bytes are images of scale 255. Truth values become 0 and 255. Floats keep their type. Images are (N, H, W, C) if
    only their last axis has 1, 3 or 4 entries, else (N, C, H, W).

    Args:
        test: a second file with `x` and `y`, the test set.
        test_fraction, seed: share of each class to test on, drawn at random, if there is no test set.
        standardize: whether features are to be normalised by the mean and deviation of their training samples. Images
            always are.

    Raises:
        ValueError: keys are missing (the message lists those found), or shapes, types or labels do not fit.
        CorruptFileError: the file is damaged or holds pickled objects.

    Example:
        >>> import numpy as np, tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "points.npz"
        >>> np.savez(file, x=np.random.rand(10, 3), y=np.arange(10) % 2)
        >>> arrays(file).in_shape
        (3,)
    """
    path = Path(path)
    content, _ = read_arrays(path)
    other, more = (path, {}) if test is None else (Path(test), read_arrays(Path(test))[0])
    names = _name_labels(path, content, more)
    checksums = {path.name: file_digest(path)}
    splits: dict[str, Any]
    if test is not None:
        splits = {"train": _split(path, content, WHOLE, TRAIN), "test": _split(other, more, WHOLE, TEST)}
        checksums[other.name] = file_digest(other)
    elif any(name + ending in content for name in INPUTS + LABELS for ending in (TRAIN, TEST)):
        splits = {"train": _split(path, content, TRAIN), "test": _split(path, content, TEST)}
    else:
        whole = _split(path, content, WHOLE)
        _check_highest(path, whole, len(whole))
        splits = random_test_set(whole, test_fraction, seed)
        if not len(splits["test"]):
            raise ValueError(f"{path}: every class has one sample, so that none is left to test on: give a test set")
    train: Split = splits["train"]
    if names is None:
        for where, part in ((path, train), (other, splits["test"])):
            _check_highest(where, part, len(train))
        names = [str(k) for k in range(int(max(train.target.max(), splits["test"].target.max())) + 1)]
    scale = 255.0 if train.inputs.dtype == torch.uint8 else 1.0
    class_names = tuple(str(name) for name in names)
    dataset = Dataset(path.stem, class_names=class_names, scale=scale, checksums=checksums, **splits)
    return dataset.with_statistics() if standardize or train.inputs.ndim == 4 else dataset


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> tuple[dict[str, Array], list[str]]:
    """Read arrays of a .npz or .safetensors file. A .safetensors file is mapped: rows are read when they are used.

    Returns:
        By name, arrays of numpy from a .npz file or tensors from a .safetensors file, only the `wanted` ones if any are
        named; and the names that were not wanted, sorted.

    CorruptFileError if it is damaged, or holds pickled objects.
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path}: arrays are read from .npz and .safetensors files, not {path.suffix or 'this'}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")

    def chosen(names: Collection[str]) -> tuple[list[str], list[str]]:
        skipped = [] if wanted is None else sorted(set(names) - set(wanted))
        return [name for name in names if name not in skipped], skipped

    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                names, skipped = chosen(file.keys())
                return {name: file.get_tensor(name) for name in names}, skipped
        except SafetensorError as error:
            raise CorruptFileError(f"{path} is damaged or not a safetensors file: {error}") from error
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise CorruptFileError(f"{path} is damaged or not an npz file, as numpy.savez writes it")
    try:
        with np.load(path, allow_pickle=False) as archive:
            names, skipped = chosen(archive.files)
            return {name: archive[name] for name in names}, skipped
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptFileError(f"{path} is damaged or not an npz file: {error}") from error
    except ValueError as error:
        raise CorruptFileError(
            f"{path} cannot be read without unpickling, which is refused ({error}): save numbers, or texts as "
            ".astype(str) makes them"
        ) from error


def array_named(path: Path, found: Collection[str], names: Sequence[str], endings: Sequence[str] = (WHOLE,)) -> str:
    """The name under which a file holds its inputs or its labels: the one of `names` that is among those `found` in it.

    It may have any of the `endings`, of which the first is preferred. ValueError if there is no such name, or if there
    are two that mean the same.
    """
    for ending in endings:
        there = [name + ending for name in names if name + ending in found]
        if len(there) > 1:
            raise ValueError(f"{path} holds {' and '.join(there)}, which mean the same: leave one")
        if there:
            return there[0]
    first, *others = [name + ending for ending in endings for name in names]
    listed = ", ".join(sorted(found)) or "nothing"
    raise ValueError(f"{path} holds no {first} (or {', '.join(others)}); it holds {listed}")


def as_tensor(path: Path, name: str, array: Array) -> Tensor:
    """An array that `read_arrays` returned, as a tensor. ValueError if it holds no numbers."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.kind not in "biufc":
        texts = array.dtype.kind in "US"
        if texts and name.startswith(LABELS):
            remedy = f"save np.unique({name}, return_inverse=True)[1]"
            raise ValueError(f"{path}: {name} must be numbers, labels 0 to K-1, got texts: {remedy}")
        raise ValueError(f"{path}: {name} must be numbers, got {'texts' if texts else array.dtype}")
    # torch knows only the machine's own byte order
    return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)))


def _split(path: Path, content: dict[str, Array], *endings: str) -> Split:
    keys = [array_named(path, content, names, endings) for names in (INPUTS, LABELS)]
    x, y = (as_tensor(path, key, content[key]) for key in keys)
    if y.ndim != 1 or y.is_floating_point() or y.is_complex():
        how = ".argmax(1), if its rows are one-hot"
        if y.ndim == 1 or y.shape[1:] == (1,):
            how = ".astype(int)" if y.ndim == 1 else ".ravel().astype(int)"
        found = f"not {y.dtype} {tuple(y.shape)}"
        raise ValueError(f"{path}: {keys[1]} must be integers (N,), {found}: save {keys[1]}{how}")
    if len(x) != len(y):
        raise ValueError(f"{path}: {keys[0]} has {len(x)} rows but {keys[1]} has {len(y)}")
    if not len(y):
        raise ValueError(f"{path}: {keys[0]} and {keys[1]} are empty")
    if int(y.long().min()) < 0:
        row = int(y.long().argmin())
        raise ValueError(f"{path}: {keys[1]} has label {y[row].item()} at row {row}: labels must be 0 to K-1")
    return Split(_inputs(path, keys[0], x), y.long())


def _check_highest(path: Path, split: Split, samples: int) -> None:
    """Refuse a label that would make more classes than there are samples, before we allocate anything per class."""
    highest = int(split.target.max())
    if highest >= samples:
        raise ValueError(
            f"{path}: label {highest} with {samples} training samples: labels must be 0 to K-1, and every class needs "
            "a training sample"
        )


def _name_labels(path: Path, content: dict[str, Array], more: dict[str, Array]) -> Sequence[Any] | None:
    """The names of the classes, if the file has them. Labels that are texts become numbers, in place."""
    names, _ = content.pop("class_names", None), more.pop("class_names", None)
    keys = [name + ending for name in LABELS for ending in (WHOLE, TRAIN, TEST)]
    labels = [(part, key, part[key]) for part in (content, more) for key in keys if key in part]
    arrays = [(part, key, array) for part, key, array in labels if isinstance(array, np.ndarray)]
    texts = [(part, key, array.astype(str)) for part, key, array in arrays if array.dtype.kind in "US"]
    if not texts:
        return None if names is None else list(names)
    if names is not None:
        raise ValueError(f"{path}: labels that are texts name the classes: leave out class_names")
    if len(texts) < len(labels):
        raise ValueError(f"{path}: the labels of one split are texts and those of another are not")
    known = np.unique(np.concatenate([array.ravel() for _, _, array in texts]))
    for part, key, array in texts:
        part[key] = np.searchsorted(known, array)
    return list(known)


def _inputs(path: Path, key: str, x: Tensor) -> Tensor:
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"{path}: {key} must be (N, d), (N, H, W), (N, C, H, W) or (N, H, W, C), not {tuple(x.shape)}")
    if x.is_complex() or not x.numel():
        raise ValueError(f"{path}: {key} must be real numbers and not empty, not {x.dtype} {tuple(x.shape)}")
    for start in range(0, len(x) if x.is_floating_point() else 0, _ROWS):
        wrong = (~x[start : start + _ROWS].float().flatten(1).isfinite().all(1)).nonzero()
        if len(wrong):  # we compute in float32
            row = start + int(wrong[0])
            raise ValueError(f"{path}: {key} has numbers that are not finite in float32, first at row {row}")
    if x.dtype == torch.bool:
        x = x.to(torch.uint8) * 255
    if x.ndim == 2:
        return x if x.is_floating_point() else x.float()
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        x = x.permute(0, 3, 1, 2).contiguous()
    if not (x.is_floating_point() or x.dtype == torch.uint8):
        raise ValueError(f"{path}: images in {key} must be uint8, bool or floating point, not {x.dtype}")
    return x
