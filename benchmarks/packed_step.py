"""Where the time of packed training goes on a GPU: bare steps by the number of streams, kernels of a step, evaluation.

    python benchmarks/packed_step.py [--model resnet20] [--streams 1,2,4,8,12] [--steps 300] [--kernels 20]

Seconds are per model and epoch of 390 steps, with nothing between the steps. `packed.py` times whole trainings. The
evaluation is that of the 50,000 training samples in float32: first the outputs, then all measures of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

from common import describe_machine
from lastlayer import data
from lastlayer.runners.graph import accelerate
from lastlayer.training import LossChoice, ModelChoice, Optimiser, Trial, load_data
from lastlayer.training.engine import evaluate
from lastlayer.training.engine.state import State
from lastlayer.training.engine.step import Step
from lastlayer.training.fit import begin
from packed import BATCH, cifar_like

SAMPLES = 50_000


def lanes(
    trial: Trial, dataset: data.Dataset, count: int, *, convolutions: bool = True
) -> list[tuple[State, Step, Any]]:
    """Trainings ready to step, each with a stream of its own."""
    made = []
    for i in range(count):
        loss = LossChoice(("ce", "sln", "bce", "ls")[i % 4])
        one = dataclasses.replace(trial, loss=loss, seed=i, optimiser=Optimiser(lr=0.01, weight_decay=1e-4))
        state, feed = begin(one.resolved(), dataset, "cuda")
        made.append((state, accelerate(state, feed, convolutions=convolutions), torch.cuda.Stream()))
    return made


def seconds_per_epoch(running: list[tuple[State, Step, Any]], steps: int) -> float:
    for state, _, _ in running:
        state.begin_epoch()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(steps):
        for _, take_step, stream in running:
            with torch.cuda.stream(stream):
                take_step()
        if step % 20 == 19:  # the host would run too far ahead
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps / len(running) * (SAMPLES // BATCH)


def print_kernels(state: State, take_step: Step, count: int, console: Console, steps: int = 5) -> None:
    state.begin_epoch()
    take_step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            take_step()
        torch.cuda.synchronize()
    found = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in found) / steps
    console.print(f"a step: {sum(e.count for e in found if e.device_time_total) / steps:g} kernels, {total:.0f} us")
    for event in found[:count]:
        console.print(f"{event.device_time_total / steps:8.1f} us {event.count / steps:5.1f} x  {event.key[:110]}")


def timed(work: Callable[[], object]) -> float:
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--streams", default="1,2,4,8,12")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kernels", type=int, default=20, help="how many of the slowest to list")
    options = parser.parse_args()
    console = Console(width=150, highlight=False)
    console.print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        trial = dataclasses.replace(cifar_like(Path(folder), SAMPLES), model=ModelChoice(options.model))
        dataset = load_data(trial.data).to("cuda")
        counts = [int(count) for count in options.streams.split(",")]
        running = lanes(trial, dataset, max(counts))
        for count in counts:
            console.print(f"{count} streams: {seconds_per_epoch(running[:count], options.steps):.3f} s a model-epoch")
        print_kernels(*running[0][:2], options.kernels, console)
        network, loss = running[0][0].network, running[0][0].loss
        made = evaluate.outputs(network, dataset.train)
        outputs = timed(lambda: evaluate.outputs(network, dataset.train))
        measures = timed(lambda: evaluate.measure(network, loss, dataset, made, on_test=False))
        console.print(f"evaluation of {SAMPLES} samples: outputs {outputs:.3f} s, measures {measures:.3f} s")


if __name__ == "__main__":
    main()
