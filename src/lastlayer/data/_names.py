"""What arrays in files may be called, in one place: for `lastlayer.data.arrays` and for heads on features."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

INPUTS = ("features", "x")
LABELS = ("target", "targets", "labels", "y")
WHOLE, TRAIN, TEST = "", "_train", "_test"  # what stands behind the name


def has_parts(found: Collection[str]) -> bool:
    """Whether a file holds training and test samples apart."""
    return any(name + ending in found for name in INPUTS + LABELS for ending in (TRAIN, TEST))


def find_name(path: Path, found: Collection[str], names: Sequence[str], endings: Sequence[str]) -> str:
    """The name under which a file holds its inputs or its labels.

    Args:
        path: the file, for errors.
        found: the names in it.
        names: INPUTS or LABELS.
        endings: which of WHOLE, TRAIN, TEST, the preferred one first.

    Raises:
        ValueError: there is none, those found and those accepted are listed; or there are two.
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


def not_numbers(name: str, dtype: Any) -> str:
    """What to say of an array of another type where labels and features must be numbers."""
    if dtype.kind not in "US":
        return f"{name} must be numbers, got {dtype}"
    remedy = f": save np.unique({name}, return_inverse=True)[1]" if name.startswith(LABELS) else ""
    return f"{name} must be numbers{', labels 0 to K-1' * bool(remedy)}, got texts{remedy}"
