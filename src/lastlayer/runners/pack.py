"""Many trials on one GPU at once: in lanes that share the device, several trials stacked into one in each.

A small network leaves most of a large GPU idle, and launching its kernels one by one costs more than running them.
Here a step of several trials, from drawing their batches to updating their parameters, is compiled, captured once as a
CUDA graph and replayed; lanes take turns, a replay each on a stream of their own, and the device overlaps them. The
host does nothing a step but start replays, and never more of them than a few steps ahead, so that what a trial does
between epochs (measuring, checkpoints) starts at once while the other lanes go on.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from lastlayer.data import Dataset
from lastlayer.runners._events import Event, Plan, Reporter
from lastlayer.runners._graphs import Step, fastest_step
from lastlayer.runners.stack import WIDTH, is_small, stacking_key
from lastlayer.training import streaming
from lastlayer.training.loop import Progress, Training, fit
from lastlayer.training.parts import load_data
from lastlayer.training.trial import DataChoice, Trial

LARGEST_PACK = 2 * WIDTH  # while one lane measures, the other trains
MEMORY_SHARE = 0.8  # of the free memory that a pack may plan to take
STEPS_AHEAD = 32  # of the device, at most, that the host is
IDLE_SECONDS = 1e-4


def run_packed(
    trials: Sequence[Trial], pending: deque[int], plan: Plan, device: torch.device, dataset: Dataset | None = None
) -> Iterator[Event]:
    """Run the pending trials, as many at a time as the pack holds, in lanes of up to WIDTH that advance together.

    The result of a trial does not depend on its companions: it has its own generator, its own slices of the stacked
    tensors, and a stack is always WIDTH wide.
    """
    shared = _SharedData(plan, device, dataset)
    lanes: list[_Lane] = []
    size = plan.pack
    free = _free_memory(device)
    try:
        while pending or lanes:
            room = (size or WIDTH) - sum(len(lane.members) for lane in lanes)
            share = -(-(size or WIDTH) // WIDTH)  # of an epoch between lanes, so that they do not measure all at once
            if pending and room > 0 and all(lane.taken * share >= lane.epoch for lane in lanes):
                data = shared.load(trials[pending[0]].data)
                free = _free_memory(device) if not lanes else free
                small = data is not None and is_small(trials[pending[0]], data)
                lane = _Lane(device, stacked=small)
                for index in _companions(trials, pending, min(room, WIDTH) if small else 1):
                    yield Event(index, "start")
                    lane.add(index, trials[index], plan, data)
                lanes.append(lane)
            for lane in lanes:
                yield from lane.turn()
            if size is None and any(lane.taken for lane in lanes):
                size = _pack_size(device, free, sum(len(lane.members) for lane in lanes))
            lanes = [lane for lane in lanes if lane.members]
            if lanes and all(lane.is_ahead() for lane in lanes):
                time.sleep(IDLE_SECONDS)
    finally:
        for lane in lanes:
            lane.close()


def _companions(trials: Sequence[Trial], pending: deque[int], most: int) -> list[int]:
    """Take the first pending trial and others that stack with it."""
    key = stacking_key(trials[pending[0]])
    chosen = [index for index in pending if stacking_key(trials[index]) == key][:most]
    for index in chosen:
        pending.remove(index)
    return chosen


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _pack_size(device: torch.device, free_before: int, running: int) -> int:
    """How many trials like those running fit, up to LARGEST_PACK: more no longer help."""
    if device.type != "cuda":
        return LARGEST_PACK
    each = max(free_before - _free_memory(device), 1) / max(running, 1)
    return max(1, min(LARGEST_PACK, int(MEMORY_SHARE * free_before / each)))


class _SharedData:
    """The data of the trials, loaded and moved to the device once as long as they train on the same."""

    def __init__(self, plan: Plan, device: torch.device, given: Dataset | None) -> None:
        self.plan, self.device = plan, device
        self.last: tuple[DataChoice, Dataset] | None = None
        self.given = None if given is None else self._moved(given)

    def load(self, choice: DataChoice) -> Dataset | None:
        """The data, or None when it cannot be loaded: the trial will meet the reason again and write it down."""
        if self.given is not None:
            return self.given
        if self.last is None or self.last[0] != choice:
            self.last = None
            try:
                self.last = (choice, self._moved(load_data(choice, self.plan.data_root)))
            except Exception:
                return None
        return self.last[1]

    def _moved(self, dataset: Dataset) -> Dataset:
        return dataset.to(self.device) if streaming.fits(dataset, self.device) else dataset


class _Lane:
    """Trials that advance together on one stream: when each has come to its next step, all take it at once.

    Args:
        device: of all of them.
        stacked: whether to run their backbones as one.
    """

    def __init__(self, device: torch.device, *, stacked: bool) -> None:
        self.device, self.stacked = device, stacked
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.members: dict[int, Generator[Progress, None, Any]] = {}
        self.reporters: dict[int, Reporter] = {}
        self.trainings: dict[int, Training] = {}
        self.arrived: set[int] = set()
        self.step: Step | None = None
        self.taken = 0  # steps
        self.epoch = 1  # steps of one
        self.unfinished: deque[Any] = deque()  # an event after each step the device may not have done

    def add(self, index: int, trial: Trial, plan: Plan, dataset: Dataset | None) -> None:
        """Take a trial in, before the first turn."""
        self.reporters[index] = Reporter(index)
        self.members[index] = fit(
            trial,
            plan.folder(trial),
            device=self.device,
            data_root=plan.data_root,
            dataset=dataset,
            tensorboard=plan.tensorboard,
            prepare=functools.partial(self._enter, index),
        )

    def _enter(self, index: int, training: Training) -> None:
        self.trainings[index] = training
        self.epoch = training.steps_per_epoch
        training.run_step = functools.partial(self.arrived.add, index)

    def turn(self) -> list[Event]:
        """Bring every member that is not waiting for the others to its next pause; then, if all wait, take the step."""
        events: list[Event] = []
        if self.is_ahead():
            return events
        with self._own_stream():
            for index in [index for index in self.members if index not in self.arrived]:
                events += self._resume(index)
            if self.members and self.arrived >= self.members.keys():
                events += self._step()
        return events

    def _resume(self, index: int, problem: Exception | None = None) -> Iterator[Event]:
        member = self.members[index]
        try:
            progress = next(member) if problem is None else member.throw(problem)
        except StopIteration:
            self._leave(index)
            yield Event(index, "done")
        except Exception as error:  # the others go on; the run folder has the reason
            self._leave(index)
            yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
        else:
            yield from self.reporters[index](progress)

    def _leave(self, index: int) -> None:
        del self.members[index]
        self.arrived.discard(index)

    def _step(self) -> Iterator[Event]:
        try:
            if self.step is None:
                self.step = fastest_step([self.trainings[index] for index in self.members], stacked=self.stacked)
            self.step()
        except Exception as error:
            for index in list(self.members):
                yield from self._resume(index, error)
            return
        self.arrived.clear()
        self.taken += 1
        if self.stream is not None:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self.stream)
            self.unfinished.append(done)

    def is_ahead(self) -> bool:
        """Whether the device has as many of the lane's steps to do as the host may be ahead."""
        while self.unfinished and self.unfinished[0].query():
            self.unfinished.popleft()
        return len(self.unfinished) >= STEPS_AHEAD

    def _own_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def close(self) -> None:
        """End the members where they are."""
        for member in self.members.values():
            member.close()
