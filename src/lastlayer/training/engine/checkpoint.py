"""What a run leaves on disk on its way, written while the device goes on training."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from lastlayer.runs import RunFolder

SHARE = 0.02  # of the time, at most, that writing checkpoints may take
LONGEST = 600.0  # seconds after which one is written whatever share that takes


class Saver:
    """Writes metrics and checkpoints of a run: at once on the CPU, in a thread where a GPU trains meanwhile.

    A checkpoint is copied when it is asked for, behind the work the device has been given and before what it is given
    next; only the writing waits. One is written at a time, and an error of writing is raised by the next call. Leaving
    the context waits for what is being written, so that nobody else writes to the run by then.

    A checkpoint is left out while the one before is not written, or not long enough ago for SHARE: epochs may be
    shorter than writing the network, and a thread that writes takes turns with the one that keeps a GPU busy.

    Args:
        folder: of the run; None writes nothing.
        device: where it trains.
    """

    def __init__(self, folder: RunFolder | None, device: torch.device) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, "checkpoint") if device.type == "cuda" and folder is not None else None
        self._writing: deque[Future[None]] = deque()
        self._next = 0.0  # when a checkpoint may be written again; infinite while one is being written

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written."""
        return all(writing.done() for writing in self._writing)

    def save(self, epoch: int, line: Mapping[str, Any], state: Mapping[str, Any], *, must: bool = False) -> None:
        """Append a line to the metrics and write the checkpoint of an epoch, if it `must` be or its time has come.

        Raises:
            OSError: when what was asked for before could not be written.
        """
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()
        copied = done = None
        if must or time.monotonic() >= self._next:
            self._next = math.inf
            copied = _copied(state)
        if self._writer is None:
            self._write(epoch, line, copied, None)
            return
        if copied is not None:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._writing.append(self._writer.submit(self._write, epoch, dict(line), copied, done))

    def wait(self) -> None:
        """Until what was asked for is written.

        Raises:
            OSError: when it could not be.
        """
        while self._writing:
            self._writing.popleft().result()

    def _write(self, epoch: int, line: Mapping[str, Any], state: Any, copied: Any) -> None:
        if self.folder is None:
            return
        if copied is not None:
            copied.synchronize()
        began = time.monotonic()
        self.folder.append_metrics(line)
        if state is not None:
            self.folder.save_checkpoint(epoch, state)
            ended = time.monotonic()
            self._next = ended + min((ended - began) / SHARE, LONGEST)


def _copied(state: Any) -> Any:
    """The same on the host: tensors in memory of their own, lists and dicts that no longer grow."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", non_blocking=True) if state.is_cuda else state.detach().clone()
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return state
