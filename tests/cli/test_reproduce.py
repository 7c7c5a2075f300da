"""`lastlayer reproduce` as a user runs it."""

import importlib.util

import pytest
from typer.testing import CliRunner

from lastlayer.cli import app
from lastlayer.papers import Record, Store, claims, needs
from lastlayer.runs import RunFolder


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
    assert "size smoke: small data and tiny networks instead of those named" in " ".join(made.output.split())
    again = call("sln.table1", "--size", "smoke", "--show")
    assert again.exit_code == 0
    assert "observations: results/sln/table1-smoke.csv" in again.output


def test_claims_can_be_named_by_their_ids(call):
    made = call("--scorecard", "000-13", "sln.theorem1")
    assert made.exit_code == 0, made.output
    assert "000-12" in made.output
    assert "000-13" in made.output
    assert "2 not run" in made.output


def test_an_artifact_named_twice_is_shown_once(call):
    made = call("bn_wd.lemma4", "bn_wd.lemma4", "--size", "smoke", "--show")
    assert made.output.count("bn_wd.lemma4: nothing at size smoke; without --show it is run") == 1


def test_claims_are_judged_after_the_artifact_they_rest_on(call, tmp_path):
    rows = [
        Record(
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
        (("sln.table1", "--seeds", "0"), "--seeds must be a number"),
        (("sln.table1", "--seeds", "5-3"), "--seeds must be a number"),
        (("sln.table1", "--seeds", "99999999999"), "--seeds must be a number"),
        (("slm",), "did you mean 'sln'?"),
        (("sln", "--size", "smoke", "--only", "dataset=CIFAR-10"), "has no axis 'dataset'"),
        (("sln.table1", "--picture", "x.gif"), "--picture must end in .svg or .png"),
        (("sln", "--picture", "x.svg"), "--picture takes one artifact"),
        (("sln.table1", "--picture", "x.svg"), "sln.table1 has no figure"),
        (("sln.table1", "--only", "loss=CE, decay 5e-5"), "'CE, decay 5e-4', 'CE, decay 1e-3'"),
        (("bn_wd.lemma4", "--size", "smoke", "--out", "/dev/null/x"), "--out /dev/null/x: no folder can be made"),
        (("bn_wd.fig7", "--out", ".", "--runs", "/dev/null/x"), "--runs /dev/null/x: no folder can be made"),
        (("sln.table1", "--workers", "0"), "--workers"),
        (("--scorecard", "bn_wd.fig9"), "no claim rests on bn_wd.fig9"),
        (("--scorecard", "003-99"), "there is no claim 003-99"),
    ],
)
def test_mistakes_end_in_one_line(call, tmp_path, arguments, message):
    made = call(*arguments)
    assert made.exit_code == 2
    assert message in made.output
    assert not list(tmp_path.iterdir())  # nothing was run before it was found


def test_a_picture_that_cannot_be_written_is_told_before_anything_runs(call, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # kaleido is an extra
    (tmp_path / "x.svg").mkdir()
    for picture, message in (
        (tmp_path / "x.svg", f"--picture {tmp_path / 'x.svg'} is a folder: name a file"),
        ("/dev/null/x.svg", "--picture /dev/null: no folder can be made there"),
    ):
        made = call("sln.fig7", "--size", "smoke", "--picture", picture)
        assert made.exit_code == 2
        assert message in made.output
    assert [one.name for one in tmp_path.iterdir()] == ["x.svg"]


def test_a_label_with_a_comma_is_one_label(call):
    shown = call("sln.table1", "--show", "--only", "loss=SLN,CE, decay 5e-4", "--only", "loss=LN")
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if line.startswith("│ CIFAR-10 ") and "ResNet-20" in line]
    assert {line.split("│")[3].strip() for line in lines} == {"SLN", "CE, decay 5e-4", "LN"}


def test_show_says_at_which_size_there_is_something(call, tmp_path):
    labels = {"dataset": "CIFAR-10", "model": "ResNet-20", "loss": "CE"}
    Store(tmp_path / "results").add("sln.table1", "paper", [Record(labels, 0, 164, {"test.accuracy": 0.9})])
    made = call("sln.table1", "--show")
    assert made.exit_code == 0
    assert "nothing at size small, but at paper: --size paper" in made.output


def test_a_run_without_a_result_costs_no_other_and_ends_the_command_with_one(call, tmp_path):
    arguments = ("sln.table4", "--size", "smoke", "--device", "cpu", "--workers", "1", "--only", "loss=CE")
    assert call(*arguments).exit_code == 0
    results = tmp_path / "results" / "sln" / "table4-smoke.csv"
    rows = len(Store(tmp_path / "results").read("sln.table4", "smoke").rows)
    broken = next((tmp_path / "runs").glob("*/result.json"))
    results.unlink()
    broken.write_text("{")
    made = call(*arguments)
    assert made.exit_code == 1, made.output
    assert f"{broken.relative_to(tmp_path)} is damaged" in made.output
    assert "Delete the folder and run the command again" in made.output
    assert len(Store(tmp_path / "results").read("sln.table4", "smoke").rows) == rows - 1
    broken.unlink()
    RunFolder(broken.parent).fail({"error": "not finite at step 3"})
    made = call(*arguments)
    assert made.exit_code == 1, made.output
    assert made.output.count("not finite at step 3") == 1
    assert "1 run without a result: see lastlayer status runs; --retry-failed runs what failed again" in made.output
    assert call(*arguments, "--show").exit_code == 0
    assert call(*arguments, "--retry-failed").exit_code == 0


def test_one_artifact_that_stops_keeps_nobody_from_showing_the_others(call, tmp_path):
    names = ["sln.fig7", "logit_separation.counterexamples"]
    ended = call(*names, "--data-root", tmp_path / "empty")
    assert ended.exit_code == 2, ended.output
    assert "sln.fig7: stopped: cifar10: no " in ended.output
    assert "smallest true - largest false logit" in ended.output.replace("\n", " ")
    assert (tmp_path / "results" / "logit_separation" / "counterexamples-small.csv").exists()


@pytest.mark.parametrize("names", [("sln.fig1", "sln.table1"), ("sln.fig1",)])
def test_a_figure_that_cannot_be_drawn_costs_no_table_and_no_verdict(call, tmp_path, names):
    """Figure 1 needs the logit difference, which these observations do not have."""
    store = Store(tmp_path / "results")
    store.add("sln.fig1", "small", [Record({"model": "ResNet-20"}, 0, 30, {"test.accuracy": 0.8125})])
    labels = {"dataset": "CIFAR-10", "model": "ResNet-20", "loss": "CE"}
    store.add("sln.table1", "small", [Record(labels, 0, 164, {"test.accuracy": 0.4375})])
    ended = call(*names, "--show")
    assert ended.exit_code != 0
    assert "logit_difference" in str(ended.exception)
    verdicts = [claim.id for claim in claims() if set(names) & set(needs(claim.id))]
    for seen in ("81.25 (1)", *verdicts):
        assert seen in ended.output
    if len(names) > 1:
        assert "sln.fig1: its figure cannot be shown: 'test.logit_difference" in ended.output
        assert "43.75 (1)" in ended.output
        assert len(verdicts) > 5  # of both


def test_observations_that_cannot_be_read_cost_the_others_nothing(call, tmp_path):
    file = Store(tmp_path / "results").path("bn_wd.fig9", "small")
    file.parent.mkdir(parents=True)
    file.write_text("no observations\n")
    ended = call("bn_wd.fig9", "sln.table1", "--show")
    assert ended.exit_code == 2
    assert "bn_wd.fig9: its table cannot be shown" in ended.output
    assert "92.05" in ended.output  # published, of sln.table1


def test_ctrl_c_after_the_training_says_that_nothing_is_lost_and_how_to_go_on(call, tmp_path, monkeypatch):
    def interrupted(done, plan):
        raise KeyboardInterrupt

    arguments = ("normalized_scaling.table3", "--size", "smoke", "--device", "cpu", "--workers", "1")
    with monkeypatch.context() as patched:
        patched.setattr("lastlayer.papers.normalized_scaling.over_splits", interrupted)
        patched.setattr("sys.argv", ["lastlayer", "reproduce", *arguments])
        made = call(*arguments)
    assert made.exit_code == 130
    assert f"To continue: lastlayer reproduce {' '.join(arguments)}" in made.output
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
    assert before
    assert call(*arguments).exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
