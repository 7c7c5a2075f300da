"""A trial over two real processes equals the same trial in one."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lastlayer.runners import Placement, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial, finish_fit, fit
from lastlayer.training.engine.ranks import Ranks

pytest.importorskip("lightning_fabric", reason="NOT TESTED: several devices, because Lightning Fabric is not installed")

TRIAL = Trial(
    data=DataChoice("digits", train=320),
    model=ModelChoice("mlp", {"width": 16}),
    schedule=Schedule(epochs=3),
    batch_size=64,
    evaluations=1,
)


class OneRank:
    """What the loop asks of Fabric, for a single process."""

    global_rank, world_size = 0, 1

    def all_reduce(self, value: Tensor, reduce_op: str) -> Tensor:
        return value

    def barrier(self) -> None:
        pass


def assert_same_progress(ours: RunFolder, whole: RunFolder) -> None:
    last, expected = ours.metrics()[-1], whole.metrics()[-1]
    assert last["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert last["accuracy"] == pytest.approx(expected["accuracy"], abs=0.01)


def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    """With a loss that couples the batch. One that does not: the test below, which starts its ranks anyway."""
    trial = dataclasses.replace(TRIAL, loss=LossChoice("batch-ce")).resolved()
    one: Any = OneRank()
    finish_fit(fit(trial, tmp_path / "one", ranks=Ranks(one)))
    events = list(run_trials([trial], Placement(tmp_path, "cpu", devices=2)))
    assert [event.kind for event in events if event.kind != "progress"] == ["start", "done"]
    whole = RunFolder(tmp_path / "one").tensors("weights")
    spread = RunFolder(tmp_path / trial.identity).tensors("weights")
    for name in whole:
        torch.testing.assert_close(spread[name], whole[name], rtol=1e-4, atol=1e-6)
    assert_same_progress(RunFolder(tmp_path / trial.identity), RunFolder(tmp_path / "one"))
    kept, alone = (RunFolder(tmp_path / name).tensors("rows") for name in (trial.identity, "one"))
    assert torch.equal(kept["target"], alone["target"])
    torch.testing.assert_close(kept["log_loss"], alone["log_loss"], rtol=1e-2, atol=1e-3)


def test_a_cut_trial_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, loss=LossChoice("sln")).resolved()
    one: Any = OneRank()
    finish_fit(fit(trial, tmp_path / "one", ranks=Ranks(one)))
    cut = RunFolder(tmp_path / trial.identity)
    for _ in (steps := fit(trial, cut, ranks=Ranks(one))):
        if len(cut.metrics()) == 3:
            break
    steps.close()
    assert cut.status == "interrupted"
    assert [e.kind for e in run_trials([trial], Placement(tmp_path, "cpu", devices=2)) if e.kind == "done"] == ["done"]
    whole = RunFolder(tmp_path / "one").tensors("weights")
    for name, tensor in cut.tensors("weights").items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-4, atol=1e-6)
    assert [line["epoch"] for line in cut.metrics()] == [0, 1, 2, 3]
    assert_same_progress(cut, RunFolder(tmp_path / "one"))


def test_a_diverging_trial_ends_on_all_ranks(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e6, weight_decay=0.0)).resolved()
    (end,) = (e for e in run_trials([trial], Placement(tmp_path, "cpu", devices=2)) if e.kind in ("done", "failed"))
    assert end.kind == "failed"
    assert "not finite at step" in end.message


def test_a_batch_that_does_not_divide_is_refused_before_anything_runs(tmp_path: Path) -> None:
    trials = [dataclasses.replace(TRIAL, batch_size=size).resolved() for size in (64, 63)]
    with pytest.raises(ValueError, match="batch_size 63 does not divide among 2 devices: 62 would"):
        run_trials(trials, Placement(tmp_path, "cpu", devices=2))
    assert not list(tmp_path.iterdir())
