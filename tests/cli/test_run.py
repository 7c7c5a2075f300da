"""What is shown while trials run: names, progress in a terminal, a line now and then elsewhere."""

import io
import itertools
import re
import time

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from typer.testing import CliRunner

from lastlayer.cli import app

# private: what is shown at a given moment cannot be seen from outside
from lastlayer.cli._run import _Show, _shown, names_of
from lastlayer.runners import Event, Placement, run_trials
from lastlayer.training import DataChoice, LossChoice, Schedule, Trial
from lastlayer.training import Progress as Moment
from lastlayer.training.trial import ModelChoice


def sln(gamma: float, seed: int = 0) -> Trial:
    return Trial(loss=LossChoice("sln", {"gamma": gamma}), seed=seed)


def test_two_settings_of_a_loss_have_names_of_their_own() -> None:
    trials = [sln(0.5), sln(0.5, 1), sln(0.9), Trial()]
    assert names_of(trials) == ["sln gamma=0.5 seed 0", "sln gamma=0.5 seed 1", "sln gamma=0.9 seed 0", "ce seed 0"]


def test_the_whole_moves_with_its_parts() -> None:
    bars = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    show = _Show(bars, [Trial(seed=seed) for seed in range(4)])
    whole = bars.tasks[0]
    show(Event(0, "start"))
    show(Event(0, "progress", Moment(epoch=4, epochs=10, step=50, steps=100, loss=1.0, accuracy=0.5)))
    assert whole.completed == pytest.approx(0.5)
    show(Event(1, "skip"))
    assert whole.completed == pytest.approx(1.5)
    show(Event(0, "start"))  # again, having waited for memory
    assert len(bars.tasks) == 2
    show(Event(0, "done"))
    assert whole.completed == pytest.approx(2.0)
    assert len(bars.tasks) == 1


def test_where_there_is_no_terminal_a_line_now_and_then_says_how_far_all_are(tmp_path, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said = io.StringIO()
    bars = Progress(TextColumn("{task.description}"), console=Console(file=said, width=200), disable=True)
    show = _Show(bars, [Trial(seed=seed) for seed in range(4)], Placement(tmp_path, "cpu"))

    def after(seconds: float, event: Event) -> str:
        before = len(said.getvalue())
        clock[0] += seconds
        show(event)
        return said.getvalue()[before:]

    def moment(step: int) -> Moment:
        return Moment(epoch=0, epochs=10, step=step, steps=100, loss=1.0, accuracy=0.5)

    assert after(1, Event(0, "start")) == ""
    assert after(28, Event(0, "progress", moment(20))) == ""
    assert after(1, Event(0, "progress", moment(25))) == "30 s: 0 of 4 trials ended, 1 running (25% trained)\n"
    assert after(1, Event(1, "start")) == ""
    assert after(20, Event(1, "progress", moment(75))) == ""
    assert after(10, Event(0, "progress", moment(27))) == "61 s: 0 of 4 trials ended, 2 running (51% trained)\n"
    assert after(5, Event(0, "done")) == after(5, Event(1, "done")) == ""
    assert after(3600, Event(2, "skip")) == "3671 s: 3 of 4 trials ended\n"


@pytest.mark.parametrize(("seeds", "said"), [(1, "1 trial"), (2, "2 trials")])
def test_the_line_of_all_trials_counts_them(seeds: int, said: str) -> None:
    bars = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    _Show(bars, [Trial(seed=seed) for seed in range(seeds)])
    assert bars.tasks[0].description == said


def test_a_trial_that_measures_says_so_from_its_first_batch_on(tmp_path) -> None:
    trial = Trial(data=DataChoice("digits", train=128), schedule=Schedule(epochs=2), evaluations=1).resolved()
    bars = Progress(TextColumn("{task.fields[state]}"), console=Console(file=io.StringIO()))
    show = _Show(bars, [trial])
    said = []
    for event in run_trials([trial], Placement(tmp_path, "cpu")):
        show(event)
        said += [task.fields["state"] for task in bars.tasks[1:]]
    states = [state for state, _ in itertools.groupby(said)]
    assert states[:3] == ["loading", "measuring", "epoch 1/2"]
    assert re.fullmatch(r"measuring  loss \d\.\d{4}  accuracy \d+\.\d%", states[-1])


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        (40, "epoch 5/100 --:--"),
        (60, "epoch 5/100 --:--"),
        (80, "epoch 5/100  accuracy 50.0% --:--"),
        (120, "epoch 5/100  loss 1.0000  accuracy 50.0% --:--"),
    ],
)
def test_names_are_whole_in_a_narrow_terminal(monkeypatch, columns: int, seen: str) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    trials = [
        Trial(loss=LossChoice("sln", {"gamma": gamma}), model=ModelChoice(model), seed=seed)
        for gamma in (0.5, 0.9) for model in ("resnet20", "resnet32") for seed in (0, 1)
    ]  # fmt: skip
    page = Console(file=io.StringIO(), width=columns, force_terminal=False, color_system=None)
    with _shown(trials, Placement("runs", "cpu")) as show:
        for index in range(len(trials)):
            show(Event(index, "start"))
            show(Event(index, "progress", Moment(epoch=4, epochs=100, step=50, steps=100, loss=1.0, accuracy=0.5)))
        page.print(show.bars.get_renderable())
    lines = page.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(seen in line for line in lines) == len(trials)
    names = " ".join(" ".join(re.split(" {2,}| epoch|━", line)[0] for line in lines).split())
    for name in names_of(trials):
        assert name in names
    assert ("━" in "".join(lines)) == (columns == 120)
    assert "…" not in "".join(lines)


TRAIN = ["train", "--train-samples", "256", "--out"]


@pytest.mark.parametrize("columns", [60, 140])
def test_a_terminal_shows_epoch_loss_accuracy_and_time_left(tmp_path, columns: int) -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(columns)}
    shown = CliRunner().invoke(app, [*TRAIN, str(tmp_path), "--epochs", "200"], env=terminal)
    assert shown.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.stderr)
    assert re.search(r"ce seed 0 .*epoch \d+/200  loss \d\.\d{4}  accuracy \d+\.\d% \d\d:\d\d", text)
    assert "…" not in text


def test_a_pipe_shows_a_note_and_the_table_alone(tmp_path) -> None:
    said = CliRunner().invoke(app, [*TRAIN, str(tmp_path), "--epochs", "2"], env={"FORCE_COLOR": None})
    assert [line.split()[0] for line in said.stderr.splitlines()] == ["test", "random"]  # how the data were split
    assert "\x1b" not in said.stdout
    assert "epoch 1/2" not in said.stdout
    assert "loss  accuracy  balanced accuracy" in said.stdout


@pytest.mark.parametrize(("losses", "word"), [("sln:gamma=5", "[0.0, 1.0]"), ("ce,ce", "ce is there twice")])
def test_heads_on_embeddings_are_checked_before_anything_is_trained(tmp_path, losses: str, word: str) -> None:
    target = np.arange(40) % 4
    np.savez(tmp_path / "features.npz", features=np.eye(4, 6)[target], target=target)
    out = tmp_path / "runs"
    said = CliRunner().invoke(
        app, ["linear-probe", "--features", str(tmp_path / "features.npz"), "--losses", losses, "--out", str(out)]
    )
    assert said.exit_code == 2
    assert word in said.output
    assert not out.exists()
