"""`lastlayer compare` and `train` as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lastlayer import data
from lastlayer import load as lastlayer_load
from lastlayer.reports import GOALS
from lastlayer.runs import RunFolder
from tests.cli.commands import QUICK, lastlayer

pytestmark = pytest.mark.usefixtures("folder_of_its_own")


def test_a_comparison_leaves_a_table_a_page_and_the_models() -> None:
    code, said = lastlayer("compare", "--losses", "ce,sln:gamma=0.5,sln:gamma=0.9", "--seeds", "2", *QUICK)
    assert code == 0
    assert "sln gamma=0.5" in said
    assert "sln gamma=0.9" in said
    assert "Accuracy (rates not tuned): " in said
    assert "AUPRC" not in said
    (page,) = Path("runs").glob("compare-*.html")
    assert "sln" in page.read_text()
    runs = [path.parent for path in Path("runs").glob("*/result.json")]
    assert len(runs) == 6
    gammas = sorted(RunFolder(run).trial()["loss"]["options"].get("gamma", 0) for run in runs)
    assert gammas == [0, 0, 0.5, 0.5, 0.9, 0.9]


def test_goals_are_answered_and_a_report_of_the_same_runs_says_the_same() -> None:
    command = ("compare", "--losses", "ce,sln", "--seeds", "2", *QUICK, "--for", "calibration,open-set,accuracy")
    code, said = lastlayer(*command)
    assert code == 0
    assert said.index("The data cannot answer open-set") < said.index("Log-loss")
    flat = " ".join(said.split())
    for words in (
        "Log-loss (rates not tuned): ",
        "Open-set score: the data cannot answer",
        "Accuracy (rates not tuned): ",
    ):
        assert words in flat
    (file,) = Path("runs").glob("compare-*.json")
    again = lastlayer("report", str(file))[1]
    start = said.index("digits: 2 losses")
    assert again[: again.index("page: ")].splitlines() == said[start : said.index("page: ")].splitlines()
    everything = lastlayer(*command, "--all")[1]
    assert "AUPRC ↑" in everything
    assert "NC1 ↓" in everything


def test_every_goal_is_answered_from_what_runs_keep_of_their_test_rows() -> None:
    """The values that are compared are the means over the rows whose noise is measured."""
    options = ["--train-samples", "900", "--unknown", "3", "--long-tail", "20", "--for", ",".join(GOALS)]
    code, said = lastlayer("compare", "--losses", "ce,sln", "--seeds", "2", *QUICK, *options)
    assert code == 0
    assert said.count("95 % confidence, ") >= len(GOALS)
    for path in Path("runs").glob("*/result.json"):
        result, rows = RunFolder(path.parent).result(), RunFolder(path.parent).tensors("rows")
        measured, counts = result["measures"]["test"], torch.tensor(result["data"]["counts"])
        right = (rows["decision"] == rows["target"]).double()
        recalls = torch.stack([right[rows["target"] == k].mean() for k in range(len(counts))])
        found = {
            "accuracy": right.mean(),
            "balanced_accuracy": recalls.mean(),
            "few": recalls[counts < 20].mean(),
            "nll": rows["log_loss"].double().mean(),
            "nearest_mean": rows["unknown_right"].double().mean(),
        }
        assert {name: float(value) for name, value in found.items()} == pytest.approx(
            {name: measured[name] for name in found}, rel=1e-5
        )
        for name in ("auprc", "oscr"):  # the middle of the resamples
            assert abs(float(rows[f"draw.{name}"].mean()) - measured[name]) < float(rows[f"draw.{name}"].std())


@pytest.mark.parametrize(
    ("goals", "words"),
    [
        ("open-set", "The data cannot answer open-set: they have no test samples of unknown classes."),
        ("balanced,acuracy", "goal 'acuracy' is unknown (did you mean 'accuracy'?)"),
        ("tail", "no class has fewer than 20 training samples; the smallest has"),
    ],
)
def test_goals_without_an_answer_stop_before_anything_is_trained(goals: str, words: str) -> None:
    code, said = lastlayer("compare", "--losses", "ce,sln", *QUICK, "--train-samples", "600", "--for", goals)
    assert code == 2
    assert words in " ".join(said.split())
    assert not list(Path().glob("runs/*"))


def test_what_was_made_of_data_and_model_is_said() -> None:
    numpy.savez("points.npz", x=numpy.random.default_rng(0).normal(size=(60, 3)), y=numpy.arange(60) % 3)
    Path("my_net.py").write_text(
        "from torch import nn\n\n\ndef net(): return nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 3))\n"
    )
    options = ["--seeds", "2", "--epochs", "1", "--workers", "1", "--losses", "ce,sln"]
    code, said = lastlayer("compare", "--data", "points.npz", "--model", "my_net:net", *options)
    assert code == 0
    assert said.count("test set: each seed tests on another fifth of each class") == 1
    assert said.count("model my_net:net: the head takes the place of its last layer (1, 8 to 3)\n") == 1


MY_LOSSES = """
import torch.nn.functional as F
from torch import nn
from lastlayer.losses import Loss


def rooted(logits, target, *, power: float = 0.5):
    return F.cross_entropy(logits, target) ** power


class RootedLoss(Loss):
    function = staticmethod(rooted)
    learning_rate = 0.05


class Plain:
    pass
"""


@pytest.mark.usefixtures("import_path")
def test_a_loss_of_ones_own_is_compared_and_loaded() -> None:
    Path("own_losses.py").write_text(MY_LOSSES)
    losses = "ce,own_losses.rooted,own_losses.RootedLoss,own_losses.RootedLoss:power=0.9"
    code, said = lastlayer("compare", "--losses", losses, "--seeds", "1", *QUICK[:-2], "2", "--no-tune")
    assert code == 0, said
    assert "own_losses.RootedLoss power=0.9" in " ".join(said.split())
    runs = [path.parent for path in Path("runs").glob("*/result.json")]
    trials = [RunFolder(run).trial() for run in runs]
    assert sorted(trial["optimiser"]["lr"] for trial in trials) == [0.05] * 2 + [0.1] * 2
    powers = {lastlayer_load(run, trust=["own_losses"]).loss.hyperparameters().get("power") for run in runs}
    assert powers == {None, 0.5, 0.9}


@pytest.mark.usefixtures("import_path")
def test_runs_of_older_code_of_ones_own_are_told_as_such() -> None:
    Path("own.py").write_text(MY_LOSSES + "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))\n")
    Path("names.py").write_text("from own import RootedLoss\n")

    def compare() -> dict[str, list[str]]:
        """What is said to have changed, and the folders of its runs."""
        for module in ("own", "names"):  # as a new command would read them
            sys.modules.pop(module, None)
        code, said = lastlayer(
            "compare", "--losses", "ce,names.RootedLoss", "--model", "own:net", "--seeds", "2", *QUICK
        )
        assert code == 0, said
        lines = [line.partition(" has changed since ") for line in said.splitlines() if " has changed since " in line]
        return {what: rest.partition("delete ")[2].split() for what, _, rest in lines}

    assert compare() == {}
    assert compare() == {}
    Path("own.py").write_text(
        Path("own.py").read_text().replace("0.5", "0.6789")
    )  # where what names.py names is defined
    changed = compare()
    assert {what: len(folders) for what, folders in changed.items()} == {"loss names.RootedLoss": 2, "model own:net": 4}
    assert set(changed["loss names.RootedLoss"]) < set(changed["model own:net"])
    for folder in changed["model own:net"]:
        shutil.rmtree(folder)
    assert compare() == {}


@pytest.mark.usefixtures("import_path")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other_losses.RotedLoss", ["'other_losses'", "'RotedLoss' (did you mean 'RootedLoss'?)"]),
        ("other_losses.Plain", ["derived from lastlayer.losses.Loss"]),
        ("nowhere.Loss", ["module 'nowhere' cannot be imported"]),
        ("other_losses.RootedLoss:powr=1", ["'powr' (did you mean 'power'?)"]),
    ],
)
def test_mistakes_in_naming_a_loss_of_ones_own(monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]) -> None:
    monkeypatch.delitem(sys.modules, "other_losses", raising=False)
    Path("other_losses.py").write_text(MY_LOSSES)
    code, said = lastlayer("compare", "--losses", name, *QUICK)
    assert code == 2
    assert all(word in said for word in words)


def test_a_folder_that_cannot_be_written_is_told_by_its_name(failing_disk: Callable[..., Any]) -> None:
    with failing_disk():
        code, said = lastlayer("compare", "--losses", "ce", "--seeds", "1", *QUICK)
    assert code == 2
    assert "--out runs: nothing can be written there (No space left on device); choose another" in said


def test_a_folder_of_images_is_decoded_once_for_all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="NOT TESTED: folders of images, because Pillow is not installed")
    for part, count in (("train", 4), ("test", 2)):
        for kind in ("cat", "dog"):
            Path(part, kind).mkdir(parents=True)
            for number in range(count):
                image.new("L", (8, 8), 40 * number).save(Path(part, kind, f"{number}.png"))
    opened: list[str] = []
    open_image = image.open
    monkeypatch.setattr(image, "open", lambda file, *rest: opened.append(str(file)) or open_image(file, *rest))
    data.load(".")
    by_one = len(opened)
    opened.clear()
    # in this process: worker processes are tested in tests/runners/test_processes.py
    options = ["--data", ".", "--epochs", "1", "--workers", "1", "--set", "evaluations=1"]
    assert lastlayer("compare", "--losses", "ce,sln", "--seeds", "2", *options)[0] == 0
    assert len(opened) == by_one > 0


def test_the_same_command_again_trains_nothing() -> None:
    command = ("compare", "--losses", "ce", "--seeds", "1", *QUICK)
    lastlayer(*command)
    (result,) = Path("runs").glob("*/result.json")
    before = result.stat().st_mtime_ns
    assert lastlayer(*command)[0] == 0
    assert result.stat().st_mtime_ns == before


def test_runs_on_other_content_of_the_same_file_are_not_shown_as_runs_on_this() -> None:
    def write(seed: int) -> None:
        numpy.savez("points.npz", x=numpy.random.default_rng(seed).normal(size=(60, 3)), y=numpy.arange(60) % 3)

    command = ("compare", "--data", "points.npz", "--losses", "ce", "--seeds", "1", "--epochs", "1", "--workers", "1")
    write(0)
    assert lastlayer(*command)[0] == 0
    write(1)
    code, said = lastlayer(*command)
    assert code == 2
    assert "points.npz has changed since" in said


def test_a_damaged_result_is_named_and_the_command_fails() -> None:
    command = ("compare", "--losses", "ce", "--seeds", "2", *QUICK)
    lastlayer(*command)
    result = next(Path("runs").glob("*/result.json"))
    result.write_text(result.read_text().replace('"accuracy": 0', '"accuracy": 1', 1))
    code, said = lastlayer(*command)
    assert code == 1
    assert "result.json is damaged: SHA-256 expected" in said
    assert "1 of 2 trials are not done" in said


def test_a_loss_that_diverges_is_shown_and_the_command_fails() -> None:
    command = ("compare", "--losses", "ce,mse", "--seeds", "1", *QUICK, "--lr", "100000")
    for _ in range(2):  # trained, and found failed
        code, said = lastlayer(*command)
        assert code == 1
        for loss in ("ce", "mse"):  # once: where nobody looks on there is no need to tell it before the table
            (line,) = [line for line in said.splitlines() if f"{loss} seed 0: the loss is not finite at step" in line]
            assert line.split()[0] == "failed"
        assert "failed: " not in said
        assert "2 of 2 trials are not done" in said


def test_a_failure_that_could_not_be_written_down_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full(written: str, path: Path) -> None:
        if Path(path).name.startswith(("checkpoint", "failure")):
            raise OSError(28, "No space left on device")
        replace(written, path)

    monkeypatch.setattr("os.replace", full)
    code, said = lastlayer("compare", "--losses", "ce", "--seeds", "1", *QUICK)
    assert code == 1
    assert "failed: ce seed 0: OSError: [Errno 28] No space left on device" in said
    assert "interrupted ce seed 0: stopped after epoch 0; run the command again to resume it" in said


def test_a_comparison_of_one_trial_has_its_page_and_a_training_has_none() -> None:
    assert "page: " not in lastlayer("train", *QUICK[:-3])[1]
    code, said = lastlayer("compare", "--losses", "ce", "--seeds", "1", *QUICK)
    assert code == 0
    (page,) = Path("runs").glob("*.html")
    assert f"page: {page}" in said
    assert "ce" in page.read_text()


def test_a_teacher_of_other_data_is_refused_before_anything_is_trained() -> None:
    _, said = lastlayer("train", "--data", "iris", "--epochs", "1")
    run = said.splitlines()[-1].removeprefix("run: ")
    code, said = lastlayer("compare", "--losses", "kd", "--teacher", run)
    assert code == 2
    assert "3 classes" in said
    assert "digits has 10" in said
    _, said = lastlayer("train", "--set", "data.options.seed=3", "--epochs", "1")
    code, said = lastlayer("compare", "--losses", "kd", "--teacher", said.splitlines()[-1].removeprefix("run: "))
    assert code == 2
    assert "normalised unlike" in said


def test_a_damaged_teacher_is_refused_before_anything_is_trained() -> None:
    _, said = lastlayer("train", *QUICK[:-3])
    teacher = said.splitlines()[-1].removeprefix("run: ")
    weights = Path(teacher) / "weights.safetensors"
    whole = weights.read_bytes()
    command = ["compare", "--losses", "kd,fn-kd", "--seeds", "2", "--teacher", teacher, *QUICK, "--out", "pupils"]
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, said = lastlayer(*command)
    assert code == 2
    assert said.count(f"{weights} is damaged") == 1
    weights.unlink()
    code, said = lastlayer(*command)
    assert code == 2
    assert said.count(f"teacher {teacher} is no finished run") == 1
    assert not Path("pupils").exists()


def test_a_run_whose_code_was_changed_is_refused_in_one_line() -> None:
    layers = "nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, 10)"
    text = f"from torch import nn\n\n\ndef net(): return nn.Sequential({layers})\n"
    Path("changing_net.py").write_text(text.format(width=8))
    code, said = lastlayer("train", *QUICK[:-3], "--model", "changing_net:net")
    assert code == 0, said
    run = said.splitlines()[-1].removeprefix("run: ")
    Path("changing_net.py").write_text(text.format(width=128))
    del sys.modules["changing_net"]
    for command in (["export", run, "--format", "safetensors"], ["compare", "--losses", "kd,fn-kd", "--teacher", run]):
        code, said = lastlayer(*command, "--trust", "changing_net")
        assert code == 2
        assert said.startswith(f"lastlayer {command[0]}: the weights of {run} do not fit model changing_net:net")
        assert said.count("\n") == 1
    Path("changing_net.py").unlink()
    del sys.modules["changing_net"]
    code, said = lastlayer("compare", "--losses", "kd", "--seeds", "2", "--teacher", run, "--trust", "changing_net")
    assert code == 2
    assert said.count("module 'changing_net' cannot be imported") == 1


def test_a_teacher_teaches_the_losses_that_learn_from_one() -> None:
    _, said = lastlayer("train", *QUICK[:-3])
    teacher = said.splitlines()[-1].removeprefix("run: ")
    code, said = lastlayer("compare", "--losses", "ce,kd", "--seeds", "1", "--teacher", teacher, *QUICK)
    assert code == 0, said
    # all test on the same samples: those of other folds may have trained the teacher, which is itself the run of ce
    trials = [RunFolder(path.parent).trial() for path in Path("runs").glob("*/result.json")]
    assert {trial["data"].get("fold") for trial in trials} == {None}
    assert sorted((trial["loss"]["name"], trial["teacher"]) for trial in trials) == [("ce", None), ("kd", teacher)]
    code, said = lastlayer("compare", "--losses", "ce,sln", "--teacher", teacher)
    assert code == 2
    assert "a teacher goes with loss fn-kd or kd, got loss ce" in said


def test_tensorboard_gets_every_number() -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert lastlayer("train", "--loss", "ce", *QUICK[:-3], "--tensorboard", "logs")[0] == 0
    (folder,) = Path("logs").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    (result,) = Path("runs").glob("*/result.json")
    expected = json.loads(result.read_text())["measures"]["test"]["accuracy"]
    assert events.Scalars("test/accuracy")[-1].value == pytest.approx(expected)
    assert [scalar.step for scalar in events.Scalars("loss")] == [1, 2]


@pytest.mark.parametrize("folder", ["file", "file/logs", "/dev/null/logs"])
def test_logs_that_cannot_be_written_fail_no_trial(folder: str) -> None:
    pytest.importorskip("tensorboard")
    Path("file").write_text("")
    code, said = lastlayer("compare", "--losses", "ce,sln", *QUICK, "--tensorboard", folder)
    assert code == 2
    assert said.count(f"--tensorboard {folder}: no folder can be made there") == 1
    assert not Path("runs").exists()


def test_without_tensorboard_no_trial_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, said = lastlayer("compare", "--losses", "ce,sln", *QUICK, "--tensorboard", "logs")
    assert code == 2
    assert said.count("pip install 'lastlayer[tensorboard]'") == 1
    assert not Path("runs").exists()


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on() -> None:
    """Also when it comes while the workers still import, where the system lets us see them."""
    command = [sys.executable, "-c", "from lastlayer.cli import main; main()"]
    arguments = "compare --losses ce,sln --seeds 1 --epochs 400 --set evaluations=1 --workers 2 --no-tune"
    process = subprocess.Popen(
        [*command, *arguments.split()], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 300
    if sys.platform == "linux":
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(started := children.read_text().split()) < 3 and time.monotonic() < until:  # and Python's tracker
            time.sleep(0.01)
        for child in started:
            os.kill(int(child), signal.SIGINT)
    while not list(Path("runs").glob("*/checkpoint-*")) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"To continue: lastlayer {arguments}" in said
    statuses = [RunFolder(path.parent).status for path in Path("runs").glob("*/trial.json")]
    assert statuses
    assert set(statuses) == {"interrupted"}
