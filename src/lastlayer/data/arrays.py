"""Arrays in .npz and .safetensors files.

The keys are `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y` for a file that holds one set; `x` may also be
called features, and `y` target, targets or labels. `x` is (N, d) features, (N, H, W) grey images, (N, C, H, W) or
(N, H, W, C) images; `y` is (N,) integers 0 to K-1, or texts, which then name the classes, in sorted order. An optional
text array `class_names` (K,) names the classes of integers. Texts are for .npz only; pickled arrays are refused.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._files import CorruptFileError, file_digest
from ._names import INPUTS, LABELS, TEST, TRAIN, WHOLE, find_name, has_parts
from .dataset import Dataset, Split
from .splits import random_test_set

_CHANNELS = (1, 3, 4)
_ROWS = 4096  # looked at together


def arrays(
    path: str | Path,
    *,
    test: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: bool = True,
) -> Dataset:
    """Read a data set from arrays in a .npz or .safetensors file.

    Bytes are images of scale 255 and truth values become 0 and 255; floats are kept, and their type with them.
    (N, H, W, C) is told from (N, C, H, W) by where the 1, 3 or 4 channels are; the second is assumed if both fit.
    A file with `x` and `y` alone is split at random, class by class, and a note says so.

    Args:
        path: the file; see the head of this module for its keys.
        test: a second file with `x` and `y`, the test set.
        test_fraction: share of each class to test on where there is no test set.
        seed: of that split.
        standardize: give features the mean and deviation of their training samples to be divided out; images always
            have them.

    Raises:
        ValueError: keys are missing (those found are listed), or shapes, types or labels do not fit.
        CorruptFileError: the file is damaged or holds pickled objects.

    Example:
        >>> import numpy as np, tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "points.npz"
        >>> np.savez(file, x=np.random.rand(10, 3), y=np.arange(10) % 2)
        >>> arrays(file).in_shape
        (3,)
    """
    path = Path(path)
    content = _read(path)
    other, more = (path, {}) if test is None else (Path(test), _read(Path(test)))
    names = _name_labels(path, content, more)
    checksums = {path.name: file_digest(path)}
    notes: tuple[str, ...] = ()
    if test is not None:
        train_split, test_split = _split(path, content, WHOLE, TRAIN), _split(other, more, WHOLE, TEST)
        checksums[other.name] = file_digest(other)
    elif has_parts(content):
        train_split, test_split = (_split(path, content, ending) for ending in (TRAIN, TEST))
    else:
        whole = _split(path, content, WHOLE)
        _check_highest(path, int(whole.target.max()), len(whole))
        train_split, test_split, note = random_test_set(whole, test_fraction, seed)
        if not len(test_split):
            raise ValueError(f"{path}: every class has one sample, so that none is left to test on: give a test set")
        notes = (note,)
    if names is None:
        highest = int(max(train_split.target.max(), test_split.target.max()))
        _check_highest(path, highest, len(train_split))
        names = [str(k) for k in range(highest + 1)]
    image = train_split.inputs.ndim == 4
    scale = 255.0 if train_split.inputs.dtype == torch.uint8 else 1.0
    class_names = tuple(str(name) for name in names)
    dataset = Dataset(path.stem, train_split, test_split, class_names, scale=scale, checksums=checksums, notes=notes)
    return dataset.with_statistics() if image or standardize else dataset


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise CorruptFileError(f"{path} is damaged or not a safetensors file: {error}") from error
    if path.suffix != ".npz":
        raise ValueError(f"{path}: arrays are read from .npz and .safetensors files, not {path.suffix or 'this'}")
    if path.is_file() and not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise CorruptFileError(f"{path} is damaged or not an npz file, as numpy.savez writes it")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptFileError(f"{path} is damaged or not an npz file: {error}") from error
    except ValueError as error:
        raise CorruptFileError(
            f"{path} cannot be read without unpickling, which is refused ({error}): save numbers, or texts as "
            ".astype(str) makes them"
        ) from error


def _split(path: Path, content: dict[str, Any], *endings: str) -> Split:
    keys = [find_name(path, content, names, endings) for names in (INPUTS, LABELS)]
    x, y = (_tensor(path, key, content[key]) for key in keys)
    if y.ndim != 1 or y.is_floating_point() or y.is_complex():
        how = ".astype(int)" if y.ndim == 1 else ".ravel().astype(int)" if y.shape[1:] == (1,) else ".argmax(1)"
        raise ValueError(
            f"{path}: {keys[1]} must be integers (N,), not {y.dtype} {tuple(y.shape)}: "
            f"save {keys[1]}{how}{', if its rows are one-hot' * (how == '.argmax(1)')}"
        )
    if len(x) != len(y):
        raise ValueError(f"{path}: {keys[0]} has {len(x)} rows but {keys[1]} has {len(y)}")
    if not len(y):
        raise ValueError(f"{path}: {keys[0]} and {keys[1]} are empty")
    if int(y.long().min()) < 0:
        row = int(y.long().argmin())
        raise ValueError(f"{path}: {keys[1]} has label {y[row].item()} at row {row}: labels must be 0 to K-1")
    return Split(_inputs(path, keys[0], x), y.long())


def _check_highest(path: Path, highest: int, samples: int) -> None:
    """Refuse a label that would make more classes than there are samples, before anything of that size is made."""
    if highest >= samples:
        raise ValueError(
            f"{path}: label {highest} with {samples} training samples: labels must be 0 to K-1, and every class needs "
            "a training sample"
        )


def _name_labels(path: Path, content: dict[str, Any], more: dict[str, Any]) -> Sequence[Any] | None:
    """The names of the classes where the file has them; labels that are texts become numbers, in place."""
    names: Sequence[Any] | None = content.pop("class_names", None)
    more.pop("class_names", None)
    known = [name + ending for name in LABELS for ending in (WHOLE, TRAIN, TEST)]
    keys = [(part, key) for part in (content, more) for key in known if key in part]
    texts = [(part, key) for part, key in keys if isinstance(part[key], np.ndarray) and part[key].dtype.kind in "US"]
    if not texts:
        return names
    if names is not None:
        raise ValueError(f"{path}: labels that are texts name the classes: leave out class_names")
    if len(texts) < len(keys):
        raise ValueError(f"{path}: the labels of one split are texts and those of another are not")
    known = sorted({text for part, key in texts for text in part[key].astype(str).ravel().tolist()})
    for part, key in texts:
        part[key] = np.searchsorted(np.array(known), part[key].astype(str))
    return known


def _tensor(path: Path, key: str, value: NDArray[Any] | Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if value.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {key} must be numbers, not {value.dtype}")
    return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False)))


def _check_finite(path: Path, key: str, x: Tensor) -> None:
    """Refuse what is not finite in float32, in which everything is computed."""
    for start in range(0, len(x), _ROWS):
        rows = (~x[start : start + _ROWS].float().flatten(1).isfinite().all(1)).nonzero()
        if len(rows):
            raise ValueError(
                f"{path}: {key} has numbers that are not finite in float32, first at row {start + int(rows[0])}"
            )


def _inputs(path: Path, key: str, x: Tensor) -> Tensor:
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"{path}: {key} must be (N, d), (N, H, W), (N, C, H, W) or (N, H, W, C), not {tuple(x.shape)}")
    if x.is_complex() or not x.numel():
        raise ValueError(f"{path}: {key} must be real numbers and not empty, not {x.dtype} {tuple(x.shape)}")
    if x.is_floating_point():
        _check_finite(path, key, x)
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
