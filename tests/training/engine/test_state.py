"""The state of a training: the draws lent to a step, going back, and leaving and coming back."""

import copy
import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from lastlayer import data
from lastlayer.heads import LinearHead
from lastlayer.training import DataChoice, HeadChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial
from lastlayer.training.engine.state import DivergedError, State
from lastlayer.training.engine.step import step
from lastlayer.training.fit import begin, train_epoch

TRIAL = Trial(
    data=DataChoice("iris"), model=ModelChoice("mlp", {"width": 8}), schedule=Schedule(epochs=2), batch_size=30
)


class DroppingHead(LinearHead):
    """A head of the user's own that draws random numbers; found by its import path."""

    def features(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5, self.training)


def train(trial: Trial, disturb: bool = False) -> State:
    state, feed = begin(trial, data.load("iris"))
    for _ in train_epoch(state, feed, functools.partial(step, state, feed)):
        if disturb:
            torch.rand(7)
    return state


def test_a_head_of_the_users_own_draws_from_the_trials_own_generator() -> None:
    trial = dataclasses.replace(TRIAL, head=HeadChoice(f"{__name__}:DroppingHead")).resolved()
    one, other = (train(trial, disturb).network.state_dict() for disturb in (False, True))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_undone_steps_leave_nothing_behind(name: str) -> None:
    trial = dataclasses.replace(TRIAL, optimiser=Optimiser(name), head=HeadChoice("batch-norm")).resolved()
    state, feed = begin(trial, data.load("iris"))
    feed.begin_epoch(state.begin_epoch())
    for steps_before in (0, 2):
        for _ in range(steps_before):
            step(state, feed)
        kept, expected = state.snapshot(), {k: v.clone() for k, v in state.network.state_dict().items()}
        cursor, generator = int(state.cursor), state.generator.get_state()
        step(state, feed)
        assert not all(torch.equal(v, expected[k]) for k, v in state.network.state_dict().items())
        state.undo(kept)
        assert all(torch.equal(v, expected[k]) for k, v in state.network.state_dict().items())
        assert (int(state.cursor), state.generator.get_state().tolist()) == (cursor, generator.tolist())


def test_a_state_goes_on_from_what_another_saved() -> None:
    trial = dataclasses.replace(TRIAL, optimiser=Optimiser("adam", lr=0.01)).resolved()
    state, feed = begin(trial, data.load("iris"))
    later, its_feed = begin(trial, data.load("iris"))
    assert list(train_epoch(state, feed, functools.partial(step, state, feed)))
    later.load_state_dict(copy.deepcopy(state.state_dict()))
    assert (later.epoch, later.last) == (1, state.last)
    for one, from_where in ((state, feed), (later, its_feed)):
        assert list(train_epoch(one, from_where, functools.partial(step, one, from_where)))
    assert all(torch.equal(v, later.network.state_dict()[k]) for k, v in state.network.state_dict().items())
    assert state.last == later.last


def test_a_loss_that_is_not_finite_is_told_with_its_step_and_rate() -> None:
    trial = dataclasses.replace(TRIAL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e30, momentum=0.0)).resolved()
    with pytest.raises(DivergedError, match=r"not finite at step \d \(epoch 0, learning rate \d\.\d+e\+29") as caught:
        train(trial)
    details: dict[str, Any] = caught.value.details
    assert details["epoch"] == 0
    assert details["learning_rate"] == pytest.approx(1e30, rel=0.1)


def test_the_best_network_is_kept_as_it_was() -> None:
    state = train(TRIAL.resolved())
    state.keep_if_best(0.5)
    expected = state.network.head.weight.detach().clone()
    with torch.no_grad():
        state.network.head.weight.zero_()
    state.keep_if_best(0.4)
    assert state.best is not None
    assert (state.best["accuracy"], state.best["epoch"]) == (0.5, 1)
    assert torch.equal(state.best["network"]["head.weight"], expected)
