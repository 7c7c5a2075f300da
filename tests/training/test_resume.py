"""Runs that were cut, damaged or refused: nothing is lost, nothing is counted twice, and the bits are the same."""

import dataclasses
import functools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lastlayer
from lastlayer import reports
from lastlayer.runs import RunFolder
from lastlayer.training import (
    DataChoice,
    DivergedError,
    LossChoice,
    ModelChoice,
    Optimiser,
    Schedule,
    Trial,
    finish_fit,
    fit,
    load_data,
)
from lastlayer.training.engine.step import step
from lastlayer.training.fit import begin, train_epoch

TRIAL = Trial(
    data=DataChoice("digits", train=200),
    model=ModelChoice("mlp", {"width": 8}),
    schedule=Schedule(epochs=4),
    evaluations=2,
)


def cut_after(trial: Trial, folder: Path, epochs: int) -> RunFolder:
    """A run that stopped after some epochs, as a killed process leaves it."""
    steps = fit(trial, folder)
    while next(steps).epoch < epochs:
        pass
    steps.close()
    return RunFolder(folder)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def assert_same(one: Path, other: Path) -> None:
    first, second = RunFolder(one), RunFolder(other)
    for name in ("weights", "snapshots"):
        expected, found = first.tensors(name), second.tensors(name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(value, found[key]) for key, value in expected.items())
    assert first.result()["measures"] == second.result()["measures"]
    assert [line["epoch"] for line in second.metrics()] == [line["epoch"] for line in first.metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint_share: Callable[[float], Any]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with checkpoint_share(math.inf):
        finish_fit(fit(TRIAL, folder))
    return folder


def test_epochs_after_the_last_checkpoint_are_trained_again_to_the_same_bits(
    tmp_path: Path, whole: Path, checkpoint_share: Callable[[float], Any]
) -> None:
    with checkpoint_share(1e-9):  # the first and the last alone
        run = cut_after(TRIAL, tmp_path / "cut", 3)
        assert [path.name for path in run.path.glob("checkpoint-*")] == ["checkpoint-0000.pt"]
        assert [line["epoch"] for line in run.metrics()] == [0, 1, 2, 3]
        finish_fit(fit(TRIAL, run.path))
    assert_same(whole, run.path)
    assert [path.name for path in sorted(run.path.glob("checkpoint-*"))] == ["checkpoint-0001.pt", "checkpoint-0004.pt"]


@pytest.mark.usefixtures("checkpoint_after_every_epoch")
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_damaged_checkpoints_fall_back_to_the_same_bits(tmp_path: Path, whole: Path, damaged: int) -> None:
    run = cut_after(TRIAL, tmp_path / "cut", 3)
    checkpoints = sorted(run.path.glob("checkpoint-*"), reverse=True)
    assert len(checkpoints) == 2
    for path in checkpoints[:damaged]:
        damage(path)
    if damaged:
        with pytest.warns(UserWarning, match="is damaged: SHA-256 expected"):
            finish_fit(fit(TRIAL, run.path))
    else:
        finish_fit(fit(TRIAL, run.path))
    assert_same(whole, run.path)


def test_a_finished_run_keeps_its_last_two_checkpoints_and_does_without_them(
    tmp_path: Path, whole: Path, recwarn: pytest.WarningsRecorder
) -> None:
    run = RunFolder(shutil.copytree(whole, tmp_path / "runs" / "run"))
    kept = sorted(path.name for path in run.path.glob("checkpoint-*"))
    assert kept == ["checkpoint-0003.pt", "checkpoint-0004.pt"]
    state = run.load_checkpoint()
    assert state is not None
    assert all(torch.equal(value, state["network"][name]) for name, value in run.tensors("weights").items())
    for name in kept:
        damage(run.path / name)
    assert finish_fit(fit(TRIAL, run.path)) == run.result()
    assert lastlayer.load(run.path).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    summary = reports.summarise(reports.load(run.path.parent))
    assert not summary.problems
    assert "ce" in reports.write_page(summary, tmp_path / "page.html").read_text()
    assert not recwarn.list


class Counted(torch.nn.Module):
    """A model that counts how often it is called on a batch, for the test below; found by its import path."""

    calls = 0
    num_features = 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.calls += len(x) > 2  # two rows only ask what the model returns
        return x.flatten(1)


def test_a_run_killed_after_its_last_epoch_only_reads_its_test_samples_once_more(tmp_path: Path) -> None:
    """All else that it needs is in its checkpoint. The test samples are one batch."""
    trial = dataclasses.replace(TRIAL, model=ModelChoice(f"{__name__}:Counted"))
    finish_fit(fit(trial, tmp_path / "whole"))
    cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for name in ("result.json", "weights.safetensors", "snapshots.safetensors", "rows.safetensors"):
        (cut / name).unlink()
    before = Counted.calls
    finish_fit(fit(trial, cut))
    assert Counted.calls == before + 1
    assert_same(tmp_path / "whole", cut)


def test_a_run_killed_before_its_first_checkpoint_counts_no_epoch_twice(tmp_path: Path, whole: Path) -> None:
    run = RunFolder(tmp_path / "cut")
    run.start(TRIAL.resolved().to_dict())
    run.append_metrics({"epoch": 0})
    finish_fit(fit(TRIAL, run.path))
    assert_same(whole, run.path)


def test_a_full_disk_loses_nothing(tmp_path: Path, whole: Path, failing_disk: Callable[..., Any]) -> None:
    run = cut_after(TRIAL, tmp_path / "cut", 2)
    with failing_disk(), pytest.raises(OSError, match="No space left on device"):
        finish_fit(fit(TRIAL, run.path))
    assert run.status == "interrupted"  # there was no room for a note of the failure either
    finish_fit(fit(TRIAL, run.path))
    assert_same(whole, run.path)


def test_parameters_that_overflow_in_the_last_step_are_not_kept(tmp_path: Path) -> None:
    trial = dataclasses.replace(
        TRIAL, optimiser=Optimiser(lr=1e38, momentum=0.0, weight_decay=0.0), batch_size=200, loss=LossChoice("mse")
    )
    with pytest.raises(DivergedError, match=r"parameters are not finite after the update at step 0 \(epoch 0"):
        finish_fit(fit(trial, tmp_path / "run"))
    run = RunFolder(tmp_path / "run")
    assert run.status == "failed"
    assert run.failure()["parameters_not_finite"]
    state = run.load_checkpoint()
    assert state is not None
    assert all(value.isfinite().all() for value in state["network"].values())


def test_data_that_changed_under_a_run_is_refused(tmp_path: Path) -> None:
    def write(seed: int) -> None:
        points = np.random.default_rng(seed).normal(size=(60, 3))
        np.savez(tmp_path / "points.npz", x=points, y=np.arange(60) % 3)

    trial = dataclasses.replace(TRIAL, data=DataChoice(str(tmp_path / "points.npz")))
    write(0)
    run = cut_after(trial, tmp_path / "run", 2)
    write(1)
    with pytest.raises(ValueError, match=r"points\.npz has changed since .*run began"):
        finish_fit(fit(trial, run.path))
    write(0)
    finish_fit(fit(trial, run.path))
    assert run.status == "done"


def test_a_run_that_goes_on_with_other_code_of_ones_own_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from torch import nn\n\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))\n"
    (tmp_path / "resumed_net.py").write_text(text)
    trial = dataclasses.replace(TRIAL, model=ModelChoice("resumed_net:net"))
    run = cut_after(trial, tmp_path / "run", 2)
    run = cut_after(trial, tmp_path / "run", 1)
    assert not [one for one in recwarn if "has changed" in str(one.message)]
    (tmp_path / "resumed_net.py").write_text(text + "# another\n")
    with pytest.warns(UserWarning, match=r"model resumed_net:net has changed since .*run began. The run goes on"):
        finish_fit(fit(trial, run.path))
    assert run.status == "done"


def test_the_folder_of_another_trial_is_refused(tmp_path: Path, whole: Path) -> None:
    other = dataclasses.replace(TRIAL, seed=1)
    with pytest.raises(ValueError, match="holds another trial"):
        finish_fit(fit(other, whole))
    run = cut_after(TRIAL, tmp_path / "cut", 1)
    with pytest.raises(ValueError, match="holds another trial"):
        finish_fit(fit(other, run.path))
    assert run.status == "interrupted"
    assert finish_fit(fit(TRIAL, whole)) == RunFolder(whole).result()


def test_a_run_goes_on_with_as_many_threads_as_it_began_with(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, schedule=Schedule(epochs=2), evaluations=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        finish_fit(fit(trial, tmp_path / "whole"))
        cut_after(trial, tmp_path / "cut", 1)
        torch.set_num_threads(1)
        finish_fit(fit(trial, tmp_path / "cut"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert RunFolder(tmp_path / "cut").result()["machine"]["threads"] == 2


@pytest.mark.usefixtures("checkpoint_after_every_epoch")
def test_a_run_that_goes_on_on_another_kind_of_device_has_its_optimiser_and_generator(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, optimiser=Optimiser("adam")).resolved()
    run = cut_after(trial, tmp_path / "run", 2)
    state = run.load_checkpoint()
    assert state is not None
    for group in state["optimiser"]["param_groups"]:  # as a GPU leaves them
        group.update(lr=torch.tensor(group["lr"]), capturable=True)
    state["generator"] = torch.zeros(16, dtype=torch.uint8)  # of another kind than a CPU's
    dataset = load_data(trial.data)
    resumed, its_feed = begin(trial, dataset)
    before = [(group["lr"], group["capturable"]) for group in resumed.optimiser.param_groups]
    resumed.load_state_dict(state)
    assert [(group["lr"], group["capturable"]) for group in resumed.optimiser.param_groups] == before
    assert isinstance(before[0][0], float)
    first, first_feed = begin(trial, dataset)
    for one, feed in ((resumed, its_feed), (first, first_feed)):
        for _ in train_epoch(one, feed, functools.partial(step, one, feed)):
            pass
    assert not torch.equal(its_feed.order, first_feed.order)  # not the first epoch's once more


def test_one_class_is_no_classification(tmp_path: Path) -> None:
    np.savez(tmp_path / "points.npz", x=np.ones((10, 3)), y=np.zeros(10, int))
    with pytest.raises(ValueError, match=r"points\.npz has one class, 0: a classifier needs two or more"):
        finish_fit(fit(dataclasses.replace(TRIAL, data=DataChoice(str(tmp_path / "points.npz")))))


@pytest.mark.usefixtures("import_path")
def test_a_model_from_elsewhere_draws_the_same_however_it_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_that_draws.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    num_features = 8\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.dense = torch.nn.Linear(64, 8)\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.dropout(self.dense(x.flatten(1)), 0.5, self.training)\n"
    )
    monkeypatch.chdir(tmp_path)
    trial = dataclasses.replace(TRIAL, model=ModelChoice("model_that_draws:Net"))
    torch.manual_seed(1)
    finish_fit(fit(trial, tmp_path / "whole"))
    torch.manual_seed(2)
    cut_after(trial, tmp_path / "cut", 2)
    torch.manual_seed(3)
    finish_fit(fit(trial, tmp_path / "cut"))
    assert_same(tmp_path / "whole", tmp_path / "cut")
