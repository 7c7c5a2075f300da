"""Many trials on this machine: worker processes on the CPU, one after another on a GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from lastlayer.runs import RunFolder
from lastlayer.training.loop import Progress, fit
from lastlayer.training.trial import Trial

REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Event:
    """Something that happened to the trial at `index`: it started, moved on, was done already, ended or failed."""

    index: int
    kind: Literal["start", "progress", "skip", "done", "failed"]
    progress: Progress | None = None
    message: str = ""


@dataclass(frozen=True)
class Plan:
    """Where and how trials run.

    Attributes:
        root: folder of the run folders, each named by its trial's identity.
        device: "cpu", "cuda", "cuda:1", ..., or "auto" for the GPU if there is one.
        workers: processes on the CPU; None takes one a core. Each has its share of the threads.
        data_root: where data sets lie.
        retry_failed: run failed trials again; otherwise they stay failed.
        tensorboard: folder for TensorBoard logs.
    """

    root: Path
    device: str = "auto"
    workers: int | None = None
    data_root: Path | None = None
    retry_failed: bool = False
    tensorboard: Path | None = None

    def folder(self, trial: Trial) -> RunFolder:
        """The run folder of a resolved trial."""
        return RunFolder(self.root / trial.identity)


def run_trials(trials: Sequence[Trial], plan: Plan) -> Iterator[Event]:
    """Run what is not done yet, yielding events as they come.

    A failing trial, even one whose process is killed, does not stop the others. Closing the iterator stops the workers;
    every whole epoch so far is on disk, and the same call goes on from there.

    Args:
        trials: resolved.
        plan: where and how.
    """
    pending: deque[int] = deque()
    for index, trial in enumerate(trials):
        status = plan.folder(trial).status
        if status == "done":
            yield Event(index, "skip", message="done already")
        elif status == "failed" and not plan.retry_failed:
            reason = plan.folder(trial).failure()["error"]
            yield Event(index, "failed", message=f"{reason} (--retry-failed runs it again)")
        else:
            pending.append(index)
    device = _resolve(plan.device)
    if device == "cpu" and len(pending) > 1 and plan.workers != 1:
        yield from _in_processes(trials, plan, pending)
    else:
        for index in pending:
            yield from _run_one(index, trials[index], plan, device)


def _resolve(device: str) -> str:
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _run_one(index: int, trial: Trial, plan: Plan, device: str) -> Generator[Event, None, None]:
    yield Event(index, "start")
    shown = 0.0
    try:
        for progress in fit(
            trial, plan.folder(trial), device=device, data_root=plan.data_root, tensorboard=plan.tensorboard
        ):
            if time.monotonic() - shown > REPORT_SECONDS:
                shown = time.monotonic()
                yield Event(index, "progress", progress)
    except Exception as error:  # the others go on; the run folder has the reason
        yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
    else:
        yield Event(index, "done")


def _in_processes(trials: Sequence[Trial], plan: Plan, pending: deque[int]) -> Iterator[Event]:
    cores = os.cpu_count() or 1
    count = min(plan.workers or cores, len(pending))
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, tuple[BaseProcess, int]] = {}

    def give(ours: Connection, process: BaseProcess) -> None:
        index = pending.popleft()
        workers[ours] = (process, index)
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed below
            ours.send((index, trials[index]))

    def hire() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, plan, max(1, cores // count)), daemon=True)
        process.start()
        theirs.close()
        give(ours, process)

    try:
        for _ in range(count):
            hire()
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                process, index = workers[ready]
                try:
                    event: Event = ready.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    del workers[ready]
                    yield Event(index, "failed", message=f"its process died (exit code {process.exitcode})")
                    if pending:
                        hire()
                    continue
                yield event
                if event.kind in ("done", "failed"):
                    if pending:
                        give(ready, process)
                    else:
                        del workers[ready]
                        ready.close()
    finally:
        for process, _ in workers.values():
            process.terminate()
        for process, _ in workers.values():
            process.join()


def _work(connection: Connection, plan: Plan, threads: int) -> None:
    """A worker: takes trials from the pipe and sends events back until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            index, trial = connection.recv()
        except EOFError:
            return
        for event in _run_one(index, trial, plan, "cpu"):
            connection.send(event)
