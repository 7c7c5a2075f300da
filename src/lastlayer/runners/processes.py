"""Trials on the CPU: each worker process runs one at a time. A single trial runs in this process.

Tests: tests/runners/test_processes.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from lastlayer.data import reading_once
from lastlayer.runners.protocol import Event, Work, register


@register("local")
def run_local(work: Work) -> Iterator[Event]:
    """Run the trials in worker processes, or one after another in this one if workers would gain nothing."""
    many = len(work.trials) > 1 and work.placement.workers != 1
    if many and work.device.type == "cpu" and work.data.given is None:
        yield from _in_processes(work)
    else:
        for index in work.waiting:
            yield from work.run(index)


def _in_processes(work: Work) -> Iterator[Event]:
    cores = os.cpu_count() or 1
    # of all trials, not of those that wait: the last bits of a result depend on the number of threads
    count = min(work.placement.workers or cores, len(work.trials))
    context = multiprocessing.get_context("spawn")
    pending = deque(work.waiting)
    workers: dict[Connection, tuple[BaseProcess, int]] = {}

    def give(ours: Connection, process: BaseProcess) -> None:
        index = pending.popleft()
        workers[ours] = (process, index)
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed below
            ours.send(index)

    def hire() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work, max(1, cores // count)), daemon=True)
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
    """A process that is started in here ignores Ctrl-C while it imports. Otherwise it would end with a traceback."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, work: Work, threads: int) -> None:
    """A worker: takes indices of trials from the pipe and sends events back until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with reading_once():
        while True:
            try:
                index = connection.recv()
            except EOFError:
                return
            for event in work.run(index):
                connection.send(event)


def _end_with_parent() -> None:
    """End when the parent has ended. One that is killed cannot stop its workers, and they would keep their locks."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
