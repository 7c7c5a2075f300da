"""The examples of CONTRIBUTING.md and of docs/losses.md run, and the table of parts is the one that is enforced."""

import ast
import copy
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lastlayer import losses, runners
from lastlayer._core.registry import import_all
from lastlayer.linear_loss import Plan, linear_loss
from lastlayer.training import LossChoice, Trial
from tests.test_docs import names, rows
from tests.test_house import MAY_USE, ORDER

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LOSSES_PAGE = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
# The examples register parts, which must be gone after the test. There is no public way to take one back.
REGISTRIES = {
    "lastlayer.losses.loss": "_registry",
    "lastlayer.heads.head": "_registry",
    "lastlayer.models.common": "_MODELS",
    "lastlayer.data.sources": "_SOURCES",
    "lastlayer.runners.protocol": "RUNNERS",
}
MEASURES = {"lastlayer.measures": ["MEASURES", "_SOURCES"]}


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def sections() -> dict[str, list[str]]:
    """The code of each section "Adding a ..." of CONTRIBUTING.md: the file, then the lines that use it."""
    parts = re.split(r"^## Adding an? (.+)$", PAGE, flags=re.M)
    return {title: code for title, text in zip(parts[1::2], parts[2::2], strict=True) if (code := code_blocks(text))}


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the registries for the time of a test."""
    import_all(runners)  # which are found when one is first asked for: here they would go with the copy
    for module, attribute in REGISTRIES.items():
        part = importlib.import_module(module)
        monkeypatch.setattr(part, attribute, copy.deepcopy(getattr(part, attribute)))
    for module, attributes in MEASURES.items():
        part = importlib.import_module(module)
        for attribute in attributes:
            monkeypatch.setattr(part, attribute, copy.copy(getattr(part, attribute)))


def as_module(code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the code into a file and import it."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(name)


@pytest.mark.parametrize("title", sections())
def test_an_example_is_complete_and_does_what_its_lines_say(title, tmp_path, monkeypatch):
    file, use = sections()[title]
    as_module(file, f"example_of_{re.sub(r'[^a-z]+', '_', title)}", tmp_path, monkeypatch)
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest(use, {}, title, "CONTRIBUTING.md", 0)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_examples_work_in_the_folders_they_belong_to(tmp_path):
    """In a copy of the package. A file may not import what its own part has not made yet."""
    folders = {"head": "heads", "model": "models", "data set": "data/readers", "runner": "runners"}
    package = tmp_path / "lastlayer"
    shutil.copytree(ROOT / "src" / "lastlayer", package, ignore=shutil.ignore_patterns("__pycache__"))
    for title, folder in folders.items():
        (package / folder / "example.py").write_text(sections()[title][0], encoding="utf-8")
    (loss,) = (code for code in code_blocks(LOSSES_PAGE) if "@register" in code)
    (package / "losses" / "example.py").write_text(loss, encoding="utf-8")
    code = """
from lastlayer import data, heads, losses, models, runners
from lastlayer._core.registry import import_all
from lastlayer.runners.protocol import RUNNERS
import_all(runners)
print("centered" in heads.available(), "shallow" in models.available(), "half-circles" in data.available())
print("poly1" in losses.available(), "backwards" in RUNNERS)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 5, done.stderr


def named_places() -> list[str]:
    """The functions and classes that the tables of the two ways name, as file:name."""
    ways = PAGE.partition("## The way of a batch")[2].partition("## Tests")[0]
    return re.findall(r"`([\w/]+\.py:[\w.]+)`", ways)


@pytest.mark.parametrize("place", named_places())
def test_a_hop_of_the_two_ways_is_there(place):
    file, _, dotted = place.partition(":")
    nodes: list[ast.stmt] = ast.parse((ROOT / "src" / "lastlayer" / file).read_text(encoding="utf-8")).body
    for name in dotted.split("."):
        named = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
        assert named, f"CONTRIBUTING.md names {place}, which is not there"
        nodes = named[0].body


def test_there_is_an_example_of_each_kind_of_part():
    assert {*sections(), "loss"} == {"loss", "head", "model", "data set", "measure", "runner"}


def test_the_loss_that_the_page_adds_works(tmp_path, monkeypatch):
    (file,) = (code for code in code_blocks(LOSSES_PAGE) if "@register" in code)
    as_module(file, "poly1", tmp_path, monkeypatch)
    torch.manual_seed(0)
    z, y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = losses.create("poly1", epsilon=2.0)
    monkeypatch.setattr(type(loss), "in_pieces", True)  # as it is for a file in the folder of losses
    p = z.softmax(1)
    each = -p.log() + 2.0 * (1 - p)  # (N, K), for every label
    assert loss(z, y).item() == pytest.approx(each[torch.arange(6), y].mean().item())
    assert loss(z, p).item() == pytest.approx((p * each).sum(1).mean().item())
    by_rows = linear_loss(z, torch.eye(5, dtype=torch.float64), y, loss, plan=Plan("rows", "", rows=4))
    assert by_rows.item() == pytest.approx(loss(z, y).item())
    assert Trial(loss=LossChoice("poly1", {"epsilon": 2.0})).resolved().optimiser.lr == 0.1


def test_the_loss_that_the_page_adds_keeps_its_digits(tmp_path, monkeypatch):
    """As the page says: at (30, 0, 0) the loss is 2 e^-30, and twice that with the second term, also in float32."""
    (file,) = (code for code in code_blocks(LOSSES_PAGE) if "@register" in code)
    as_module(file, "poly1", tmp_path, monkeypatch)
    z, y = torch.tensor([[30.0, 0.0, 0.0]]), torch.tensor([0])
    assert torch.nn.functional.log_softmax(z, 1)[0, 0] == 0
    assert losses.create("poly1", epsilon=0.0)(z, y).item() == pytest.approx(1.87e-13, rel=2e-3)
    assert losses.create("poly1", epsilon=1.0)(z, y).item() == pytest.approx(2 * 1.87e-13, rel=2e-3)


def test_the_table_of_parts_is_the_one_that_is_enforced():
    found = {names(row["part"])[0]: row["may import"] for row in rows(PAGE, "part", "what it holds")}
    rooms_to_come = {"compare", "sklearn", "index", "hf", "lightning", "timm", "__main__"}
    files = {path.stem for path in (ROOT / "src" / "lastlayer").iterdir()}  # a part is a file or a folder
    there = [part for part in ORDER if part not in rooms_to_come or part in files]
    assert list(found) == [part for part in there if part != "__main__"]
    for part, said in found.items():
        if part in MAY_USE:
            assert set(names(said)) == MAY_USE[part]
        elif part != "_core":
            assert said == "the parts above"
