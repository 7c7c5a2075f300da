"""Many trials on this machine: worker processes on the CPU, a pack on a GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from lastlayer.data import Dataset
from lastlayer.runners.protocol import Event, Placement, Reporter
from lastlayer.training.loop import fit
from lastlayer.training.trial import Trial


def run_trials(trials: Sequence[Trial], plan: Placement, dataset: Dataset | None = None) -> Iterator[Event]:
    """Run what is not done yet, yielding events as they come.

    A failing trial, even one whose process is killed, does not stop the others. Closing the iterator stops the workers;
    the same call goes on from the last checkpoints.

    Args:
        trials: resolved.
        plan: where and how.
        dataset: the data of all trials, if it is loaded already; they then share it and run in this process.

    Raises:
        ValueError: at once, for a device that this machine does not have, or batches that do not divide among several.
        ImportError: at once, for several devices without Lightning Fabric.
    """
    device = resolve_device(plan.device)
    if plan.devices > 1:
        from lastlayer.runners.ranks import check_spanning

        check_spanning(trials, plan, torch.device(device))
    return _run_trials(trials, plan, dataset, device)


def _run_trials(trials: Sequence[Trial], plan: Placement, dataset: Dataset | None, device: str) -> Iterator[Event]:
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
    if plan.devices > 1:
        from lastlayer.runners.ranks import run_spanning

        yield from run_spanning(trials, pending, plan, torch.device(device))
    elif device.startswith("cuda"):
        from lastlayer.runners.pack import run_packed

        yield from run_packed(trials, pending, plan, torch.device(device), dataset)
    elif device == "cpu" and dataset is None and len(trials) > 1 and plan.workers != 1:
        yield from _in_processes(trials, plan, pending)
    else:
        for index in pending:
            yield from _run_one(index, trials[index], plan, device, dataset)


def resolve_device(device: str) -> str:
    """The device that is meant, "auto" the first GPU if there is one; ValueError where this machine has it not."""
    gpus = torch.cuda.device_count()
    if device == "auto":
        return "cuda" if gpus else "cpu"
    chosen = None
    with contextlib.suppress(RuntimeError):
        chosen = torch.device(device)
    if chosen is None or chosen.type not in ("cpu", "cuda"):  # torch knows more than trials run on
        raise ValueError(f"device must be auto, cpu, cuda, cuda:1, ..., got {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        has = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no GPU that torch can use (see lastlayer doctor)"
        raise ValueError(f"device {device} was asked for, but this machine has {has}")
    return device


def _run_one(
    index: int, trial: Trial, plan: Placement, device: str, dataset: Dataset | None = None
) -> Generator[Event, None, None]:
    folder = plan.folder(trial)
    yield Event(index, "start")
    report = Reporter(index)
    try:
        for progress in fit(
            trial, folder, device=device, data_root=plan.data_root, dataset=dataset, tensorboard=plan.tensorboard
        ):
            yield from report(progress)
    except Exception as error:  # the others go on; the run folder has the reason
        yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
    else:
        yield Event(index, "done")


def _in_processes(trials: Sequence[Trial], plan: Placement, pending: deque[int]) -> Iterator[Event]:
    cores = os.cpu_count() or 1
    count = min(plan.workers or cores, len(trials))  # not those pending: threads change the last bits of a result
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
        with _deaf_to_interrupts():
            process.start()
        theirs.close()
        give(ours, process)

    try:
        for _ in range(min(count, len(pending))):
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


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process started in here ignores Ctrl-C while it still imports: it would die with a traceback of its own."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection, plan: Placement, threads: int) -> None:
    """A worker: takes trials from the pipe and sends events back until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            index, trial = connection.recv()
        except EOFError:
            return
        for event in _run_one(index, trial, plan, "cpu"):
            connection.send(event)


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers; one left behind would keep its run locked against the next command."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
