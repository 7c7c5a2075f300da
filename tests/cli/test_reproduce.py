"""`lastlayer reproduce` as a user runs it."""

import pytest
from typer.testing import CliRunner

from lastlayer.cli import app
from lastlayer.papers import Row, Store, artifacts, claims


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["reproduce", *arguments])


def test_a_small_artifact_end_to_end(call, tmp_path):
    made = call("sln.table1", "--size", "smoke", "--device", "cpu", "--workers", "1", "--seeds", "1")
    assert made.exit_code == 0, made.output
    assert "sln.table1 (Table 1)" in made.output
    assert "91.81" in made.output  # the paper's
    assert (tmp_path / "results" / "sln" / "table1-smoke.csv").exists()
    again = call("sln.table1", "--size", "smoke", "--show")
    assert again.exit_code == 0
    assert "observations: results/sln/table1-smoke.csv" in again.output


def test_the_list_names_every_artifact(call):
    made = call("--list")
    assert made.exit_code == 0, made.output
    for name in artifacts():
        assert name in made.output


def test_the_scorecard_has_one_line_for_each_claim(call, tmp_path):
    made = call("--scorecard")
    assert made.exit_code == 0, made.output
    for claim in claims():
        assert claim.id in made.output
    assert "60 not run" in made.output


def test_claims_are_judged_after_the_artifact_they_rest_on(call, tmp_path):
    rows = [
        Row(
            {"dataset": "CIFAR-10", "model": "ResNet-20", "loss": loss}, seed, 164, {"test.accuracy": mean + seed / 1e4}
        )
        for loss, mean in (("CE", 0.918), ("SLN", 0.926))
        for seed in range(5)
    ]
    Store(tmp_path / "results").add("sln.table1", "small", rows)
    made = call("sln.table1", "--show")
    assert made.exit_code == 0, made.output
    assert "000-01" in made.output
    assert "reproduced" in made.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name an artifact, such as sln.table1"),
        (("sln.tabel1",), "sln.table1"),
        (("sln.table1", "--size", "tiny"), "--size must be one of smoke, small, paper"),
        (("sln.table1", "--only", "loss"), "AXIS=LABEL"),
        (("sln.table1", "--only", "loss=XYZ"), "has no loss 'XYZ'"),
        (("sln.table1", "--seeds", "a-b"), "--seeds must be a number"),
    ],
)
def test_mistakes_end_in_one_line(call, arguments, message):
    made = call(*arguments)
    assert made.exit_code == 2
    assert message in made.output
