"""`lastlayer status` on folders in every state, a run that another process holds among them."""

import dataclasses
import json
import multiprocessing
import re
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from lastlayer._core.files import write_json
from lastlayer.cli.status import status
from lastlayer.runs import RunFolder
from lastlayer.training.trial import DataChoice, LossChoice, ModelChoice, Trial

runner = CliRunner()
app = typer.Typer()
app.command()(status)


def trial(seed: int) -> Trial:
    return dataclasses.replace(Trial(loss=LossChoice("sln", {"gamma": 0.5})), seed=seed)


def start(root: Path, seed: int) -> RunFolder:
    run = RunFolder(root / trial(seed).identity)
    run.path.mkdir(parents=True)
    run.start(trial(seed).to_dict())
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Seed 0 done, 1 interrupted after epoch 7, 2 failed, 3 missing, and a run no comparison asked for."""
    root = tmp_path / "runs"
    start(root, 0).finish({"trial": trial(0).to_dict()}, {"w": torch.zeros(1)}, {})
    interrupted = start(root, 1)
    for epoch in (6, 7):
        interrupted.append_metrics({"epoch": epoch})
    start(root, 2).fail({"error": "the loss is not finite at step 12"})
    start(root, 99)
    asked = [{"identity": trial(seed).identity, "trial": trial(seed).to_dict()} for seed in range(4)]
    write_json(root / "compare-1.json", {"title": "one", "trials": asked, "command": "lastlayer compare --seeds 4"})
    return root


def run(*arguments, code=0):
    result = runner.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def survey(root):
    found = json.loads(run(root, "--json").stdout)
    return found, {each["identity"]: each for each in found["runs"]}


def test_every_state_is_told(root):
    found, runs = survey(root)
    assert found["counts"] == {"done": 1, "interrupted": 2, "failed": 1, "missing": 1}
    assert [runs[trial(seed).identity]["status"] for seed in range(4)] == ["done", "interrupted", "failed", "missing"]
    assert runs[trial(1).identity]["epoch"] == 7
    assert runs[trial(1).identity]["epochs"] == 30
    assert runs[trial(2).identity]["reason"] == "the loss is not finite at step 12"
    missing = runs[trial(3).identity]
    assert (missing["loss"], missing["seed"], missing["data"]) == ("sln gamma=0.5", 3, "digits")
    assert missing["comparisons"] == ["compare-1.json"]
    assert runs[trial(99).identity]["comparisons"] == []
    (comparison,) = found["comparisons"]
    assert comparison["counts"] == {"done": 1, "interrupted": 1, "failed": 1, "missing": 1}


def test_the_table_has_reason_and_command(root):
    output = run(root).stdout
    assert "the loss is not finite at step 12" in output
    assert "continue (add --retry-failed to run again what failed): lastlayer compare --seeds 4" in output
    assert "7/30" in output
    assert "1 done, 2 interrupted, 1 failed, 1 missing" in output


def hold(folder, held, let_go):
    with RunFolder(folder).locked():
        held.set()
        let_go.wait(60)


def test_a_run_held_by_another_process_is_running(root):
    folder = root / trial(1).identity
    context = multiprocessing.get_context("fork")  # which starts at once
    held, let_go = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(folder, held, let_go))
    holder.start()
    try:
        assert held.wait(60)
        assert survey(root)[1][folder.name]["status"] == "running"
    finally:
        let_go.set()
        holder.join(60)
    assert survey(root)[1][folder.name]["status"] == "interrupted"


def test_damaged_files_are_told_not_hidden(root):
    file = root / trial(0).identity / "result.json"
    file.write_bytes(file.read_bytes().replace(b'"sln"', b'"sLn"'))
    runs = survey(root)[1]
    assert runs[trial(0).identity]["status"] == "damaged"
    assert "SHA-256" in runs[trial(0).identity]["reason"]
    assert "Delete the folder and run the command again" in runs[trial(0).identity]["reason"]
    comparison = root / "compare-1.json"
    comparison.write_text(comparison.read_text()[:50])
    assert "damaged" in survey(root)[0]["comparisons"][0]
    assert run(root).exit_code == 0


@pytest.mark.parametrize("left", [0, 5, -1])
@pytest.mark.parametrize("name", ["weights", "snapshots"])
def test_a_run_whose_tensors_are_cut_is_damaged(root, name, left):
    path = root / trial(0).identity / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    _, runs = survey(root)
    told = runs[trial(0).identity]
    assert told["status"] == "damaged"
    assert str(path) in told["reason"]
    assert "Delete the folder and run the command again" in told["reason"]


def test_a_run_that_was_copied_without_its_weights_is_done(root):
    (root / trial(0).identity / "weights.safetensors").unlink()
    assert survey(root)[1][trial(0).identity]["status"] == "done"


def test_mistakes_are_one_line(tmp_path):
    for folder, said in ((tmp_path / "none", "no such folder"), (tmp_path, "holds no runs")):
        error = run(folder, code=2).stderr
        assert said in error
        assert error.count("\n") == 1
    assert json.loads(run(tmp_path, "--json").stdout)["runs"] == []


def test_a_reason_is_said_once_for_all_the_runs_it_stopped(root):
    start(root, 5).fail({"error": "the loss is not finite at step 12"})
    said = run(root).output
    assert said.count("not finite at step 12") == 1
    line = next(line for line in said.splitlines() if "not finite at step 12" in line)
    assert trial(2).identity in line
    assert trial(5).identity in line


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_tells_runs_apart(tmp_path, columns):
    trials = [
        dataclasses.replace(Trial(data=DataChoice("tiny-imagenet", {"size": 32}), loss=loss), model=ModelChoice(model))
        for loss in (LossChoice("sln", {"gamma": 0.5}), LossChoice("sln", {"gamma": 0.9}), LossChoice("max-margin"))
        for model in ("resnet20", "resnet32")
    ]
    asked = [{"identity": one.identity, "trial": one.to_dict()} for one in trials]
    write_json(tmp_path / "compare-1.json", {"title": "one", "trials": asked, "command": "lastlayer compare"})
    seen = runner.invoke(app, [str(tmp_path)], env={"COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm"})
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.output).split("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    starts = [number for number, line in enumerate(lines) if "missing" in line]
    for one in trials:
        place = next(number for number in starts if lines[number].startswith(one.identity))
        end = min((number for number in starts if number > place), default=len(lines))
        said = " ".join(" ".join(line[33:] for line in lines[place:end]).replace(",", " ").split())
        options = [f"{name}={value}" for name, value in one.loss.options.items()]
        for word in (one.model.name, one.loss.name, *options):
            assert word in said
    shared = "all with data tiny-imagenet size=32, head linear"
    assert lines[0].startswith(shared if columns < 120 else "run  ")
