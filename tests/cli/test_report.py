import csv
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from lastlayer.cli.report import report

# Test folders cannot import from each other.
factory = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "reports" / "factory.py")))
trial = factory.trial

app = typer.Typer()
app.command()(report)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    for loss in ("ce", "sln"):
        for seed in range(2):
            factory.done(folder, trial(loss, seed))
    return folder


def test_tables_and_a_page_beside_the_runs(root):
    made = run(root)
    assert made.exit_code == 0, made.output
    assert "Accuracy (tuning unknown): no difference shown" in made.output
    assert "report.html" in made.output
    assert "<h1>2 losses on digits</h1>" in (root / "report.html").read_text()


def test_page_and_values_where_asked_for(root, tmp_path):
    page, values = tmp_path / "deep" / "page.html", tmp_path / "values.csv"
    made = run(root, "--out", page, "--csv", values, "--all")
    assert made.exit_code == 0, made.output
    assert page.exists()
    assert "log Z mean" in made.output
    with values.open(newline="") as file:
        assert {row["group"] for row in csv.DictReader(file)} == {"ce", "sln"}
    assert not (root / "report.html").exists()


def test_several_run_folders_or_a_comparison_file(root):
    folders = [root / factory.identity(trial("ce", seed)) for seed in range(2)]
    made = run(*folders)
    assert made.exit_code == 0, made.output
    assert "1 loss on digits" in made.output
    assert (root / "report.html").exists()
    file = factory.comparison(root, [trial("sln", seed) for seed in range(3)], title="Three seeds")
    for arguments in ([file], [root], [root, "--comparison", "one"]):
        made = run(*arguments)
        assert made.exit_code == 0, made.output
        assert "Three seeds" in made.output
        assert "missing" in made.output
        assert "sln seed 2" in made.output


def test_unfinished_runs_only(tmp_path):
    factory.failed(tmp_path, trial("ce"), "NaN at step 7")
    factory.cut(tmp_path, trial("sln"))
    made = run(tmp_path)
    assert made.exit_code != 0
    assert "NaN at step 7" in made.output
    assert "is done (1 failed, 1 interrupted)" in str(made.exception) or "(1 interrupted, 1 failed)" in str(
        made.exception
    )


def test_a_folder_without_runs(tmp_path):
    made = run(tmp_path)
    assert isinstance(made.exception, FileNotFoundError)
    assert "holds no runs" in str(made.exception)


def test_one_of_several_that_is_not_there_is_no_report(root, tmp_path):
    (tmp_path / "empty").mkdir()
    for other, why in (("nowhere", "there is no folder"), ("empty", "holds no runs")):
        made = run(root, tmp_path / other)
        assert isinstance(made.exception, FileNotFoundError)
        assert why in str(made.exception)
        assert str(tmp_path / other) in str(made.exception)
    assert not (root / "report.html").exists()


@pytest.mark.parametrize("option", ["--out", "--csv"])
def test_a_folder_for_a_file_is_told_first(root, tmp_path, option):
    made = run(root, option, tmp_path)
    assert str(made.exception) == f"{option} {tmp_path} is a folder: name a file"
    assert not made.output


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(root, failing_disk):
    with failing_disk(PermissionError(13, "Permission denied")):
        made = run(root)
    assert "Accuracy (tuning unknown): no difference shown" in made.output
    assert str(made.exception) == (
        f"there is no page: {root} cannot be written (Permission denied); name a file in another folder with --out"
    )


def test_a_damaged_result_is_named_and_the_rest_reported(root):
    path = root / factory.identity(trial("ce", 0)) / "result.json"
    path.write_text(path.read_text().replace("0.5", "0.6", 1))
    made = run(root)
    assert made.exit_code == 0
    flat = made.output.replace("\n", "")
    assert str(path) in flat
    assert "Delete the folder" in flat
    assert "ce (1 of 2)" in made.output


def test_a_run_of_which_nothing_can_be_read_is_counted(root):
    folder = root / factory.identity(trial("ce", 0))
    for name in ("trial.json", "result.json"):
        (folder / name).write_text("")
    assert "1 of 4 runs are not in the table" in run(root).output


def test_values_for_a_folder_that_is_not_there_are_told_first(root, tmp_path):
    file = tmp_path / "nowhere" / "values.csv"
    made = run(root, "--csv", file)
    assert str(made.exception) == f"--csv {file}: its folder does not exist; make it, or name a file in another"
    assert not made.output


def test_goals_of_the_report_and_one_that_is_misspelt(root):
    made = run(root, "--for", "calibration,transfer")
    assert made.exit_code == 0, made.output
    flat = " ".join(made.output.split())
    assert "Log-loss: no difference in log-loss can be judged" in flat
    assert "the data cannot answer transfer" in flat
    assert "did you mean 'calibration'?" in str(run(root, "--for", "calibratoin").exception)
