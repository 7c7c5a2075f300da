"""Trials on the CPU: each worker process runs one at a time. A single trial runs in this process."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from lastlayer.data import reading_once
from lastlayer.runners.protocol import Event, Work, register


@dataclass
class _Worker:
    """A process that runs one trial at a time, and our end of the pipe to it."""

    connection: Connection
    process: BaseProcess
    work: Work | None = None  # what it was given last

    def run(self, work: Work, threads: int, index: int) -> None:
        """Have it run a trial."""
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed when we listen to it
            self.connection.send((None if self.work is work else (work, threads), index))
        self.work = work


class _Kept:
    """Workers without a trial, which wait for the next call while `keeping_workers` is open."""

    def __init__(self) -> None:
        self.users = 0
        self.workers: list[_Worker] = []


_KEPT = _Kept()


@contextlib.contextmanager
def keeping_workers() -> Iterator[None]:
    """While this context is open, worker processes stay for the next call. To start one takes a second or two."""
    _KEPT.users += 1
    try:
        yield
    finally:
        _KEPT.users -= 1
        if not _KEPT.users:
            while _KEPT.workers:
                _KEPT.workers.pop().connection.close()  # it then ends


@register("local")
def run_local(work: Work) -> Iterator[Event]:
    """Run the trials in worker processes, or one after another in this one if workers would gain nothing."""
    many = (len(work.trials) > 1 or _KEPT.workers) and work.placement.workers != 1
    if many and work.device.type == "cpu" and work.data.given is None:
        yield from _in_processes(work)
    else:
        for index in work.waiting:
            yield from work.run(index)


def _in_processes(work: Work) -> Iterator[Event]:
    cores = os.cpu_count() or 1
    # of all trials, not of those that wait: the last bits of a result depend on the number of threads
    count = min(work.placement.workers or cores, max(len(work.trials), len(_KEPT.workers)))
    pending = deque(work.waiting)
    busy: dict[Connection, tuple[_Worker, int]] = {}

    def give(worker: _Worker) -> None:
        index = pending.popleft()
        busy[worker.connection] = (worker, index)
        worker.run(work, max(1, cores // count), index)

    try:
        for _ in range(min(count, len(pending))):
            give(_hired())
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, index = busy[ready]
                try:
                    event: Event = ready.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    del busy[ready]
                    yield Event(index, "failed", message=f"its process died (exit code {worker.process.exitcode})")
                    if pending:
                        give(_hired())
                    continue
                yield event
                if event.kind in ("done", "failed"):
                    if pending:
                        give(worker)
                        continue
                    del busy[ready]
                    if _KEPT.users:
                        _KEPT.workers.append(worker)
                    else:
                        ready.close()
    finally:
        for worker, _ in busy.values():
            worker.process.terminate()
        for worker, _ in busy.values():
            worker.process.join()


def _hired() -> _Worker:
    """A worker that was kept, or a new one."""
    while _KEPT.workers:
        worker = _KEPT.workers.pop()
        if worker.process.is_alive():
            return worker
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    with _deaf_to_interrupts():
        process.start()
    theirs.close()
    return _Worker(ours, process)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process that is started in here ignores Ctrl-C while it imports. Otherwise it would end with a traceback."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection) -> None:
    """A worker: takes indices of trials from the pipe and sends events back until the pipe closes.

    With the first index of a call comes its work, and how many threads a trial may use.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with reading_once():
        while True:
            try:
                given, index = connection.recv()
            except EOFError:
                return
            if given is not None:
                work, threads = given
                torch.set_num_threads(threads)
            for event in work.run(index):
                connection.send(event)


def _end_with_parent() -> None:
    """End when the parent has ended. One that is killed cannot stop its workers, and they would keep their locks."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
