"""Many trials in real processes: killed, failing, resumed to the same bits."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lastlayer.runners import Placement, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial
from lastlayer.training.loop import finish_fit, fit

TRIAL = Trial(
    data=DataChoice("digits", train=256),
    model=ModelChoice("mlp", {"width": 16}),
    schedule=Schedule(epochs=3),
    evaluations=1,
)


def seeds(count: int, **changes: object) -> list[Trial]:
    return [dataclasses.replace(TRIAL, seed=seed, **changes).resolved() for seed in range(count)]  # type: ignore[arg-type]


def test_processes_finish_every_trial_and_a_second_call_skips_them(tmp_path: Path) -> None:
    trials = seeds(3)
    kinds = [event.kind for event in run_trials(trials, Placement(tmp_path, "cpu", workers=2))]
    assert kinds.count("done") == 3
    assert [event.kind for event in run_trials(trials, Placement(tmp_path, "cpu", workers=2))] == ["skip"] * 3


def test_a_failing_trial_does_not_stop_the_others_and_stays_failed_until_asked(tmp_path: Path) -> None:
    bad = dataclasses.replace(TRIAL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e4, weight_decay=0.0)).resolved()
    trials = [bad, *seeds(2)]
    events = list(run_trials(trials, Placement(tmp_path, "cpu", workers=2)))
    ends = {event.index: event for event in events if event.kind in ("done", "failed")}
    assert [ends[i].kind for i in range(3)] == ["failed", "done", "done"]
    assert "not finite" in ends[0].message
    again = list(run_trials(trials, Placement(tmp_path, "cpu")))
    assert [event.kind for event in again if event.index == 0] == ["failed"]
    assert "--retry-failed" in again[0].message
    retried = [e.kind for e in run_trials([bad], Placement(tmp_path, "cpu", retry_failed=True))]
    assert retried[0] == "start"


def test_a_worker_that_is_killed_fails_its_trial_alone(tmp_path: Path) -> None:
    trials = seeds(2, schedule=Schedule(epochs=200)) + seeds(2)
    killed = False
    ends: dict[int, str] = {}
    for event in run_trials(trials, Placement(tmp_path, "cpu", workers=2)):
        if event.kind == "progress" and event.index == 0 and not killed:
            children = subprocess.run(
                ["pgrep", "-P", str(os.getpid()), "-f", "spawn_main"], capture_output=True, text=True
            ).stdout.split()
            os.kill(int(children[0]), signal.SIGKILL)
            killed = True
        if event.kind in ("done", "failed"):
            ends[event.index] = event.kind
            if event.kind == "failed":
                assert "process died" in event.message
    assert killed
    assert sorted(ends.values()) == ["done", "done", "done", "failed"]


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from lastlayer.training import Trial, saving
from lastlayer.training.loop import fit

saving.SHARE = float("inf")  # a checkpoint after every epoch
when, what = sys.argv[3:]
replace = os.replace

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def replace_or_die(source, path):
    if when == "before" and Path(path).name == what:
        die()
    replace(source, path)
    if when == "after" and Path(path).name == what:
        die()

os.replace = replace_or_die
for number, _ in enumerate(fit(Trial.from_dict(json.loads(sys.argv[1])), sys.argv[2])):
    if when == "yield" and number == int(what):
        die()
"""

# one after the other in the same run: the work of six epochs, and what is written after them
DEATHS = [
    ("before", "trial.json"),
    ("before", "checkpoint-0000.pt"),
    ("after", "checkpoint-0001.pt"),
    ("yield", "6"),  # in the middle of an epoch
    ("before", "checkpoint-0004.pt"),  # whose line of metrics is written
    ("after", "checkpoint-0006.pt"),
    ("before", "weights.safetensors"),
    ("before", "result.json"),
]


@pytest.mark.usefixtures("checkpoint_after_every_epoch")
def test_kill_nine_at_any_moment_and_resume_gives_the_same_bits(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, schedule=Schedule(epochs=6), evaluations=3, loss=LossChoice("sln")).resolved()
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    finish_fit(fit(trial, whole))
    command = [sys.executable, "-c", SCRIPT, json.dumps(trial.to_dict()), str(cut.path)]
    for when, what in DEATHS:
        assert subprocess.run([*command, when, what]).returncode == -signal.SIGKILL, (when, what)
        assert cut.status == ("missing" if what == "trial.json" else "interrupted")
    subprocess.run([*command, "never", ""], check=True)
    assert cut.status == "done"
    for name in ("weights", "snapshots"):
        one, other = whole.tensors(name), cut.tensors(name)
        assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = whole.result(), cut.result()
    assert first["measures"] == second["measures"]
    assert [line["epoch"] for line in cut.metrics()] == list(range(7))
    assert sorted(path.name for path in cut.path.iterdir()) == sorted(path.name for path in whole.path.iterdir())


PARENT = """
import json, os, signal, sys
from pathlib import Path
from lastlayer.runners import Placement, run_trials
from lastlayer.training import Trial

if __name__ == "__main__":  # workers import this file
    trials = [Trial.from_dict(one) for one in json.loads(sys.argv[1])]
    for event in run_trials(trials, Placement(Path(sys.argv[2]), "cpu", workers=2)):
        if event.progress is not None and event.progress.epoch >= int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_killed_parent_and_the_rest_comes_to_the_same_bits(tmp_path: Path) -> None:
    trials = seeds(2, schedule=Schedule(epochs=60), evaluations=20)  # each of which is told
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    whole, cut = Placement(tmp_path / "whole", "cpu", workers=2), Placement(tmp_path / "cut", "cpu", workers=2)
    command = [sys.executable, str(script), json.dumps([trial.to_dict() for trial in trials])]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as each of two workers has
    for trial in trials:
        finish_fit(fit(trial, whole.folder(trial)))
    assert subprocess.run([*command, str(cut.root), "3"]).returncode == -signal.SIGKILL
    for trial in trials:  # the lock falls when the worker is gone
        until = time.monotonic() + 120
        while cut.folder(trial).status == "running" and time.monotonic() < until:
            time.sleep(0.05)
        assert cut.folder(trial).status != "running"
    assert any(cut.folder(trial).status == "interrupted" for trial in trials)
    subprocess.run([*command, str(cut.root), "1000"], check=True)
    for trial in trials:
        one, other = whole.folder(trial), cut.folder(trial)
        assert one.result()["measures"] == other.result()["measures"]
        weights = other.tensors("weights")
        assert all(torch.equal(value, weights[name]) for name, value in one.tensors("weights").items())
