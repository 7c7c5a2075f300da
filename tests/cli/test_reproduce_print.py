"""What `lastlayer reproduce` prints: tables beside published numbers, the list of artifacts, and verdicts."""

import math
import re

import pytest
from typer.testing import CliRunner

from lastlayer.cli import app
from lastlayer.papers import Record, Store, artifact, artifacts, claims


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_list_names_every_artifact(call):
    made = call("--list")
    assert made.exit_code == 0, made.output
    for name in artifacts():
        assert name in made.output


def test_the_scorecard_has_one_line_for_each_claim(call, tmp_path):
    made = call("--scorecard")
    assert made.exit_code == 0, made.output
    missing, *lines, counts = made.output.splitlines()
    assert missing == "--out results: there is no such folder, so nothing has been run"
    assert counts == "60 not run"
    assert [line[:6] for line in lines] == [claim.id for claim in claims()]
    assert all(claim.claim in line for line, claim in zip(lines, claims(), strict=True))
    marked = {line[:6] for line in lines if "[criterion changed]" in line}
    assert marked == {"000-12", "000-13", "001-01"}


def test_the_scorecard_of_some_artifacts_is_in_full(call):
    made = call("--scorecard", "sln.dynamics")
    assert "000-13" in made.output
    assert "000-12" not in made.output
    assert "1 not run" in made.output


def test_the_table_keeps_what_only_keeps(call):
    made = call("sln.table1", "--show", "--only", "loss=LN", "--only", "dataset=CIFAR-10")
    assert made.exit_code == 0, made.output
    table = made.output.split("chosen here")[0]
    assert "92.05" in table  # published, LN with ResNet-20 on CIFAR-10
    assert "91.81" not in table  # CE
    assert "CIFAR-100" not in table


def test_a_group_without_classes_is_not_called_not_run(call, tmp_path):
    labels = {"imbalance": "10", "dataset": "CIFAR10-LT", "model": "ResNet-32", "loss": "CE"}
    values = {"test.accuracy": 0.5, "test.many": 0.5, "test.medium": math.nan, "test.few": math.nan}
    Store(tmp_path / "results").add("normalized_scaling.table2", "small", [Record(labels, 0, 40, values)])
    only = [f"--only={axis}={label}" for axis, label in labels.items()]
    made = call("normalized_scaling.table2", "--show", *only)
    assert made.exit_code == 0, made.output
    line = next(line for line in made.output.splitlines() if "ResNet-32" in line)
    cells = [cell.strip() for cell in line.split("│") if cell.strip()]
    assert cells == ["10", "CIFAR10-LT", "ResNet-32", "CE", "50 (1)", "93.68", "50 (1)", "none", "none"]


def test_columns_of_which_the_paper_prints_nothing_take_no_room_from_the_others(call, tmp_path):
    labels = {"imbalance": "10", "dataset": "CIFAR10-LT", "model": "ResNet-32", "loss": "CE"}
    Store(tmp_path / "results").add("normalized_scaling.table2", "small", [Record(labels, 0, 40, {"test.many": 0.5})])
    made = CliRunner().invoke(app, ["reproduce", "normalized_scaling.table2", "--show"], env={"COLUMNS": "80"})
    heads = next(line for line in made.output.splitlines() if "imbalance" in line)
    titles = ["imbalance", "dataset", "model", "loss", "accuracy", "published", "many", "medium", "few"]
    assert [head.strip() for head in heads.split("┃") if head.strip()] == titles
    assert "CIFAR100-LT" in made.output
    assert "…" not in made.output


@pytest.mark.parametrize("terminal", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}], ids=["pipe", "terminal"])
def test_a_table_wider_than_the_terminal_comes_in_parts_with_whole_numbers(call, tmp_path, terminal):
    titles = artifact("all_losses.table").columns
    measured = [spec.rstrip("%").rpartition("-")[2] for spec in titles.values()]
    rows = [Record({"loss": "CE"}, seed, 20, dict.fromkeys(measured, 0.25 + seed / 1000)) for seed in range(3)]
    Store(tmp_path / "results").add("all_losses.table", "small", rows)
    arguments = ["reproduce", "all_losses.table", "--show", "--only=loss=CE"]
    made = CliRunner().invoke(app, arguments, env={"COLUMNS": "100", **terminal})
    assert made.exit_code == 0, made.output
    table = re.sub(r"\x1b\[[0-9;]*m", "", made.output).split("size small")[0]
    values = [line for line in table.splitlines() if line.startswith("│ CE ")]
    assert sum(line.count("(3)") for line in values) == len(titles)
    if terminal:
        assert len(values) > 1
        assert max(map(len, table.splitlines())) <= 100
    else:
        assert len(values) == 1


def test_a_criterion_says_how_it_was_changed(call):
    made = call("--scorecard", "sln")
    assert "[criterion changed: the cosine" in " ".join(made.output.replace("│", " ").split())
    assert "criterion changed: not changed" not in " ".join(made.output.replace("│", " ").split())
