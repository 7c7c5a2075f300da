"""TensorBoard logs of a trial, where they are asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lastlayer.training.trial import Trial

Logger = Callable[[Mapping[str, Any]], None]


def check_logs(folder: Path) -> None:
    """Say that logs cannot be written before anything trains, and before every trial fails of it.

    Raises:
        ImportError: when TensorBoard is not installed, naming the extra.
        ValueError: when there can be no such folder.
    """
    _import_writer()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--tensorboard {folder}: no folder can be made there ({error.strerror}); choose another"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--tensorboard {folder}: nothing can be written there; choose another")


@contextlib.contextmanager
def make_logger(folder: str | Path | None, trial: Trial) -> Iterator[Logger]:
    """A function that logs one line of metrics.jsonl, nested names joined by slashes; without a folder it does nothing.

    Raises:
        ImportError: when TensorBoard is asked for and not installed, naming the extra.
    """
    if folder is None:
        yield lambda line: None
        return
    writer = _import_writer()(str(Path(folder) / f"{trial.loss.name}-seed{trial.seed}-{trial.identity}"))

    def log(line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            for inner, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                if name != "epoch":
                    writer.add_scalar(f"{name}/{inner}".rstrip("/"), number, line["epoch"])
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


def _import_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'lastlayer[tensorboard]'") from None
    return SummaryWriter
