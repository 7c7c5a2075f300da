"""One trial after another, each over several devices."""

from __future__ import annotations

import functools
import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lastlayer.runners.protocol import Event, Placement, Reporter
from lastlayer.training.loop import fit
from lastlayer.training.ranks import Ranks, check_batch, import_fabric
from lastlayer.training.steps import Progress
from lastlayer.training.trial import Trial

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_spanning(trials: Sequence[Trial], plan: Placement, device: torch.device) -> None:
    """Say before anything trains what would fail every trial that is to span several devices.

    Raises:
        ImportError: without Lightning Fabric.
        ValueError: for more GPUs than there are, or a batch that does not divide among the devices.
    """
    import_fabric()
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and plan.devices > gpus:
        raise ValueError(f"{plan.devices} devices were asked for, but this machine has {gpus} GPU{'s' * (gpus != 1)}")
    for trial in trials:
        if plan.folder(trial).status != "done":
            check_batch(trial.batch_size, plan.devices)


def run_spanning(
    trials: Sequence[Trial], pending: deque[int], plan: Placement, device: torch.device
) -> Iterator[Event]:
    """Run the pending trials, each on `plan.devices` devices at once; the first rank keeps the run folder."""
    fabric_class = import_fabric()
    for index in pending:
        yield Event(index, "start")
        told: Any = multiprocessing.get_context("spawn").Queue()
        problem: list[BaseException] = []

        def launch(trial: Trial = trials[index], told: Any = told, problem: list[BaseException] = problem) -> None:
            try:
                fabric = fabric_class(accelerator=device.type, devices=plan.devices, strategy="ddp_spawn")
                # not as arguments of launch, which looks into them and refuses frozen dataclasses
                fabric.launch(functools.partial(_rank, trial=trial, plan=plan, told=told))
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        report = Reporter(index)
        while thread.is_alive() or not told.empty():
            try:
                progress: Progress = told.get(timeout=0.2)
            except queue.Empty:
                continue
            yield from report(progress)
        folder = plan.folder(trials[index])
        if folder.status == "done":
            yield Event(index, "done")
        else:
            failed = folder.status == "failed"
            reason = folder.failure()["error"] if failed else str(problem[0] if problem else "its processes ended")
            yield Event(index, "failed", message=reason.strip().splitlines()[-1])


def _rank(fabric: Fabric, trial: Trial, plan: Placement, told: Any) -> None:
    if fabric.device.type == "cpu":
        torch.set_num_threads(1)
    ranks = Ranks(fabric)
    report = Reporter(0)
    for progress in fit(
        trial,
        plan.folder(trial),
        device=fabric.device,
        data_root=plan.data_root,
        tensorboard=plan.tensorboard if ranks.rank == 0 else None,
        ranks=ranks,
    ):
        if ranks.rank == 0:
            for event in report(progress):
                told.put(event.progress)
