"""The pages under docs/ and the README say what the code says: names, defaults, commands, links and the loss to add.

Their `>>>` examples run as doctests (pyproject.toml).
"""

import dataclasses
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.main import get_command

from lastlayer import data, heads, losses, papers, theory
from lastlayer.cli import app
from lastlayer.cli.reproduce import labels_of, seeds_of
from lastlayer.losses import loss as _loss
from lastlayer.measures import MEASURES
from lastlayer.training import DataChoice, ModelChoice, Schedule, Trial, finish_fit, fit

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERYWHERE = {"README.md": README, **PAGES}


def rows(text: str, *head: str) -> list[dict[str, str]]:
    """The rows of every table whose first columns are these."""
    found, columns = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if columns is None:
            columns = cells
        elif set(line) - set("|-") and tuple(columns[: len(head)]) == head:
            found.append(dict(zip(columns, cells, strict=True)))
    assert found, f"no table begins with {head}"
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


LOSSES = {names(row["name"])[0]: row for row in rows(PAGES["losses.md"], "name", "function")}


def test_the_table_of_losses_has_all_of_them():
    assert sorted(LOSSES) == losses.available()


@pytest.mark.parametrize("name", losses.available())
def test_a_loss_is_as_its_line_says(name):
    row, entry = LOSSES[name], losses.entry(name)
    assert names(row["function"]) == [entry.module.function.__name__]
    assert row["aligned"] == ("yes" if entry.module.aligned else "no")
    assert [float(number) for number in row["lr, decay"].split(",")] == [
        entry.module.learning_rate,
        entry.module.weight_decay,
    ]
    own = {p.name: p.default for p in inspect.signature(entry.module).parameters.values()} | entry.hyperparameters
    own = {key: value for key, value in own.items() if key != "num_classes" and key not in _loss.COMMON}
    needed = [key for key, value in own.items() if value is inspect.Parameter.empty]
    assert names(row["hyperparameters"]) == [key if key in needed else f"{key}={own[key]!r}" for key in own]


@pytest.mark.parametrize("name", losses.available())
def test_a_loss_takes_soft_targets_if_its_line_says_so(name):
    z, teacher = torch.randn(2, 4), torch.randn(2, 4)
    inputs = {"kd": (z, teacher), "fn-kd": (z, z, teacher, teacher), "large-margin": (z, torch.randn(4, 4))}
    loss = losses.create(name, **({"counts": [4, 3, 2, 1]} if name == "logit-adjusted" else {}))
    try:
        takes = loss(*inputs.get(name, (z.tanh(),)), torch.full((2, 4), 0.25)).isfinite().item()
    except ValueError:
        takes = False
    assert LOSSES[name]["soft targets"] == ("yes" if takes else "no")


def test_the_lists_of_linear_loss_are_those_it_goes_by():
    page = PAGES["linear_loss.md"]
    takes = {names(row["path"])[0]: row["takes"] for row in rows(page, "path")}
    everything, labels_alone = takes["classes"].split("without class probabilities")
    forms = {name: losses.entry(name).module.class_form for name in losses.available()}
    forms = {name: form for name, form in forms.items() if form is not None}
    assert set(names(everything)) == {name for name, form in forms.items() if not form.labels_alone}
    assert {*names(labels_alone), "nce"} == {name for name, form in forms.items() if form.labels_alone}
    sharded = re.search(r"^For (`.*?), by tiles", page, re.M | re.S)
    assert set(names(sharded[1])) == {name for name, form in forms.items() if form.shards}


ARROWS = {"↑": "higher", "↓": "lower", "–": None}  # noqa: RUF001


def test_the_tables_of_measures_are_the_registry():
    said = {
        names(row["name"])[0]: (ARROWS[row["better"]], tuple(row["needs"].split(", ")))
        for row in rows(PAGES["measures.md"], "name", "formula")
    }
    assert said == {name: (measure.direction, measure.needs) for name, measure in MEASURES.items()}


def test_the_table_of_heads_is_that_of_the_trainer():
    said = {names(row["name"])[0]: names(row["class"])[0] for row in rows(PAGES["heads.md"], "name", "class")}
    assert said == {name: heads.class_of(name).__name__ for name in heads.available()}
    assert set(said.values()) == {name for name in heads.__all__ if name.endswith("Head")} - {"Head"}


def test_the_table_of_fields_is_that_of_a_trial():
    said = [names(row["field"])[0] for row in rows(PAGES["training.md"], "field")]
    assert said == [field.name for field in dataclasses.fields(Trial)]


def test_the_files_of_a_run_are_those_of_the_table(tmp_path):
    said = {names(row["file"])[0] for row in rows(PAGES["training.md"], "file")}
    trial = Trial(DataChoice(train=40), ModelChoice("mlp", {"width": 4}), schedule=Schedule(epochs=2), batch_size=20)
    finish_fit(fit(trial, tmp_path))
    there = {re.sub(r"\d{4}", "NNNN", path.name) for path in tmp_path.iterdir()}
    assert said == {*there, "failure.json"}


def test_the_table_of_data_sets_has_all_and_says_which_can_be_fetched():
    said = {
        name: (row["files under the data root"] != "none", row["`data get`"] == "yes")
        for row in rows(PAGES["training.md"], "name", "what")
        for name in names(row["name"])
    }
    known = {name: data.describe(name) for name in data.available()}
    assert said == {name: (source.needs_files, bool(source.remotes)) for name, source in known.items()}


def test_the_tables_of_papers_sizes_and_verdicts(tmp_path):
    assert tuple(names(row["name"])[0] for row in rows(PAGES["papers.md"], "name", "paper")) == papers.PAPERS
    said = {names(row["size"])[0]: row["counts for verdicts"] == "yes" for row in rows(PAGES["papers.md"], "size")}
    counting = {}
    for size in papers.SIZES:
        store = papers.Store(tmp_path / size)
        store.add("sln.table1", size, [papers.Record({"loss": "CE"}, 0, 1, {"test.accuracy": 0.9})])
        counting[size] = store.size_of_evidence("sln.table1") is not None
    assert said == counting
    outcomes = [names(row["verdict"])[0] for row in rows(PAGES["papers.md"], "verdict")]
    assert set(outcomes) == set(inspect.get_annotations(papers.Verdict, eval_str=True)["outcome"].__args__)


def test_the_table_of_theory_names_every_function():
    for row in rows(PAGES["theory.md"], "module"):
        module = importlib.import_module(f"lastlayer.theory.{names(row['module'])[0]}")
        listed = getattr(module, "__all__", vars(module))
        public = {
            name
            for name in listed
            if inspect.isfunction(made := getattr(module, name))
            and not name.startswith("_")
            and (made.__module__ == module.__name__ or hasattr(module, "__all__"))
        }
        assert set(names(row["functions"])) == public, module.__name__
    modules = {name for name in theory.__all__ if inspect.ismodule(getattr(theory, name))}
    assert {names(row["module"])[0] for row in rows(PAGES["theory.md"], "module")} == modules


def test_the_table_of_commands_has_all_of_them():
    said = [names(row["command"])[0].split()[1] for row in rows(README, "command", "what it does")]
    assert sorted(said) == sorted(get_command(app).commands)


def command_lines() -> list[tuple[str, str]]:
    """Every command of the pages: lines of code, and words in backticks."""
    found = []
    for page, text in EVERYWHERE.items():
        lines = [line.strip().split("   ")[0] for line in text.splitlines() if line.startswith("    lastlayer ")]
        quoted = [one for one in re.findall(r"`(lastlayer [^`]+)`", text) if "|" not in one and "COMMAND" not in one]
        found += [(page, line) for line in dict.fromkeys([*lines, *quoted])]
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_line_is_understood(page, line):
    """Parsed as the command would parse it, and not run; a bare name stands for the command itself."""
    command, arguments = get_command(app), shlex.split(line)[1:]
    while hasattr(command, "commands") and arguments:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    if not arguments:
        return
    given = command.make_context(line, arguments).params
    if command.name == "reproduce" and given["names"]:
        for name in given["names"]:
            if name in papers.artifacts():
                one = papers.artifact(name)
                papers.restricted(one, given["size"], labels_of(given["only"], one), seeds_of(given["seeds"]))
            else:
                assert name in papers.PAPERS or name.endswith("NAME"), name


@pytest.mark.parametrize("page", sorted(EVERYWHERE))
def test_every_link_leads_somewhere(page):
    folder = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\(([^)]+)\)", EVERYWHERE[page]):
        if target.startswith("https://"):  # no network in tests
            continue
        path, _, part = target.partition("#")
        file = folder / path if path else folder / page
        assert file.exists(), target
        if part:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
            assert part in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_readme_leads_to_every_page(page):
    assert f"](docs/{page})" in README
