"""The step of a training on a GPU: what it falls back to, and that trying it changes nothing. Here on a CPU."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lastlayer import data
from lastlayer.runners import graph
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Schedule, Trial, load_data
from lastlayer.training.engine.state import State
from lastlayer.training.engine.step import extract, loss_of, step
from lastlayer.training.fit import begin, train_epoch

TRIAL = Trial(
    data=DataChoice("digits", train=128),
    model=ModelChoice("mlp", {"width": 8}),
    schedule=Schedule(epochs=2),
    batch_size=32,
    evaluations=1,
)


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
    compiled: graph.Extract, said: list[str]
) -> None:
    spent: list[torch.Generator] = []

    def refuse(state: State, take_step: graph.Step) -> graph.Step:
        spent.append(state.generator)
        take_step()
        raise RuntimeError("no capture")

    state, feed = begin(TRIAL.resolved(), data.load("digits"))
    weights = [parameter.detach().clone() for parameter in state.network.parameters()]
    with pytest.warns(UserWarning, match="does not run as") as warned:
        take_step = graph.accelerate(state, feed, compiled=compiled, capture=refuse)
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
    """Takes the place of capturing, which a CPU cannot do. A step is tried as usual."""
    take_step()
    return take_step


@pytest.mark.usefixtures("own_losses")
def test_a_step_that_is_tried_leaves_what_a_loss_remembers() -> None:
    choice = LossChoice("losses_in_a_pack.Averaged")
    state, feed = begin(dataclasses.replace(TRIAL, loss=choice).resolved(), data.load("digits"))
    take_step = graph.accelerate(state, feed, compiled=extract, capture=tried)
    assert dict(state.loss.named_buffers()) == {"average": torch.ones(()), "calls": torch.zeros(())}
    take_step()
    assert state.loss.state_dict() != {"average": torch.ones(())}


@pytest.mark.parametrize("breaks", [False, True])
def test_a_training_on_streamed_data_falls_from_compiled_to_eager_too(
    stream_data: Callable[[], None], recwarn: pytest.WarningsRecorder, breaks: bool
) -> None:
    deterministic: list[bool] = []

    def compiled(backbone: nn.Module, inputs: Tensor) -> Tensor:
        deterministic.append(torch.backends.cudnn.deterministic)
        return broken() if breaks else extract(backbone, inputs)

    stream_data()
    (state, feed), (plain, its_feed) = (begin(TRIAL.resolved(), data.load("digits")) for _ in range(2))
    take_step = graph.accelerate(state, feed, compiled=compiled)
    assert len([one for one in recwarn if "does not run as compiled kernels" in str(one.message)]) == breaks
    for one in (train_epoch(state, feed, take_step), train_epoch(plain, its_feed, lambda: step(plain, its_feed))):
        for progress in one:
            if progress.step == 2:
                break
    for ours, theirs in zip(state.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert deterministic == ([True] if breaks else [True] * 3)  # tried, and then run, with one choice of kernels
    assert not torch.backends.cudnn.deterministic


@pytest.mark.usefixtures("own_losses")
def test_a_step_is_tried_with_a_loss_that_makes_a_buffer_then_or_has_extra_state() -> None:
    choice = LossChoice("losses_in_a_pack.Late")
    state, feed = begin(dataclasses.replace(TRIAL, loss=choice).resolved(), data.load("digits"))
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    graph.accelerate(state, feed, compiled=extract, capture=tried)
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
    dropping = ModelChoice("vit", {"patch": 4, "dim": 16, "depth": 1, "heads": 2})
    state, feed = begin(dataclasses.replace(TRIAL, model=dropping).resolved(), data.load("digits"))
    common, met = Lent(), []
    assert state.generator.device.index is None  # as that of "cuda", where torch has a tuple of generators
    monkeypatch.setattr(torch.cuda, "default_generators", (Lent(), common))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    state.network.backbone.register_forward_hook(lambda *_: met.append(common.state))
    state.device = torch.device("cuda")  # its tensors are on the CPU all the same
    step(state, feed)
    assert met == [state.generator]
    assert common.state == "everyone's"


def test_a_training_shorter_than_its_warm_up_is_tried_all_the_same() -> None:
    trial = dataclasses.replace(TRIAL, data=DataChoice("digits", train=32), schedule=Schedule(epochs=1)).resolved()
    state, feed = begin(trial, load_data(trial.data))
    state.device = torch.device("cuda")  # its tensors are on the CPU all the same
    for _ in range(graph.WARM_UP_STEPS):
        step(state, feed)
    assert state.steps == 1 < state.cursor
    assert state.rate == state.rates[0]


def test_memory_that_others_hold_takes_nothing_from_a_step() -> None:
    def crowded(state: State, take_step: graph.Step) -> graph.Step:
        raise torch.OutOfMemoryError("CUDA out of memory")

    state, feed = begin(TRIAL.resolved(), data.load("digits"))
    with pytest.raises(torch.OutOfMemoryError):
        graph.accelerate(state, feed, alone=False, compiled=extract, capture=crowded)
    with pytest.warns(UserWarning, match="does not run as a CUDA graph"):
        graph.accelerate(state, feed, compiled=extract, capture=crowded)
