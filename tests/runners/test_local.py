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

from lastlayer.runners import Plan, run_trials
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
    kinds = [event.kind for event in run_trials(trials, Plan(tmp_path, "cpu", workers=2))]
    assert kinds.count("done") == 3
    assert [event.kind for event in run_trials(trials, Plan(tmp_path, "cpu", workers=2))] == ["skip"] * 3


def test_a_failing_trial_does_not_stop_the_others_and_stays_failed_until_asked(tmp_path: Path) -> None:
    bad = dataclasses.replace(TRIAL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e4, weight_decay=0.0)).resolved()
    trials = [bad, *seeds(2)]
    events = list(run_trials(trials, Plan(tmp_path, "cpu", workers=2)))
    ends = {event.index: event for event in events if event.kind in ("done", "failed")}
    assert [ends[i].kind for i in range(3)] == ["failed", "done", "done"]
    assert "not finite" in ends[0].message
    again = list(run_trials(trials, Plan(tmp_path, "cpu")))
    assert [event.kind for event in again if event.index == 0] == ["failed"]
    assert "--retry-failed" in again[0].message
    retried = [e.kind for e in run_trials([bad], Plan(tmp_path, "cpu", retry_failed=True))]
    assert retried[0] == "start"


def test_a_worker_that_is_killed_fails_its_trial_alone(tmp_path: Path) -> None:
    trials = seeds(2, schedule=Schedule(epochs=200)) + seeds(2)
    killed = False
    ends: dict[int, str] = {}
    for event in run_trials(trials, Plan(tmp_path, "cpu", workers=2)):
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
import sys, torch
torch.set_num_threads(1)
from lastlayer.training import Trial
from lastlayer.training.loop import fit, finish_fit
import json
finish_fit(fit(Trial.from_dict(json.loads(sys.argv[1])), sys.argv[2]))
"""


@pytest.mark.parametrize("moment", [0.0, 0.35, 0.7])
def test_kill_nine_at_any_moment_and_resume_gives_the_same_bits(tmp_path: Path, moment: float) -> None:
    torch.set_num_threads(1)
    trial = dataclasses.replace(TRIAL, schedule=Schedule(epochs=40), evaluations=4, loss=LossChoice("sln")).resolved()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish_fit(fit(trial, whole))
    for attempt in range(20):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, json.dumps(trial.to_dict()), str(cut)])
        run = RunFolder(cut)
        while process.poll() is None and not list(cut.glob("checkpoint-*")):
            time.sleep(0.005)
        time.sleep(moment * (attempt == 0))
        if attempt < 2:
            process.kill()
        process.wait()
        if run.status == "done":
            break
        assert run.status == "interrupted"
    assert RunFolder(cut).status == "done"
    one, other = RunFolder(whole).tensors("weights"), RunFolder(cut).tensors("weights")
    assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = RunFolder(whole).result(), RunFolder(cut).result()
    assert first["measures"] == second["measures"]
    assert [line["epoch"] for line in RunFolder(cut).metrics()] == list(range(41))


PARENT = """
import json, sys
from pathlib import Path
from lastlayer.runners import Plan, run_trials
from lastlayer.training import Trial

if __name__ == "__main__":  # workers import this file
    trials = [Trial.from_dict(one) for one in json.loads(sys.argv[1])]
    for event in run_trials(trials, Plan(Path(sys.argv[2]), "cpu", workers=2)):
        print(event.kind, flush=True)
"""


def test_workers_end_with_a_killed_parent_and_the_rest_comes_to_the_same_bits(tmp_path: Path) -> None:
    trials = seeds(2, schedule=Schedule(epochs=25))
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    whole, cut = Plan(tmp_path / "whole", "cpu", workers=2), Plan(tmp_path / "cut", "cpu", workers=2)
    command = [sys.executable, str(script), json.dumps([trial.to_dict() for trial in trials])]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as each of two workers has
    for trial in trials:
        finish_fit(fit(trial, whole.folder(trial)))
    process = subprocess.Popen([*command, str(cut.root)], stdout=subprocess.DEVNULL)
    while process.poll() is None and len(list(cut.root.glob("*/checkpoint-0003.pt"))) < 1:
        time.sleep(0.005)
    process.kill()
    process.wait()
    for trial in trials:  # the lock falls when the worker is gone
        until = time.monotonic() + 30
        while cut.folder(trial).status == "running" and time.monotonic() < until:
            time.sleep(0.05)
        assert cut.folder(trial).status != "running"
    assert any(cut.folder(trial).status == "interrupted" for trial in trials)
    subprocess.run([*command, str(cut.root)], check=True, stdout=subprocess.DEVNULL)
    for trial in trials:
        one, other = whole.folder(trial), cut.folder(trial)
        assert one.result()["measures"] == other.result()["measures"]
        weights = other.tensors("weights")
        assert all(torch.equal(value, weights[name]) for name, value in one.tensors("weights").items())
