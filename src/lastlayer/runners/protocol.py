"""What runners take and tell: plans and events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lastlayer.runs import RunFolder
from lastlayer.training.steps import Progress
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
class Placement:
    """Where and how trials run.

    Attributes:
        root: folder of the run folders, each named by its trial's identity.
        device: "cpu", "cuda", "cuda:1", ..., or "auto" for the GPU if there is one.
        workers: processes on the CPU; None takes one a core. Each has its share of the threads.
        pack: trials at a time on a GPU; None takes what fits, up to eight.
        devices: devices each trial spans; more than one needs Lightning Fabric.
        data_root: where data sets lie.
        retry_failed: run failed trials again; otherwise they stay failed.
        tensorboard: folder for TensorBoard logs.
    """

    root: Path
    device: str = "auto"
    workers: int | None = None
    pack: int | None = None
    devices: int = 1
    data_root: Path | None = None
    retry_failed: bool = False
    tensorboard: Path | None = None

    def folder(self, trial: Trial) -> RunFolder:
        """The run folder of a resolved trial."""
        return RunFolder(self.root / trial.identity)


class Reporter:
    """Progress of one trial as events: a few a second at most, and whenever it begins or ends to measure."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._shown = 0.0
        self._measuring: bool | None = None

    def __call__(self, progress: Progress) -> Iterator[Event]:
        if progress.measuring != self._measuring or time.monotonic() - self._shown > REPORT_SECONDS:
            self._shown, self._measuring = time.monotonic(), progress.measuring
            yield Event(self.index, "progress", progress)
