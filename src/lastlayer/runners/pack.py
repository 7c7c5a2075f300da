"""Many trials on one GPU at once: each is captured as a CUDA graph and has a stream of its own.

A small network leaves most of a large GPU idle, and launching its kernels one by one costs more than running them. So
a whole step, from drawing the batch to updating the parameters, is compiled and captured once, and then replayed. The
trials of a pack take turns, one replay each, and the GPU runs them side by side. In each step the CPU only starts
replays. It stays at most a few steps ahead of the GPU: what a trial does between epochs, such as measuring, then starts
at once, while the others go on.
"""

import contextlib
import gc
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from lastlayer.data import Dataset
from lastlayer.runners.graph import accelerate
from lastlayer.runners.protocol import Event, Reporter, SharedData, Work, register
from lastlayer.training.engine.feed import fits

LARGEST_PACK = 8  # more streams do not overlap
MEMORY_SHARE = 0.8  # of the free memory that a pack may plan to take
STEPS_AHEAD = 32  # how many steps the CPU may be ahead of the device
IDLE_SECONDS = 1e-4


@register("pack")
def run_packed(work: Work) -> Iterator[Event]:
    """Run the trials, as many at a time as the pack holds, each on its own stream.

    The result of a trial does not depend on the others: it has its own generator and buffers, the kernels that it would
    have alone, and its steps run in their own order. If a trial runs out of memory while others run, it waits until one
    of them finishes, and then goes on.
    """
    pending, device = deque(work.waiting), work.device

    def move(dataset: Dataset) -> Dataset:
        return dataset.to(device) if fits(dataset, device) else dataset

    data = SharedData(work.placement.data_root, work.data.given, move)
    lanes: list[Lane] = []
    streams: list[Any] = []  # no lane uses them; the next lane does, because torch keeps memory for each stream
    size = work.placement.pack
    free = 0
    try:
        while pending or lanes:
            # the first trial runs alone until its memory is known
            if pending and len(lanes) < (size or 1):
                index = pending.popleft()
                yield Event(index, "start")
                dataset = data.load(work.trials[index].data)
                free = free or free_memory(device)  # beside the data, which trials share
                make_room(device, free // (size or LARGEST_PACK))
                if not streams:
                    streams.append(torch.cuda.Stream(device) if device.type == "cuda" else None)  # type: ignore[no-untyped-call]
                lanes.append(Lane(work, index, streams.pop(), dataset))
            alone = len(lanes) == 1
            for lane in lanes:
                yield from lane.turn(alone=alone)
            if size is None and any(lane.has_stepped for lane in lanes):
                size = pack_size(device, free)
            streams += [lane.stream for lane in lanes if lane.ended]
            crowded = [lane.index for lane in lanes if lane.crowded_out]
            lanes = [lane for lane in lanes if not lane.ended]
            if crowded:
                pending.extendleft(reversed(crowded))
                size = max(1, len(lanes))
            if lanes and all(lane.is_ahead() for lane in lanes):
                time.sleep(IDLE_SECONDS)
    finally:
        for lane in lanes:
            lane.steps.close()


def free_memory(device: torch.device) -> int:
    """Free bytes of a GPU; 0 for a CPU, where they are not counted."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def make_room(device: torch.device, wanted: int) -> None:
    """If less memory is free than wanted, free what finished trials have left, above all their graphs.

    That is impossible while a graph is captured, and the device waits meanwhile, so it is done only if needed.
    """
    if device.type == "cuda" and free_memory(device) < wanted:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # torch frees nothing once a capture has failed; trials go on
            torch.cuda.empty_cache()


def pack_size(device: torch.device, free_before: int) -> int:
    """How many trials like the one that runs fit in the memory that was free before it, up to LARGEST_PACK."""
    if device.type != "cuda":
        return LARGEST_PACK
    each = max(free_before - free_memory(device), 1)
    return max(1, min(LARGEST_PACK, int(MEMORY_SHARE * free_before / each)))


class Lane:
    """A trial on a stream of its own, which takes turns with others."""

    def __init__(self, work: Work, index: int, stream: Any, dataset: Dataset | None) -> None:
        self.index, self.stream = index, stream
        self.has_stepped = False  # a step has been run, so that the trial's memory is taken
        self.ended = False  # it is done, has failed, or was crowded out
        self.crowded_out = False  # it ended because the others hold the memory that it needs
        self._trial, self._folder = work.trials[index], work.folder(index)
        self._report = Reporter(index, work.placement.report_seconds)
        self._unfinished: deque[Any] = deque()  # one CUDA event per turn that the device may not have finished
        self._alone = True
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(work.device))  # on which the data was moved
        self.steps = work.fit(
            index, dataset=dataset, prepare=lambda state, feed: accelerate(state, feed, alone=self._alone)
        )

    def turn(self, *, alone: bool) -> Iterator[Event]:
        """Go on to the next pause, unless the device still has enough to do. If it is alone, no memory comes free."""
        if self.is_ahead():
            return
        self._alone = alone
        try:
            with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                progress = next(self.steps)
        except StopIteration:
            self.ended = True
            yield Event(self.index, "done")
        except Exception as error:  # the others go on; the run folder has the reason
            self.ended = True
            if isinstance(error, torch.OutOfMemoryError) and not alone:
                self.crowded_out = True
                self._folder.forget_failure()
                warnings.warn(
                    f"{self._trial.model.name} with {self._trial.loss.name}, seed {self._trial.seed}, finds no memory "
                    "beside the others. It goes on when one of them has ended; --pack sets how many run at a time",
                    stacklevel=2,
                )
                return
            yield Event(self.index, "failed", message=f"{type(error).__name__}: {error}")
        else:
            self.has_stepped = progress.step > 0
            if self.stream is not None:
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self.stream)
                self._unfinished.append(done)
            yield from self._report(progress)

    def is_ahead(self) -> bool:
        """Whether the device has as many turns to do as the CPU may be ahead."""
        while self._unfinished and self._unfinished[0].query():
            self._unfinished.popleft()
        return len(self._unfinished) >= STEPS_AHEAD
