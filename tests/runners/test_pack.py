"""The scheduler of packed trials, on the CPU: the same turns as on a GPU, without graphs."""

import dataclasses
import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lastlayer import data
from lastlayer.runners import Event, Placement, Work, graph, pack, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial, load_data
from lastlayer.training.engine.feed import Feed
from lastlayer.training.engine.state import State
from lastlayer.training.engine.step import extract, loss_of, step
from lastlayer.training.fit import begin, finish_fit, fit, train_epoch

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


def same(one: Placement, other: Placement, trial: Trial) -> bool:
    return same_weights(one, other, trial) and measured(one, trial) == measured(other, trial)


def test_a_trial_alone_or_packed_gives_the_same_bits(tmp_path: Path) -> None:
    trials = varied()
    packed, alone = placed(tmp_path / "packed", pack=16), placed(tmp_path / "alone", pack=1)
    assert set(ends(run(trials, packed)).values()) == {"done"}
    assert set(ends(run(trials, alone)).values()) == {"done"}
    assert all(same(packed, alone, trial) for trial in trials)


LOSSES_OF_ONES_OWN = """
import torch
from lastlayer.losses import CrossEntropyLoss

class Noisy(CrossEntropyLoss):
    def forward(self, logits, target):
        return super().forward(logits + 0.1 * torch.randn_like(logits), target)

class Averaged(CrossEntropyLoss):
    def __init__(self, num_classes=None, **options):
        super().__init__(num_classes, **options)
        self.register_buffer("average", torch.ones(()))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, logits, target):
        value = super().forward(logits, target)
        self.average.lerp_(value.detach(), 0.1)
        self.calls += 1
        return value / self.average

class Late(CrossEntropyLoss):
    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass

    def forward(self, logits, target):
        value = super().forward(logits, target)
        if not hasattr(self, "first"):
            self.register_buffer("first", value.detach().clone())
        return value / self.first
"""


@pytest.fixture
def own_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses_in_a_pack.py").write_text(LOSSES_OF_ONES_OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


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


def test_an_error_within_a_step_is_written_down_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(state: State, feed: Feed, **_: bool) -> graph.Step:
        def lost() -> None:
            raise RuntimeError("the device is gone")

        return lost if state.trial.seed == 1 else functools.partial(step, state, feed)

    monkeypatch.setattr(pack, "accelerate", broken)
    trials = varied()[:2]
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


def test_a_backbone_is_compiled_once_for_all_losses() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = graph.compile_extract(counted)
    dataset = data.load("digits")
    assert isinstance(dataset, data.Dataset)
    settings = [LossChoice("ce"), LossChoice("sln"), LossChoice("sln", {"gamma": 0.5}), LossChoice("ce")]
    for seed, choice in enumerate(settings):
        state, feed = begin(dataclasses.replace(TRIAL, loss=choice, seed=seed).resolved(), dataset)
        network, batch = state.network, feed.draw(state)
        made = []
        for found in (compiled, extract):
            value, logits = loss_of(network.head, state.loss, found(network.backbone, batch.inputs), batch.target, None)
            gradients = torch.autograd.grad(value, list(network.parameters()))
            made.append([value, logits, *gradients])
        for one, other in zip(*made, strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 1


def broken(*_: object) -> Tensor:
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("compiled", "said"),
    [(extract, ["a CUDA graph"]), (broken, ["a CUDA graph", "compiled kernels"])],
)
def test_a_training_falls_from_graph_to_compiled_to_eager_and_keeps_its_state(
    monkeypatch: pytest.MonkeyPatch, compiled: graph.Extract, said: list[str]
) -> None:
    spent: list[torch.Generator] = []

    def refuse(state: State, take_step: graph.Step) -> graph.Step:
        spent.append(state.generator)
        take_step()
        raise RuntimeError("no capture")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    state, feed = begin(TRIAL.resolved(), data.load("digits"))
    weights = [parameter.detach().clone() for parameter in state.network.parameters()]
    with pytest.warns(UserWarning, match="does not run as") as warned:
        take_step = graph.fastest_step(state, feed, compiled=compiled, capture=refuse)
    assert [str(one.message).split("does not run as ")[1].split(" (")[0] for one in warned] == said
    assert all(torch.equal(a, b) for a, b in zip(weights, state.network.parameters(), strict=True))
    assert int(state.cursor) == 0
    assert state.generator is not spent[0]  # which torch may hold for captured
    take_step()  # which would raise if it were compiled and that is broken
    reference, its_feed = begin(TRIAL.resolved(), data.load("digits"))
    step(reference, its_feed)
    for ours, theirs in zip(state.network.parameters(), reference.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def tried(state: State, take_step: graph.Step) -> graph.Step:
    """In place of capturing, which a CPU cannot: a step is tried all the same."""
    take_step()
    return take_step


@pytest.mark.usefixtures("own_losses")
def test_a_step_that_is_tried_leaves_what_a_loss_remembers() -> None:
    choice = LossChoice("losses_in_a_pack.Averaged")
    state, feed = begin(dataclasses.replace(TRIAL, loss=choice).resolved(), data.load("digits"))
    take_step = graph.fastest_step(state, feed, compiled=extract, capture=tried)
    assert dict(state.loss.named_buffers()) == {"average": torch.ones(()), "calls": torch.zeros(())}
    take_step()
    assert state.loss.state_dict() != {"average": torch.ones(())}


@pytest.mark.parametrize("breaks", [False, True])
def test_a_training_on_streamed_data_falls_from_compiled_to_eager_too(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, breaks: bool
) -> None:
    deterministic: list[bool] = []

    def compiled(backbone: nn.Module, inputs: Tensor) -> Tensor:
        deterministic.append(torch.backends.cudnn.deterministic)
        return broken() if breaks else extract(backbone, inputs)

    monkeypatch.setattr("lastlayer.training.engine.feed.fits", lambda *_: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    (state, feed), (plain, its_feed) = (begin(TRIAL.resolved(), data.load("digits")) for _ in range(2))
    take_step = graph.fastest_step(state, feed, compiled=compiled)
    assert len([one for one in recwarn if "does not run as compiled kernels" in str(one.message)]) == breaks
    for one in (train_epoch(state, feed, take_step), train_epoch(plain, its_feed, lambda: step(plain, its_feed))):
        for progress in one:
            if progress.step == 2:
                break
    for ours, theirs in zip(state.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # tried, and then run with one choice of kernels
    assert deterministic == ([False] if breaks else [False, True, True])


@pytest.mark.usefixtures("own_losses")
def test_a_step_is_tried_with_a_loss_that_makes_a_buffer_then_or_has_extra_state() -> None:
    choice = LossChoice("losses_in_a_pack.Late")
    state, feed = begin(dataclasses.replace(TRIAL, loss=choice).resolved(), data.load("digits"))
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    graph.fastest_step(state, feed, compiled=extract, capture=tried)
    assert "first" in state.loss.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in state.network.state_dict().items())


class Lent:
    """Stands in for the global generator of a GPU."""

    def __init__(self) -> None:
        self.state: object = "everyone's"

    def graphsafe_get_state(self) -> object:
        return self.state

    def graphsafe_set_state(self, state: object) -> None:
        self.state = state


def test_dropout_on_a_gpu_draws_from_the_trials_own_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    state, feed = begin(varied()[9], data.load("digits"))
    common, met = Lent(), []
    assert state.generator.device.index is None  # as that of "cuda", where torch has a tuple of generators
    monkeypatch.setattr(torch.cuda, "default_generators", (Lent(), common))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    state.network.backbone.register_forward_hook(lambda *_: met.append(common.state))
    state.device = torch.device("cuda")  # its tensors are on the CPU all the same
    step(state, feed)
    assert met == [state.generator]
    assert common.state == "everyone's"


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


def test_a_training_shorter_than_its_warm_up_is_tried_all_the_same() -> None:
    trial = dataclasses.replace(TRIAL, data=DataChoice("digits", train=32), schedule=Schedule(epochs=1)).resolved()
    state, feed = begin(trial, load_data(trial.data))
    state.device = torch.device("cuda")  # its tensors are on the CPU all the same
    for _ in range(graph.WARM_UP_STEPS):
        step(state, feed)
    assert state.steps == 1 < state.cursor
    assert state.rate == state.rates[0]


@pytest.fixture
def card_of_a_hundred(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakKeyDictionary[State, int]:
    """Stands in for a GPU: a trial takes as much of it as its seed says."""
    taken: weakref.WeakKeyDictionary[State, int] = weakref.WeakKeyDictionary()
    make = State.__init__

    def counted(state: State, trial: Trial, *others: Any) -> None:
        if sum(taken.values()) + trial.seed > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken[state] = trial.seed
        make(state, trial, *others)

    monkeypatch.setattr(State, "__init__", counted)
    return taken


@pytest.mark.usefixtures("card_of_a_hundred")
def test_a_trial_for_which_there_is_no_memory_beside_others_waits_for_them(tmp_path: Path) -> None:
    trials = [dataclasses.replace(TRIAL, seed=seed).resolved() for seed in (5, 40, 41, 42, 70, 101, 6)]
    packed, alone = placed(tmp_path / "packed"), placed(tmp_path / "alone", pack=1)
    with pytest.warns(UserWarning, match=r"mlp with ce, seed 42, finds no memory beside the others"):
        events = run(trials, packed)
    assert ends(events) == {**dict.fromkeys(range(7), "done"), 5: "failed"}  # that would not fit alone
    assert [packed.folder(trial).status for trial in trials] == ["done"] * 5 + ["failed", "done"]
    run(trials, alone)
    assert all(same(packed, alone, trial) for trial in trials if trial.seed <= 100)


def test_memory_that_others_hold_takes_nothing_from_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(state: State, take_step: graph.Step) -> graph.Step:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    state, feed = begin(TRIAL.resolved(), data.load("digits"))
    with pytest.raises(torch.OutOfMemoryError):
        graph.fastest_step(state, feed, alone=False, compiled=extract, capture=crowded)
    with pytest.warns(UserWarning, match="does not run as a CUDA graph"):
        graph.fastest_step(state, feed, compiled=extract, capture=crowded)


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


@pytest.mark.parametrize(("free", "emptied"), [(9, 1), (10, 0)])
def test_what_ended_trials_left_is_given_back_where_too_little_is_free(
    free: int, emptied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    pack.make_room(torch.device("cuda"), 10)
    pack.make_room(torch.device("cpu"), 1 << 60)
    assert len(calls) == emptied


def test_memory_that_cannot_be_given_back_stops_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse() -> None:  # as after a capture that failed
        asked.append(1)
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80))
    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    pack.make_room(torch.device("cuda"), 10)
    assert asked == [1]
