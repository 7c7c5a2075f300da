"""What a run writes on its way: metrics and checkpoints, while the device goes on training, and TensorBoard logs.

Tests: tests/training/engine/test_checkpoint.py.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from lastlayer.runs import RunFolder
from lastlayer.training.trial import Trial

SHARE = 0.02  # of the time, at most, that writing checkpoints may take
LONGEST = 600.0  # seconds after which a checkpoint is written, whatever share that takes

Logger = Callable[[Mapping[str, Any]], None]


class Saver:
    """Writes the metrics and checkpoints of a run: at once on a CPU, in a thread if a GPU trains meanwhile.

    `save` copies a checkpoint behind the work that the device has been given and before what it is given next. Only the
    writing waits. One checkpoint is written at a time. If writing fails, the next call raises the error. Leaving the
    context waits for what is being written, so that nobody else writes to the run by then.

    A checkpoint is left out while the one before is being written, or if that was so recently that writing would take
    more than SHARE of the time. An epoch may be shorter than writing the network, and a thread that writes takes turns
    with the one that keeps a GPU busy.

    Args:
        folder: of the run; None writes nothing.
        device: where it trains.
        patience: seconds before the first checkpoint is due.
    """

    def __init__(self, folder: RunFolder | None, device: torch.device, patience: float = 0.0) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, "checkpoint") if device.type == "cuda" and folder is not None else None
        self._writing: deque[Future[None]] = deque()
        self._next = (
            time.monotonic() + patience
        )  # when a checkpoint may be written again; infinite while one is being written

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written."""
        return all(writing.done() for writing in self._writing)

    def save(self, epoch: int, line: Mapping[str, Any], state: Mapping[str, Any], *, must: bool = False) -> None:
        """Append a line to the metrics. Write the checkpoint of an epoch if it `must` be, or if it is due.

        Raises:
            OSError: if something could not be written, now or earlier.
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
        """Wait until everything is written.

        Raises:
            OSError: if something could not be written.
        """
        while self._writing:
            self._writing.popleft().result()

    def _write(self, epoch: int, line: Mapping[str, Any], state: Any, copied: Any) -> None:
        if self.folder is None:
            return
        if copied is not None:
            copied.synchronize()
        began = time.monotonic()
        self.folder.append_metrics(line, lasting=state is not None)
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
    return [_copied(value) for value in state] if isinstance(state, list) else state


@contextlib.contextmanager
def make_logger(folder: str | Path | None, trial: Trial) -> Iterator[Logger]:
    """A function that logs one line of metrics to TensorBoard. Without a folder it does nothing.

    Nested names are joined by slashes.

    Raises:
        ImportError: if there is a folder but no TensorBoard. The message names the extra.
    """
    if folder is None:
        yield lambda line: None
        return
    writer = import_writer()(str(Path(folder) / f"{trial.loss.name}-seed{trial.seed}-{trial.identity}"))

    def log(line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            for inner, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                if name != "epoch":
                    writer.add_scalar(f"{name}/{inner}".rstrip("/"), number, line["epoch"])
        writer.flush()

    with contextlib.closing(writer):
        yield log


def import_writer() -> Any:
    """TensorBoard's writer, or an error that names the extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'lastlayer[tensorboard]'") from None
    return SummaryWriter
