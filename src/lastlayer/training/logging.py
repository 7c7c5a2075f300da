"""TensorBoard logs of a trial, where they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lastlayer.training.trial import Trial

Logger = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def make_logger(folder: str | Path | None, trial: Trial) -> Iterator[Logger]:
    """A function that logs one line of metrics.jsonl, nested names joined by slashes; without a folder it does nothing.

    Raises:
        ImportError: when TensorBoard is asked for and not installed, naming the extra.
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

    try:
        yield log
    finally:
        writer.close()


def import_writer() -> Any:
    """TensorBoard's writer, or an error that names the extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'lastlayer[tensorboard]'") from None
    return SummaryWriter
