"""What our training loop costs compared with a bare loop, with the same model, data and optimiser.

    python benchmarks/overhead.py [--steps 200] [--threads 1]
    python benchmarks/overhead.py --start-up 5

The bare loop indexes a tensor and calls network, loss, backward and optimiser. It has no augmentation, no schedule and
no checks. Its optimiser is torch's default one, and ours is the fused one. Steps of the two loops take turns in one
process. The times are CPU seconds, and the one that a tenth of the steps stay below, so other programs hardly change
them.

--start-up measures the time from importing torch to the first step, in fresh processes and on the default data. It does
so for `lastlayer compare`, which starts workers that import torch again, and for `lastlayer train`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from common import processor
from lastlayer import data
from lastlayer.data import Dataset, Split
from lastlayer.training import ModelChoice, Schedule, Trial
from lastlayer.training.engine.step import step as take_step
from lastlayer.training.fit import begin, train_epoch


def cifar_shaped(count: int = 2048) -> Dataset:
    """Random images, because the time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(inputs, torch.arange(count) % 10)
    return Dataset("random", split, split, tuple("0123456789"), scale=255.0).with_statistics()


def bare_step(trial: Trial, dataset: Dataset) -> Callable[[], None]:
    """A step as anyone would write it."""
    state, _ = begin(trial, dataset)
    network, loss = state.network, state.loss
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    order = torch.randperm(len(dataset.train))
    position = 0

    def step() -> None:
        nonlocal position
        chosen = order[position : position + trial.batch_size]
        position = (position + trial.batch_size) % (len(order) - trial.batch_size)
        value = loss(network(dataset.train.inputs[chosen]), dataset.train.target[chosen])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()

    return step


def our_step(trial: Trial, dataset: Dataset) -> Callable[[], None]:
    """A step of the library's loop, including its progress report."""
    state, feed = begin(dataclasses.replace(trial, schedule=Schedule(epochs=10_000)), dataset)
    running = iter(())

    def step() -> None:
        nonlocal running
        if next(running, None) is None:
            running = train_epoch(state, feed, functools.partial(take_step, state, feed))
            next(running)

    return step


START_UP = """
import time
began = time.perf_counter()
import torch
imported = time.perf_counter()
import sys, tempfile
from pathlib import Path
from lastlayer.cli._settings import Settings
from lastlayer.runners import Placement, run_trials

with tempfile.TemporaryDirectory() as root:
    plan = Placement(Path(root), "cpu")
    trials, _ = Settings().trials(["ce"], list(range(int(sys.argv[1]))), plan)
    events = run_trials(trials, plan)
    next(event for event in events if event.kind == "progress")
    stepped = time.perf_counter()
    events.close()
print(imported - began, stepped - imported)
"""


def start_up(repeats: int) -> Table:
    """Median seconds to import torch, and from there to the first step."""
    table = Table("command", "import torch s", "then to the first step s")
    for command, trials in (("compare", "18"), ("train", "1")):
        script = [sys.executable, "-c", START_UP, trials]
        told = [subprocess.check_output(script, text=True).split() for _ in range(repeats)]
        seconds = (statistics.median(map(float, part)) for part in zip(*told, strict=True))
        table.add_row(f"lastlayer {command}", *(f"{one:.2f}" for one in seconds))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start-up", type=int, metavar="REPEATS", help="measure this instead, so many times")
    options = parser.parse_args()
    if options.start_up:
        Console().print(processor(), start_up(options.start_up))
        return
    torch.set_num_threads(options.threads)
    table = Table("model", "batch", "bare ms", "lastlayer ms", "ratio")
    for model, dataset, batch in (
        (ModelChoice("mlp", {"width": 128}), data.load("digits"), 64),
        (ModelChoice("mlp", {"width": 512}), data.load("digits"), 128),
        (ModelChoice("resnet20"), cifar_shaped(), 64),
    ):
        trial = Trial(model=model, batch_size=batch, schedule=Schedule(epochs=1000)).resolved()
        bare, ours = bare_step(trial, dataset), our_step(trial, dataset)
        count = options.steps if model.name == "mlp" else max(options.steps // 10, 5)
        times: tuple[list[float], list[float]] = ([], [])
        for i in range(count + 5):
            pairs = list(zip((bare, ours), times, strict=True))
            for step, kept in pairs if i % 2 else reversed(pairs):  # each finds what the other left in the caches
                began = time.process_time()
                step()
                if i >= 5:
                    kept.append(1e3 * (time.process_time() - began))
        one, other = (statistics.quantiles(kept, n=10)[0] for kept in times)
        table.add_row(
            f"{model.name} {dict(model.options)}", str(batch), f"{one:.3f}", f"{other:.3f}", f"{other / one:.2f}"
        )
    Console().print(f"{processor()}, {options.threads} threads, torch {torch.__version__}, {platform.system()}", table)


if __name__ == "__main__":
    main()
