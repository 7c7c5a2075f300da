"""Tests are found by name, and say why they import a private name.

`src/lastlayer/data/splits.py` is tested by `tests/data/test_splits.py`. A module in a folder of a part, such as
`data/readers/texts.py`, may also have its test at `tests/data/test_texts.py` or `tests/data/test_readers.py`.
`tests/names_today.txt` lists what still breaks the two rules. A new line fails the test.
If you removed some, write the list anew: `python -m tests.test_names --write`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "lastlayer", ROOT / "tests"
TODAY = Path(__file__).with_name("names_today.txt")


def places(module: str) -> list[str]:
    """Where the test of a module may be, by its path below src/lastlayer."""
    path = PurePosixPath(module)
    name = path.stem.lstrip("_")
    found = [path.parent / f"test_{name}.py"]
    if len(path.parts) > 2:
        found += [path.parents[1] / f"test_{name}.py", path.parents[1] / f"test_{path.parent.name.lstrip('_')}.py"]
    return [place.as_posix() for place in found]


def modules_without_a_test() -> Iterator[str]:
    for file in sorted(SOURCE.rglob("*.py")):
        module = file.relative_to(SOURCE).as_posix()
        if not file.name.startswith("__") and not any((TESTS / place).is_file() for place in places(module)):
            yield f"no test: {module}"


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split(".")) and not name.startswith(
        "lastlayer._core"  # private to the package, public to its parts and their tests
    )


def private_imports(text: str) -> Iterator[str]:
    """The private names of lastlayer that a test imports without a comment, on the same line or the line before."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        around = lines[max(node.lineno - 2, 0) : node.lineno]
        says_why = "#" in around[-1] or around[0].lstrip().startswith("#")
        yield from (name for name in names if name.startswith("lastlayer") and is_private(name) and not says_why)


def violations() -> list[str]:
    found = list(modules_without_a_test())
    for file in sorted(TESTS.rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        found += [f"private: {place}: {name}" for name in private_imports(file.read_text(encoding="utf-8"))]
    return sorted(set(found))


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("measures.py", "test_measures.py"),
        ("data/splits.py", "data/test_splits.py"),
        ("geometry/_passes.py", "geometry/test_passes.py"),
        ("data/readers/texts.py", "data/test_texts.py"),
        ("runners/conv3x3/kernels.py", "runners/test_conv3x3.py"),
    ],
)
def test_where_a_test_is_looked_for(module: str, place: str) -> None:
    assert place in places(module)


def test_what_counts_as_a_private_import() -> None:
    text = """
from lastlayer.cli.compare import _say, app
from lastlayer.losses import _hidden  # its order of sums is tested
# the kernels have no public front
from lastlayer.linear_loss._kernels import launch
from lastlayer._core.files import sha256
import lastlayer.data._names
from tests.data._helpers import thing
"""
    assert list(private_imports(text)) == ["lastlayer.cli.compare._say", "lastlayer.data._names"]


def test_the_list_of_today_only_shrinks() -> None:
    new = sorted(set(violations()) - set(TODAY.read_text(encoding="utf-8").splitlines()))
    assert not new, "\n".join(new)


if __name__ == "__main__" and "--write" in sys.argv:
    TODAY.write_text("".join(f"{line}\n" for line in violations()), encoding="utf-8")
