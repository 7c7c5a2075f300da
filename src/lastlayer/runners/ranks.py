"""Each trial over several devices at once, one trial after another. Tests: tests/runners/test_ranks.py."""

from __future__ import annotations

import functools
import multiprocessing
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from lastlayer.runners.protocol import Event, Reporter, Work, register
from lastlayer.training import Progress
from lastlayer.training.engine.ranks import Ranks, check_batch, import_fabric

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@register("ranks")
def run_on_ranks(work: Work) -> Iterator[Event]:
    """Run each trial on `placement.devices` devices. The first rank keeps the run folder.

    Raises:
        ImportError: without Lightning Fabric.
        ValueError: for more GPUs than there are, or a batch that does not divide among the devices.
    """
    fabric_class = import_fabric()
    devices, gpus = work.placement.devices, torch.cuda.device_count()
    if work.device.type == "cuda" and devices > gpus:
        raise ValueError(f"{devices} devices were asked for, but this machine has {gpus} GPU{'s' * (gpus != 1)}")
    for index in work.waiting:
        check_batch(work.trials[index].batch_size, devices)
    return _one_by_one(work, fabric_class)


def _one_by_one(work: Work, fabric_class: type[Fabric]) -> Iterator[Event]:
    for index in work.waiting:
        yield Event(index, "start")
        yield from _run_spanning(work, index, fabric_class)


def _run_spanning(work: Work, index: int, fabric_class: type[Fabric]) -> Iterator[Event]:
    told: Any = multiprocessing.get_context("spawn").Queue()
    problems: list[BaseException] = []

    def launch() -> None:
        try:
            fabric = fabric_class(accelerator=work.device.type, devices=work.placement.devices, strategy="ddp_spawn")
            # not as arguments of launch, which looks into them and refuses frozen dataclasses
            fabric.launch(functools.partial(_rank, work=work, index=index, told=told))
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    while thread.is_alive() or not told.empty():
        try:
            progress: Progress = told.get(timeout=0.2)
        except queue.Empty:
            continue
        yield Event(index, "progress", progress)
    yield work.outcome(index, str(problems[0]) if problems else "its processes ended")


def _rank(fabric: Fabric, work: Work, index: int, told: Any) -> None:
    if fabric.device.type == "cpu":
        torch.set_num_threads(1)
    ranks = Ranks(fabric)
    first = {} if ranks.rank == 0 else {"tensorboard": None}  # the first rank alone writes logs
    report = Reporter(index, work.placement.report_seconds)
    for progress in work.fit(index, device=fabric.device, ranks=ranks, **first):
        if ranks.rank == 0:
            for event in report(progress):
                told.put(event.progress)
