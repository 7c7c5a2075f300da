"""The scheduler of packed trials, on the CPU: the same turns as on a GPU, without graphs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from lastlayer.runners import Event, Placement, Work, pack, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial
from lastlayer.training.fit import finish_fit, fit

TRIAL = Trial(
    data=DataChoice("digits", train=128),
    model=ModelChoice("mlp", {"width": 8}),
    schedule=Schedule(epochs=2),
    batch_size=32,
    evaluations=1,
)


def varied() -> list[Trial]:
    losses = ("ce", "sln", "bce", "ls", "large-margin", "batch-ce", "mse", "ce", "ce", "ce")
    trials = [dataclasses.replace(TRIAL, loss=LossChoice(name), seed=seed) for seed, name in enumerate(losses)]
    trials[7] = dataclasses.replace(trials[7], optimiser=Optimiser("adamw", clip=0.5))
    trials[8] = dataclasses.replace(trials[8], model=ModelChoice("mlp", {"width": 6}))
    dropping = {"patch": 4, "dim": 16, "depth": 1, "heads": 2}
    trials[9] = dataclasses.replace(trials[9], model=ModelChoice("vit", dropping))
    return [trial.resolved() for trial in trials]


def placed(root: Path, **options: Any) -> Placement:
    """A pack on the CPU."""
    return Placement(root, "cpu", runner="pack", **options)


def run(trials: list[Trial], placement: Placement) -> list[Event]:
    return list(run_trials(trials, placement))


def ends(events: list[Event]) -> dict[int, str]:
    return {event.index: event.kind for event in events if event.kind in ("done", "failed")}


def measured(placement: Placement, trial: Trial) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = placement.folder(trial).result()["measures"]
    return found


def same_weights(one: Placement, other: Placement, trial: Trial) -> bool:
    ours, theirs = (placement.folder(trial).tensors("weights") for placement in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def same_rows(one: Placement, other: Placement, trial: Trial) -> bool:
    ours, theirs = (placement.folder(trial).tensors("rows") for placement in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def same(one: Placement, other: Placement, trial: Trial) -> bool:
    return (
        same_rows(one, other, trial)
        and same_weights(one, other, trial)
        and measured(one, trial) == measured(other, trial)
    )


def test_a_trial_alone_or_packed_gives_the_same_bits(tmp_path: Path) -> None:
    trials = varied()
    packed, alone = placed(tmp_path / "packed", pack=16), placed(tmp_path / "alone", pack=1)
    assert set(ends(run(trials, packed)).values()) == {"done"}
    assert set(ends(run(trials, alone)).values()) == {"done"}
    assert all(same(packed, alone, trial) for trial in trials)


@pytest.mark.usefixtures("own_losses")
def test_losses_of_ones_own_draw_and_remember_for_their_trial_alone(tmp_path: Path) -> None:
    names = ("losses_in_a_pack.Noisy", "losses_in_a_pack.Averaged")
    trials = [dataclasses.replace(TRIAL, loss=LossChoice(name), seed=s).resolved() for name in names for s in (0, 1)]
    packed, alone, cut = (
        placed(tmp_path / name, pack=size, report_seconds=0.0)
        for name, size in (("packed", 4), ("alone", 1), ("cut", 4))
    )
    run(trials, packed)
    run(trials, alone)
    events: Any = run_trials(trials, cut)
    while next(events).progress is None or any(cut.folder(t).load_checkpoint() is None for t in trials):
        pass
    for event in events:
        if event.progress is not None and event.progress.step > 6:
            break
    events.close()
    assert all(cut.folder(trial).status == "interrupted" for trial in trials)
    run(trials, cut)
    for trial in trials:
        assert same(packed, alone, trial), trial.loss.name
        assert same(packed, cut, trial), trial.loss.name


def test_packed_trials_learn_what_plain_ones_do(tmp_path: Path) -> None:
    trials = varied()[:3]
    placement = placed(tmp_path)
    run(trials, placement)
    for trial in trials:
        plain = finish_fit(fit(trial))["history"][-1]
        packed = placement.folder(trial).result()["history"][-1]
        assert packed["loss"] == pytest.approx(plain["loss"], rel=1e-5)


def test_a_trial_that_fails_leaves_its_companions_as_they_are(tmp_path: Path) -> None:
    good = varied()[:2]
    bad = dataclasses.replace(TRIAL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e6, weight_decay=0.0)).resolved()
    packed, alone = placed(tmp_path / "packed", pack=4), placed(tmp_path / "alone", pack=1)
    events = run([good[0], bad, good[1]], packed)
    assert ends(events) == {0: "done", 1: "failed", 2: "done"}
    assert "not finite" in packed.folder(bad).failure()["error"]
    run(good, alone)
    assert all(same(packed, alone, trial) for trial in good)


@pytest.mark.usefixtures("own_losses")
def test_an_error_within_a_step_is_written_down_and_the_others_go_on(tmp_path: Path) -> None:
    trials = [
        dataclasses.replace(TRIAL, loss=LossChoice(name)).resolved() for name in ("ce", "losses_in_a_pack.Broken")
    ]
    placement = placed(tmp_path)
    assert ends(run(trials, placement)) == {0: "done", 1: "failed"}
    assert "the device is gone" in placement.folder(trials[1]).failure()["error"]


def test_trials_start_in_order_and_the_pack_is_never_larger_than_asked(tmp_path: Path) -> None:
    trials = [dataclasses.replace(TRIAL, seed=seed).resolved() for seed in range(12)]
    running: set[int] = set()
    most, begun = 0, []
    for event in run_trials(trials, placed(tmp_path, pack=10)):
        if event.kind == "start":
            running.add(event.index)
            begun.append((event.index, len(running)))
        elif event.kind in ("done", "failed"):
            running.remove(event.index)
        most = max(most, len(running))
    assert most == 10
    assert [index for index, _ in begun] == list(range(12))


def test_closing_a_pack_leaves_runs_that_go_on_to_the_same_bits(tmp_path: Path) -> None:
    trials = varied()[:2]
    whole, cut = placed(tmp_path / "whole"), placed(tmp_path / "cut", report_seconds=0.0)
    run(trials, whole)
    events: Any = run_trials(trials, cut)
    for event in events:
        if event.kind == "progress" and event.progress.epoch == 1:
            break
    events.close()
    assert cut.folder(trials[0]).status == "interrupted"
    run(trials, cut)
    assert all(same(whole, cut, trial) for trial in trials)


def test_a_lane_waits_for_the_stream_on_which_its_data_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        awaited: object = None

        def wait_stream(self, other: object) -> None:
            self.awaited = other

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    stream = Stream()
    pack.Lane(Work([TRIAL.resolved()], (0,), placed(tmp_path), torch.device("cuda")), 0, stream, None)
    assert stream.awaited == "the stream of cuda"


@pytest.mark.usefixtures("own_losses")
def test_a_trial_for_which_there_is_no_memory_beside_others_waits_for_them(tmp_path: Path) -> None:
    sizes = (5, 40, 41, 42, 70, 101, 6)
    heavy = [LossChoice("losses_in_a_pack.Heavy", {"size": float(size)}) for size in sizes]
    trials = [dataclasses.replace(TRIAL, loss=loss, seed=seed).resolved() for seed, loss in enumerate(heavy)]
    packed, alone = placed(tmp_path / "packed"), placed(tmp_path / "alone", pack=1)
    with pytest.warns(UserWarning, match=r"mlp with losses_in_a_pack.Heavy, seed 3, finds no memory beside the others"):
        events = run(trials, packed)
    assert ends(events) == {**dict.fromkeys(range(7), "done"), 5: "failed"}  # that would not fit alone
    assert [packed.folder(trial).status for trial in trials] == ["done"] * 5 + ["failed", "done"]
    run(trials, alone)
    assert all(same(packed, alone, trial) for trial in trials if packed.folder(trial).status == "done")


@pytest.mark.gpu
def test_on_a_gpu_a_trial_alone_or_packed_gives_the_same_bits(tmp_path: Path) -> None:
    trials = [*varied()[:4], varied()[9]]
    packed, alone = Placement(tmp_path / "packed", "cuda"), Placement(tmp_path / "alone", "cuda", pack=1)
    for placement in (packed, alone):
        assert set(ends(run(trials, placement)).values()) == {"done"}
    for trial in trials:
        assert same_weights(packed, alone, trial), trial.loss.name
        for part, values in measured(packed, trial).items():  # sums over samples in no fixed order
            assert values == pytest.approx(measured(alone, trial)[part], rel=1e-6, abs=1e-9), trial.loss.name


@pytest.mark.gpu
def test_on_a_gpu_a_trial_that_was_cut_goes_on_and_is_finished(tmp_path: Path) -> None:
    trial = varied()[0]
    steps = fit(trial, tmp_path / "run", device="cuda")
    while next(steps).epoch < 1:
        pass
    steps.close()
    finish_fit(fit(trial, tmp_path / "run", device="cuda"))
    assert RunFolder(tmp_path / "run").tensors("snapshots")["points"].isfinite().all()


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("free", "emptied"), [(9, 1), (10, 0)])
def test_what_ended_trials_left_is_given_back_where_too_little_is_free(
    free: int, emptied: int, refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that cannot be given back stops no trial."""
    calls: list[int] = []

    def empty() -> None:
        calls.append(1)
        if refuses:  # as after a capture that failed
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80))
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    pack.make_room(torch.device("cuda"), 10)
    pack.make_room(torch.device("cpu"), 1 << 60)
    assert len(calls) == emptied
