"""The layers of `src/lastlayer`: what a part may import, and what only a loss's own file may know.

Four kinds of line are counted in each file:
    upward   an import of a part that stands below in ORDER, or that MAY_USE leaves out, inside functions too
    private  an import, from another part, of a module or a name that begins with `_`
    loss     a comparison, a set, a dict or an isinstance that treats a loss in a special way outside its own file
    doubled  a public class or function of which another part has one of the same name
`tests/house_today.txt` lists those there still are. A new one fails the test, and so does a line for one that is gone.
If you moved or removed some, write the list anew: `python -m tests.test_house --write`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lastlayer"
TODAY = Path(__file__).with_name("house_today.txt")
# A part may use what stands before it. _core is the floor; the parts between papers and cli are for users.
ORDER = [
    "_core", "losses", "heads", "geometry", "tasks", "measures", "linear_loss", "theory", "runs", "data", "models",
    "training", "runners", "reports", "papers", "compare", "sklearn", "index", "hf", "lightning", "timm", "cli",
    "__main__",
]  # fmt: skip
MAY_USE = {
    "geometry": {"_core"},
    "tasks": {"_core"},
    "theory": {"_core", "losses", "geometry"},
}  # of those parts that may not use everything before them
# Nouns that had two meanings, and functions that were written twice.
ONE_OF_EACH = {
    "Plan", "Ranks", "Scores", "Entry", "Cell", "Problem", "Selection", "Row", "Runs", "Split", "Chunks",
    "check_labels", "check_range", "check_file", "name_of", "make_loss", "write_page", "softplus",
}  # fmt: skip


def part_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def trees() -> dict[str, ast.Module]:
    """Every module by its path below src/lastlayer, but for the package's own __init__, which only names the parts."""
    paths = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name: ast.parse(path.read_text()) for name, path in paths.items() if name != "__init__.py"}


def imports(file: str, tree: ast.Module) -> Iterator[list[str]]:
    """The dotted names below `lastlayer` that a module imports, wherever in it."""
    package = file.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["lastlayer", *package[: len(package) - node.level + 1]] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            found = [f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        yield from (name.split(".")[1:] for name in found if name.startswith("lastlayer."))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def wrong_imports(file: str, tree: ast.Module) -> Iterator[str]:
    part = part_of(file)
    for name in imports(file, tree):
        other, dotted = name[0], ".".join(name)
        if other == part or other not in ORDER:  # not a part: lastlayer.__version__
            continue
        if ORDER.index(other) > ORDER.index(part) or other not in MAY_USE.get(part, {other}):
            yield f"upward {dotted}"
        if any(is_private(piece) for piece in name[1:]):
            yield f"private {dotted}"


def registered(files: dict[str, ast.Module]) -> dict[str, str]:
    """The file of each loss, by its names for `create` and by its class."""
    owners = {}
    for file, tree in files.items():
        for node in ast.walk(tree):
            for call in node.decorator_list if isinstance(node, ast.ClassDef) and part_of(file) == "losses" else ():
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register":
                    assert isinstance(node, ast.ClassDef)
                    owners |= {ast.literal_eval(call.args[0]): file, node.name: file}
    return owners


def losses_in(node: ast.AST | None) -> Iterator[str]:
    """Strings, and names of classes, in an expression or in a display of several."""
    for piece in ast.walk(node) if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]:
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            yield piece.value
        elif isinstance(piece, ast.Name | ast.Attribute):
            yield piece.id if isinstance(piece, ast.Name) else piece.attr


def treated_losses(file: str, tree: ast.Module, owners: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        asked: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Set):
            asked = [node]
        elif isinstance(node, ast.Dict):
            asked = [*node.keys]
        elif isinstance(node, ast.MatchValue | ast.MatchClass):
            asked = [node.value if isinstance(node, ast.MatchValue) else node.cls]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked = [node.args[1]]
        for name in (name for one in asked for name in losses_in(one)):
            if owners.get(name, file) != file:
                yield f"loss {name}"


def doubled(files: dict[str, ast.Module]) -> Iterator[str]:
    places: dict[str, set[str]] = {}
    for file, tree in files.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in ONE_OF_EACH:
                places.setdefault(node.name, set()).add(file)
    for name, found in places.items():
        if len({part_of(file) for file in found}) > 1:
            yield from (f"{file}: doubled {name}" for file in found)


def violations() -> list[str]:
    """A line for each, with how many there are in the file, if it is not one."""
    files = trees()
    owners = registered(files)
    found = Counter(doubled(files))
    for file, tree in files.items():
        found.update(f"{file}: {what}" for what in wrong_imports(file, tree))
        found.update(f"{file}: {what}" for what in treated_losses(file, tree, owners))
    return sorted(f"{line} x{count}" if count > 1 else line for line, count in found.items())


EXAMPLES = {
    "def f():\n    from lastlayer.papers import judge": ["upward papers.judge"],
    "from lastlayer import papers": ["upward papers"],
    "importlib.import_module('lastlayer.papers.sln')": ["upward papers.sln"],
    "from ..data._names import INPUTS": ["private data._names.INPUTS"],
    "from lastlayer.data import load, _names": ["private data._names"],
    "from lastlayer._core.files import sha256": [],
    "from lastlayer.training._fields import settle; from . import _fields": [],
    "name == 'ce' or name in ('sln', 'other')": ["loss ce", "loss sln"],
    "RATES = {'bce': 0.1, 'mine': 1}; SOME = {'nce'} | BCE": ["loss bce", "loss nce"],
    "match name:\n    case 'mse' | 'ce': pass": ["loss ce", "loss mse"],
    "isinstance(loss, (NceLoss, losses.MseLoss)) and type(loss) is FocalLoss": [
        "loss FocalLoss",
        "loss MseLoss",
        "loss NceLoss",
    ],
    "DEFAULTS = ('ce', 'sln'); create('ce', like='sln')": [],
}


@pytest.mark.parametrize("code", EXAMPLES)
def test_what_is_counted(code: str) -> None:
    """In a file of `training`, as if it stood there."""
    file, tree, owners = "training/example.py", ast.parse(code), registered(trees())
    assert sorted([*wrong_imports(file, tree), *treated_losses(file, tree, owners)]) == EXAMPLES[code]


def test_parts_that_may_use_little() -> None:
    tree = ast.parse("from lastlayer.losses import ce; from lastlayer import heads; from lastlayer.geometry import nc1")
    assert list(wrong_imports("theory/minima.py", tree)) == ["upward heads"]
    assert list(wrong_imports("geometry/spread.py", tree)) == ["upward losses.ce", "upward heads"]


def test_every_part_has_its_place() -> None:
    assert {part_of(file) for file in trees()} <= {*ORDER}


def test_layers() -> None:
    found, listed = set(violations()), set(TODAY.read_text().splitlines())
    lines = [f"new: {line}" for line in sorted(found - listed)] + [f"gone: {line}" for line in sorted(listed - found)]
    assert not lines, "\n".join([*lines, "If none is really new: python -m tests.test_house --write"])


if __name__ == "__main__" and "--write" in sys.argv:
    TODAY.write_text("".join(f"{line}\n" for line in violations()))
