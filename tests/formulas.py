"""Writes docs/formulas.md from the docstrings: every public formula with its function, its test and its paper.

A docstring says `Paper: KEY, where` with a key of docs/references.md, or `Paper: none, why`, and
`Tests: tests/path/test_file.py::test_name`. After a change, run `python -m tests.formulas --write`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from lastlayer import theory
from lastlayer.heads import Head

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formulas.md"
REFERENCES = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
PARTS = ("losses", "heads", "geometry", "tasks", "measures", "theory")
# Public functions that compute no formula of their own.
NO_FORMULA = {
    "losses": {"as_loss", "available", "check_labels", "create", "create_for", "entry", "name_of", "register"},
    "heads": {"available", "class_of", "create", "options", "register"},
    "geometry": {"measure"},
    "measures": {"evaluate", "register"},
}
HEAD = """# Formulas

Every public formula, with the function that computes it, the test that compares it with something independent, and the
paper that it comes from. [references.md](references.md) has the papers.

This page is written by `python -m tests.formulas --write` from the docstrings. Change those, not this page.
"""


@dataclass(frozen=True)
class Formula:
    """One public function or head, with what its docstring says."""

    name: str
    formula: str
    tests: list[str]
    paper: str


def keys() -> dict[str, str]:
    """The keys of the papers in docs/references.md; a number such as 002 stands for its paper's key."""
    found = {key: key for key in re.findall(r"^\| `(.+?)` \|", REFERENCES, re.M)}
    return found | {number: key for key, number in re.findall(r"^\| `(.+?)` \| (\d{3}),", REFERENCES, re.M)}


def modules(part: str) -> Iterator[tuple[str, ModuleType]]:
    """The modules of a part that hold its public functions, each with its name below `lastlayer`."""
    if part != "theory":
        yield part, importlib.import_module(f"lastlayer.{part}")
        return
    for name in sorted(theory.__all__):
        if inspect.ismodule(module := getattr(theory, name)):
            yield f"theory.{name}", module


def public(part: str) -> Iterator[tuple[str, object]]:
    """The public functions of a part, and its heads, by their names below `lastlayer`."""
    for place, module in modules(part):
        for name in getattr(module, "__all__", sorted(vars(module))):
            found = getattr(module, name)
            is_own = hasattr(module, "__all__") or getattr(found, "__module__", "") == module.__name__
            is_formula = inspect.isfunction(found) or (inspect.isclass(found) and issubclass(found, Head))
            is_left_out = name.startswith("_") or found is Head or name in NO_FORMULA.get(part, ())
            if is_formula and is_own and not is_left_out:
                yield f"{place}.{name}", found


def field(doc: str, name: str) -> str:
    """The text after `name:` in a docstring, up to the next field or empty line, on one line."""
    found = re.search(rf"^{name}: (.+?)(?=\n\n|\n\w+:|\Z)", doc, re.M | re.S)
    return " ".join(found[1].split()) if found else ""


def read(name: str, found: object) -> Formula:
    doc = inspect.getdoc(found) or ""
    before_arguments = re.split(r"^(?:\w+:$|Paper: )", doc, maxsplit=1, flags=re.M)[0]
    block = re.search(r"(?:^ {4}.*\n?)+", before_arguments, re.M)
    formula = textwrap.dedent(block[0]).strip() if block else doc.split("\n\n")[0].replace("\n", " ")
    tests = [part.strip() for part in field(doc, "Tests").split(", ") if part]
    return Formula(name, formula, tests, field(doc, "Paper").removesuffix("."))


def formulas(part: str) -> list[Formula]:
    return [read(name, found) for name, found in public(part)]


def tests_in(file: Path) -> set[str]:
    """The tests of a file: test_name, or TestClass::test_name."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def mistakes(one: Formula) -> Iterator[str]:
    """What is missing or wrong in the lines `Paper:` and `Tests:` of a docstring."""
    if not one.paper:
        yield f"{one.name}: no line `Paper:`"
    elif not one.paper.startswith(("none", "derived")) and not any(key in one.paper for key in keys()):
        yield f"{one.name}: no key of docs/references.md in `Paper: {one.paper}`"
    if not one.tests:
        yield f"{one.name}: no line `Tests:`"
    for test in one.tests:
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or name not in tests_in(ROOT / file):
            yield f"{one.name}: there is no test {test}"


def with_names(paper: str) -> str:
    """The numbers of the five papers replaced by their keys."""
    return re.sub(r"\b00[0-4]\b", lambda number: keys()[number[0]], paper)


def page() -> str:
    lines = [HEAD]
    for part in PARTS:
        lines.append(f"## {part}\n")
        for one in formulas(part):
            tests = ", ".join(f"[{test}](../{test.partition('::')[0]})" for test in one.tests)
            lines.append(f"### `{one.name}`\n\n```text\n{one.formula}\n```\n")
            lines.append(f"- test: {tests}\n- paper: {with_names(one.paper)}\n")
    return "\n".join(lines)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page(), encoding="utf-8")
