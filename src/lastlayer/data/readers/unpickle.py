"""A pickle reader that can build plain values and numeric arrays, and nothing else.

It never calls numpy's own classes. A pickled array contains a few names, in whose place the small classes below record
what the file says. They are turned into arrays afterwards. Any other name is refused.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastlayer.data.files import CorruptFileError


class _Dtype:
    def __init__(self, code: str | bytes, align: int = 0, copy: int = 1) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else order

    def build(self) -> "np.dtype[Any]":
        if not isinstance(self.code, str) or self.code[:1] not in ("b", "i", "u", "f"):
            raise pickle.UnpicklingError(f"array type {self.code!r} is refused: only numbers are read")
        order = {"<": "<", ">": ">"}.get(self.order, "=")
        return np.dtype(f"{order}{self.code}")


class _Array:
    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def build(self) -> NDArray[Any]:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array that does not hold plain numbers is refused")
        kind = dtype.build()
        if len(data) != math.prod(shape) * kind.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(data)} bytes")
        return np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")


_ADMITTED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only numbers, texts and arrays are read")
        return _ADMITTED[module, name]


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.build()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def unpickle(path: Path, data: bytes) -> dict[str, Any]:
    """Read a pickled dictionary of numbers, texts, lists and numeric arrays. Byte strings become text.

    If the pickle is damaged or holds anything else, the CorruptFileError says what.
    """
    try:
        value = _plain(_Unpickler(io.BytesIO(data), encoding="bytes").load())
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise CorruptFileError(f"{path} cannot be read as a pickled batch: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path} holds a {type(value).__name__}, not a dictionary")
    return value
