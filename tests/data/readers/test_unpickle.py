"""The restricted unpickler builds numbers, texts and numeric arrays, and refuses everything else by name."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastlayer.data import CorruptFileError
from lastlayer.data.readers.unpickle import unpickle

PATH = Path("some_batch")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "int64", ">i4", "float32", "bool"])
def test_arrays_of_numbers(protocol: int, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    content = {"c": array, "f": np.asfortranarray(array), "labels": [1, 2], "name": "x"}
    found = unpickle(PATH, pickle.dumps(content, protocol=protocol))
    for key in ("c", "f"):
        assert np.array_equal(found[key], content[key])
        assert found[key].dtype == array.dtype
    assert found["labels"] == [1, 2]
    assert found["name"] == "x"


def test_python_2_strings_become_text() -> None:
    # what Python 2 wrote for {'labels': [1L], 'name': 'abc'}: SHORT_BINSTRING keys and values
    raw = b"\x80\x02}(U\x06labels]\x8a\x01\x01aU\x04nameU\x03abcu."
    assert unpickle(PATH, raw) == {"labels": [1], "name": "abc"}


class Dangerous:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_and_never_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    with pytest.raises(CorruptFileError, match=rf"some_batch.*{os.mkdir.__module__}.mkdir is refused"):
        unpickle(PATH, pickle.dumps({"data": Dangerous(str(target))}, protocol=protocol))
    assert not target.exists()


def test_builtins_are_refused() -> None:
    with pytest.raises(CorruptFileError, match=r"builtins.eval is refused"):
        unpickle(PATH, b"cbuiltins\neval\n(S'1'\ntR.")


def test_object_arrays_are_refused() -> None:
    with pytest.raises(CorruptFileError, match=r"refused"):
        unpickle(PATH, pickle.dumps({"data": np.array([{}, []], dtype=object)}, protocol=2))


@pytest.mark.parametrize("length", [0, 1, 50, 150])
def test_truncated_pickles_are_named(length: int) -> None:
    raw = pickle.dumps({"data": np.zeros(100, np.uint8)}, protocol=2)
    with pytest.raises(CorruptFileError, match=r"some_batch cannot be read"):
        unpickle(PATH, raw[:length])


def test_other_values_than_dictionaries_are_refused() -> None:
    with pytest.raises(CorruptFileError, match=r"holds a list"):
        unpickle(PATH, pickle.dumps([1, 2]))
