"""What a run leaves on disk on its way, written while the device goes on training."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from lastlayer.runs import RunFolder


class Saver:
    """Writes metrics and checkpoints of a run: at once on the CPU, in a thread where a GPU trains meanwhile.

    A checkpoint is copied when it is asked for, behind the work the device has been given and before what it is given
    next; only the writing waits. One is written at a time, and an error of writing is raised by the next call. Leaving
    the context waits for what is being written, so that nobody else writes to the run by then.

    Args:
        folder: of the run; None writes nothing.
        device: where it trains.
    """

    def __init__(self, folder: RunFolder | None, device: torch.device) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, "checkpoint") if device.type == "cuda" and folder is not None else None
        self._writing: Future[None] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)

    def save(self, epoch: int, line: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Append a line to the metrics and write the checkpoint of an epoch."""
        if self._writer is None:
            self._write(epoch, line, _copied(state), None)
            return
        self.wait()
        copied = _copied(state)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        self._writing = self._writer.submit(self._write, epoch, dict(line), copied, done)

    def wait(self) -> None:
        """Until what was asked for is written.

        Raises:
            OSError: when it could not be.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(self, epoch: int, line: Mapping[str, Any], state: Any, copied: Any) -> None:
        if self.folder is None:
            return
        if copied is not None:
            copied.synchronize()
        self.folder.append_metrics(line)
        self.folder.save_checkpoint(epoch, state)


def _copied(state: Any) -> Any:
    """The same on the host: tensors in memory of their own, lists and dicts that no longer grow."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", non_blocking=True) if state.is_cuda else state.detach().clone()
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return state
