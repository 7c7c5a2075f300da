"""What a runner is: a function that runs the trials of some `Work` and yields an `Event` for all that happens to them.

To add a runner, write such a function and register it under a name; CONTRIBUTING.md has a complete example. A file in
this folder is found by itself. A function elsewhere is named by its path: `Placement(runner="my_module:my_runner")`.

What is expected of a runner:
- For each trial in `work.waiting` it yields "start", any number of "progress", and at last "done" or "failed".
- A trial that fails stops no other one. Only what keeps all trials from running is raised, when the function is called.
- Everything else is in the run folders. A runner that trains elsewhere, such as on a cluster, calls
  `lastlayer.training.fit` there with `work.folder(index)`. It yields `work.outcome(index)` when the trial has ended.
- When its iterator is closed, it stops what runs. The trials can then go on from their last checkpoints.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from lastlayer._core.registry import Registry, find, import_all, split_path
from lastlayer.data import Dataset, reading_once
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, Progress, Trial, choose, fit, load_data


@dataclass(frozen=True)
class Event:
    """Something that happened to the trial at `index`: it started, went on, was done before, ended or failed."""

    index: int
    kind: Literal["start", "progress", "skip", "done", "failed"]
    progress: Progress | None = None
    message: str = ""


@dataclass(frozen=True)
class Placement:
    """Where and how trials run."""

    root: Path  # folder of the run folders, each named by its trial's identity
    device: str = "auto"  # "cpu", "cuda", "cuda:1", ..., or "auto" for the GPU if there is one
    workers: int | None = None  # processes on the CPU; None takes one per core. They share the cores' threads evenly
    pack: int | None = None  # trials at a time on a GPU; None takes as many as fit, up to eight
    devices: int = 1  # that each trial spans; more than one needs Lightning Fabric
    data_root: Path | None = None  # where data sets lie
    retry_failed: bool = False  # run failed trials again; otherwise they stay failed
    tensorboard: Path | None = None  # folder for TensorBoard logs
    trust: tuple[str, ...] = ()  # modules that the run of a teacher may name
    runner: str | None = None  # name or path of the runner; None takes the one that suits the device
    report_seconds: float = 0.2  # least time between two progress events of a trial

    def folder(self, trial: Trial) -> RunFolder:
        """The run folder of a resolved trial."""
        return RunFolder(self.root / trial.identity)


class SharedData:
    """Reads the data of trials. It keeps what it read last, since trials that follow each other mostly use the same.

    If the data set of all trials is loaded already, it is `given` as it was read. What a trial takes of it, such as a
    fold, is chosen here. `move` brings a data set to where the trials run.
    """

    def __init__(
        self,
        root: Path | None = None,
        given: Dataset | None = None,
        move: Callable[[Dataset], Dataset] | None = None,
    ) -> None:
        self.root, self.given, self._move = root, given, move
        self._last: tuple[DataChoice, Dataset] | None = None

    def load(self, choice: DataChoice) -> Dataset | None:
        """The data, or None if it cannot be read. The trial then meets the reason itself and writes it down."""
        if self._last is None or self._last[0] != choice:
            self._last = None  # before another takes memory
            try:
                given = self.given
                dataset = load_data(choice, self.root) if given is None else choose(given, choice, self.root)
                self._last = (choice, dataset if self._move is None else self._move(dataset))
            except Exception:
                return None
        return self._last[1]


@dataclass(frozen=True)
class Work:
    """What a runner is given."""

    trials: Sequence[Trial]  # resolved. Some of them need not run
    waiting: tuple[int, ...]  # the indices of those to run, in this order
    placement: Placement  # where and how
    device: torch.device  # the placement's, found on this machine
    data: SharedData = field(default_factory=SharedData)  # reads the trials' data sets, each of them once

    def folder(self, index: int) -> RunFolder:
        """The run folder of a trial."""
        return self.placement.folder(self.trials[index])

    def fit(self, index: int, **options: Any) -> Generator[Progress, None, dict[str, Any]]:
        """The training of one trial, as `lastlayer.training.fit`; `options` override the placement."""
        here = self.placement
        placed = {"device": self.device, "tensorboard": here.tensorboard, "trust": here.trust, **options}
        return fit(self.trials[index], self.folder(index), data_root=self.placement.data_root, **placed)

    def run(self, index: int) -> Iterator[Event]:
        """Run one trial in this process, from its start to its end."""
        yield Event(index, "start")
        report = Reporter(index, self.placement.report_seconds)
        try:
            for progress in self.fit(index, dataset=self.data.load(self.trials[index].data)):
                yield from report(progress)
        except Exception as error:  # the others go on; the run folder has the reason
            yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
        else:
            yield Event(index, "done")

    def outcome(self, index: int, otherwise: str = "it ended without a result") -> Event:
        """The last event of a trial that ran in another process: done, or failed for the reason in its run folder.

        If the folder has no reason, it is `otherwise`.
        """
        folder = self.folder(index)
        if folder.status == "done":
            return Event(index, "done")
        reason = str(folder.failure()["error"]) if folder.status == "failed" else otherwise
        return Event(index, "failed", message=(reason.strip() or otherwise).splitlines()[-1].strip())


Runner = Callable[[Work], Iterator[Event]]
RUNNERS: Registry[Runner] = Registry("runner", "package.module:function")


def register(name: str) -> Callable[[Runner], Runner]:
    """Register a runner under a name."""

    def registered(runner: Runner) -> Runner:
        RUNNERS.add(name, runner)
        return runner

    return registered


class Reporter:
    """The progress of one trial as events: not too often, but always when measuring begins or ends."""

    def __init__(self, index: int, seconds: float) -> None:
        self.index, self.seconds = index, seconds
        self._shown = 0.0
        self._measuring: bool | None = None

    def __call__(self, progress: Progress) -> Iterator[Event]:
        if progress.measuring != self._measuring or time.monotonic() - self._shown > self.seconds:
            self._shown, self._measuring = time.monotonic(), progress.measuring
            yield Event(self.index, "progress", progress)


def run_trials(trials: Sequence[Trial], placement: Placement, dataset: Dataset | None = None) -> Iterator[Event]:
    """Run the resolved trials that are not done yet, yielding events as they come.

    A failing trial does not stop the others, even if its process is killed. Closing the iterator stops the workers. The
    same call then goes on from the last checkpoints. If the data set of all trials is loaded already, give it as it was
    read: they then share it and run in this process, and each takes its own fold and hold-out of it.

    Raises:
        ValueError: at once, for a device that this machine does not have, an unknown runner, or a batch that does not
            divide among several devices.
        ImportError: at once, for several devices without Lightning Fabric.
    """
    device = torch.device(resolve_device(placement.device))
    settled = {index: _settled(index, trial, placement) for index, trial in enumerate(trials)}
    waiting = tuple(index for index, event in settled.items() if event is None)
    runner = _find_runner(placement, device)
    running = runner(Work(trials, waiting, placement, device, SharedData(placement.data_root, dataset)))

    def events() -> Iterator[Event]:
        yield from filter(None, settled.values())
        with reading_once():
            yield from running

    return events()


def _settled(index: int, trial: Trial, placement: Placement) -> Event | None:
    """The only event of a trial that need not run: it is done, or it failed before and must not be tried again."""
    folder = placement.folder(trial)
    status = folder.status
    if status == "done":
        return Event(index, "skip", message="done already")
    if status == "failed" and not placement.retry_failed:
        return Event(index, "failed", message=f"{folder.failure()['error']} (--retry-failed runs it again)")
    return None


def _find_runner(placement: Placement, device: torch.device) -> Runner:
    name = placement.runner
    if name is None:
        name = "ranks" if placement.devices > 1 else "pack" if device.type == "cuda" else "local"
    if name not in RUNNERS and (path := split_path(name)):
        return find(*path, f"runner {name!r}")
    from lastlayer import runners

    import_all(runners)
    return RUNNERS.get(name)


def resolve_device(device: str) -> str:
    """The device that is meant; "auto" is the first GPU if there is one. ValueError if this machine lacks it."""
    gpus = torch.cuda.device_count()
    if device == "auto":
        return "cuda" if gpus else "cpu"
    chosen = None
    with contextlib.suppress(RuntimeError):
        chosen = torch.device(device)
    if chosen is None or chosen.type not in ("cpu", "cuda"):  # torch knows more devices than trials run on
        raise ValueError(f"device must be auto, cpu, cuda, cuda:1, ..., got {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        has = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no GPU that torch can use (see lastlayer doctor)"
        raise ValueError(f"device {device} was asked for, but this machine has {has}")
    return device
