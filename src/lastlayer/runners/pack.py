"""Many trials on one GPU at once: each captured as a CUDA graph, each on a stream of its own.

A small network leaves most of a large GPU idle, and launching its kernels one by one costs more than running them.
Here a whole step, from drawing the batch to updating the parameters, is compiled, captured once and replayed; the
trials of a pack take turns, a replay each, and the device overlaps them. The host does nothing a step but start
replays, and never more of them than a few steps ahead, so that what a trial does between epochs (measuring,
checkpoints) starts at once while the others go on.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lastlayer.data import Dataset
from lastlayer.runners.graph import accelerate
from lastlayer.runners.protocol import Event, Placement, Reporter
from lastlayer.training import load_data, streaming
from lastlayer.training.loop import fit
from lastlayer.training.trial import DataChoice, Trial

LARGEST_PACK = 8  # more streams no longer overlap
MEMORY_SHARE = 0.8  # of the free memory that a pack may plan to take
STEPS_AHEAD = 32  # most steps that the host may be ahead of the device
IDLE_SECONDS = 1e-4


def run_packed(
    trials: Sequence[Trial], pending: deque[int], plan: Placement, device: torch.device, dataset: Dataset | None = None
) -> Iterator[Event]:
    """Run the pending trials, as many at a time as the pack holds, each on its own stream.

    The result of a trial does not depend on its companions: it has its own generator, its own buffers, the kernels it
    would have alone, and its steps come in their own order. One for which there is no memory beside them waits until
    one of them has ended, and goes on then.
    """
    shared = _SharedData(plan, device, dataset)
    lanes: list[_Lane] = []
    streams: list[Any] = []  # that no lane uses, kept for the next: memory set aside for a stream serves no other
    size = plan.pack
    free = 0
    try:
        while pending or lanes:
            # the first trial runs alone until its memory is known
            if pending and len(lanes) < (size or 1):
                index = pending.popleft()
                yield Event(index, "start")
                held = shared.load(trials[index].data)
                free = free or _free_memory(device)  # beside the data, which trials share
                _make_room(device, free // (size or LARGEST_PACK))
                stream = streams.pop() if streams else _new_stream(device)
                lanes.append(_Lane(index, trials[index], plan, device, stream, held, alone=not lanes))
            for lane in lanes:
                yield from lane.turn()
            if size is None and any(lane.has_stepped for lane in lanes):
                size = _pack_size(device, free)
            streams += [lane.stream for lane in lanes if lane.ended]
            crowded = [lane.index for lane in lanes if lane.crowded_out]
            lanes = [lane for lane in lanes if not lane.ended]
            for lane in lanes:
                lane.alone = len(lanes) == 1
            if crowded:
                pending.extendleft(reversed(crowded))
                size = max(1, len(lanes))
            if lanes and all(lane.is_ahead() for lane in lanes):
                time.sleep(IDLE_SECONDS)
    finally:
        for lane in lanes:
            lane.steps.close()


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _make_room(device: torch.device, wanted: int) -> None:
    """Give back what ended trials have left, graphs above all, where less than is wanted is free: none can be while a
    graph is captured. The device waits meanwhile, so not without need."""
    if device.type == "cuda" and _free_memory(device) < wanted:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # torch gives nothing back once a capture has failed; trials go on
            torch.cuda.empty_cache()


def _new_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _pack_size(device: torch.device, free_before: int) -> int:
    """How many trials like the one running fit, up to LARGEST_PACK."""
    if device.type != "cuda":
        return LARGEST_PACK
    each = max(free_before - _free_memory(device), 1)
    return max(1, min(LARGEST_PACK, int(MEMORY_SHARE * free_before / each)))


class _SharedData:
    """The data of the trials, loaded and moved to the device once as long as they train on the same."""

    def __init__(self, plan: Placement, device: torch.device, given: Dataset | None) -> None:
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
    """A trial on a stream of its own."""

    def __init__(
        self,
        index: int,
        trial: Trial,
        plan: Placement,
        device: torch.device,
        stream: Any,
        dataset: Dataset | None,
        *,
        alone: bool = True,
    ) -> None:
        self.index, self.trial, self.folder = index, trial, plan.folder(trial)
        self.alone = alone
        self.report = Reporter(index)
        self.stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(device))  # the data was moved there
        self.steps = fit(
            trial,
            self.folder,
            device=device,
            data_root=plan.data_root,
            dataset=dataset,
            tensorboard=plan.tensorboard,
            prepare=functools.partial(accelerate, alone=alone),
        )
        self.unfinished: deque[Any] = deque()  # an event after each turn that the device may not have done
        self.has_stepped = False
        self.ended = False
        self.crowded_out = False  # ended for want of memory that others hold

    def turn(self) -> Iterator[Event]:
        """Go on to the next pause, unless the device still has enough to do."""
        if self.is_ahead():
            return
        try:
            with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                progress = next(self.steps)
        except StopIteration:
            self.ended = True
            yield Event(self.index, "done")
        except Exception as error:  # the others go on; the run folder has the reason
            self.ended = True
            if isinstance(error, torch.OutOfMemoryError) and not self.alone:
                self.crowded_out = True
                self.folder.forget_failure()
                warnings.warn(
                    f"{self.trial.model.name} with {self.trial.loss.name}, seed {self.trial.seed}, finds no memory "
                    "beside the others: it goes on when one of them has ended; --pack sets how many run at a time",
                    stacklevel=2,
                )
                return
            yield Event(self.index, "failed", message=f"{type(error).__name__}: {error}")
        else:
            self.has_stepped = progress.step > 0
            if self.stream is not None:
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self.stream)
                self.unfinished.append(done)
            yield from self.report(progress)

    def is_ahead(self) -> bool:
        """Whether the device has as many turns to do as the host may be ahead."""
        while self.unfinished and self.unfinished[0].query():
            self.unfinished.popleft()
        return len(self.unfinished) >= STEPS_AHEAD
