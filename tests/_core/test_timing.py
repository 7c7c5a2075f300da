"""Time and memory of a step: how often steps run, how their times are summarised, and known numbers of bytes."""

import contextlib
import math
import statistics

import pytest
import torch

from lastlayer._core.timing import (
    Stopwatch,
    measure_both,
    peak_memory,
    replay_seconds,
    seconds_of_both,
    time_in_turn,
    training_step,
)


class FakeTime:
    """A clock that moves only when a step runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def clock(self) -> float:
        return self.now

    def step(self, name: str, *seconds: float):
        left = list(seconds)

        def step() -> None:
            self.ran.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return step


def test_steps_take_turns_and_the_summary_is_of_seconds_a_step():
    fake = FakeTime()
    mine, theirs = fake.step("a", 1.0, 1.0, 9.0, 9.0, 2.0, 2.0), fake.step("b", 5.0)
    found = time_in_turn(mine, theirs, "cpu", 0.0, turns=(3, 3), steps=(2, 1), watch=Stopwatch(fake.clock))
    assert fake.ran == ["a", "a", "b"] * 3
    assert found == (statistics.median([1.0, 9.0, 2.0]), 5.0)


def test_the_shortest_turn_where_it_is_asked_for():
    fake = FakeTime()
    found = seconds_of_both(
        fake.step("a", 4.0, 3.0, 7.0), fake.step("b", 8.0, 9.0), "cpu", 0.0, watch=Stopwatch(fake.clock, min)
    )
    assert found == (3.0, 8.0)
    assert fake.ran == ["a", "b"] * 3  # without a budget there are as few turns as allowed


def test_a_budget_left_goes_into_more_turns():
    fake = FakeTime()
    time_in_turn(fake.step("a", 1.0), fake.step("b", 1.0), "cpu", 1e9, turns=(1, 7), watch=Stopwatch(fake.clock))
    assert fake.ran.count("a") == 7


def test_a_training_step_differentiates_the_loss():
    leaf = torch.tensor([2.0], requires_grad=True)
    seen = []
    leaf.register_hook(lambda gradient: seen.append(gradient.item()))
    training_step(lambda x: (x**3).sum(), [leaf])()
    assert seen == [12.0]


def test_the_peak_is_what_is_held_at_once():
    def step() -> None:
        first = torch.empty(1000, dtype=torch.float64)
        second = torch.empty(500, dtype=torch.float64)
        del first, second
        torch.empty(1200, dtype=torch.float64)

    assert peak_memory(step, "cpu") == 8 * 1500


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), MemoryError()])
def test_one_that_does_not_fit_leaves_the_other_known(error):
    def step() -> None:
        torch.empty(100)

    def fails() -> None:
        raise error

    found = measure_both(step, fails, "cpu", 0.0)
    assert (found.bytes, found.seconds >= 0) == (400, True)
    assert math.isnan(found.peer_bytes)
    assert math.isnan(found.peer_seconds)
    found = measure_both(fails, step, "cpu", 0.0)
    assert (found.peer_bytes, math.isnan(found.bytes), math.isnan(found.seconds)) == (400, True, True)
    found = measure_both(step, None, "cpu", 0.0)
    assert (found.bytes, math.isnan(found.peer_bytes), math.isnan(found.peer_seconds)) == (400, True, True)


def test_an_error_that_is_not_of_memory_is_not_hidden():
    def fails() -> None:
        raise ValueError("wrong shape")

    with pytest.raises(ValueError, match="wrong shape"):
        measure_both(fails, None, "cpu", 0.0)


def test_a_step_that_reads_a_value_back_is_not_captured(monkeypatch):
    """Such a capture would fail, and its memory would be lost for the rest of the process."""
    mode, captured = ["default"], []
    for name in ("CUDAGraph", "Stream", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: captured.append(graph) or contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda given: mode.append(given))

    def step() -> None:
        if mode[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    assert math.isnan(replay_seconds(step))
    assert not captured
    assert mode[-1] == "default"


@pytest.mark.gpu
def test_replays_on_a_gpu():
    x, stream = torch.ones(4, device="cuda"), torch.cuda.current_stream()
    held = torch.cuda.memory_reserved()
    assert math.isnan(replay_seconds(lambda: x.sum().item()))
    assert torch.cuda.current_stream() == stream
    assert not math.isnan(replay_seconds(lambda: x.add_(torch.ones(2**20, device="cuda")[:4])))
    assert torch.cuda.memory_reserved() <= held
