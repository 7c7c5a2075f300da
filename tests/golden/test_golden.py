"""Nothing moved: identities, names, shapes, trained numbers and gradients are those of the golden files."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.golden import records
from tests.golden.cases import RECORDS

# On another machine a gradient differs by a few roundings, and a trained weight or an accuracy by many.
TOLERANCE = {"trials": 0.05}
OTHER_TOLERANCE = 1e-4
HALF_TOLERANCE = 0.02

pinned = functools.cache(records.read)
CASES = [(file, name) for file in RECORDS for name in pinned(file) if name != "machine"]


@pytest.mark.parametrize(("file", "name"), CASES, ids=[f"{file}: {name}" for file, name in CASES])
def test_nothing_moved(file: str, name: str) -> None:
    content = pinned(file)
    tolerance = None if content["machine"] == records.machine() else TOLERANCE.get(file, OTHER_TOLERANCE)
    found = records.differences(RECORDS[file](name), content[name], tolerance)
    assert not found, "\n".join(found[:20])


def test_a_bit_that_moved_is_found() -> None:
    """Bits are compared only on the machine of the file, names and numbers with a tolerance everywhere."""
    record: dict[str, Any] = {"same": ["a", 1], "bits": "00", "exact": {"loss": 1.0}, "close": [1.0, float("nan")]}
    assert records.differences(record, record, None) == []
    moved = {**record, "bits": "01", "exact": {"loss": 1.1}, "new": 1}
    assert len(records.differences(moved, record, None)) == 2
    assert records.differences(moved, record, 1e-3) == []
    assert records.differences({**record, "close": [1.0005, float("nan")]}, record, 1e-3) == []
    assert len(records.differences({**record, "close": [1.1, 0.0], "exact": {}}, record, 1e-3)) == 3
    assert len(records.differences({**record, "same": ["a", 1.0]}, record, 1e-3)) == 1
    assert len(records.differences({}, record, 1e-3)) == 4
