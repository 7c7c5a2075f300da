"""What the benchmarks share: their options, on what they ran, and the time and memory a step takes."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], None]


def options_of_losses(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark of losses takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, few repetitions")
    parser.add_argument("--only", help="names of losses, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more than 1 wants an idle machine")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine there")
    return parser


def write_json(path: str, rows: Sequence[Any]) -> None:
    """The machine, and rows that are dataclasses."""
    with open(path, "w") as file:
        json.dump({"machine": describe_machine(), "rows": [asdict(row) for row in rows]}, file, indent=1)


def processor() -> str:
    """The processor's name; imported when asked, so that nothing more than the subject is loaded while measuring."""
    from lastlayer.training.machine import processor as name

    return name()


def describe_machine() -> str:
    """Versions, threads, GPU if there is one, processor."""
    parts = [f"torch {torch.__version__}", f"python {platform.python_version()}", f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, processor()])


def training_step(loss: Callable[..., Tensor], leaves: list[Tensor]) -> Step:
    def step() -> None:
        torch.autograd.grad(loss(*leaves), leaves)

    return step


def time_in_turn(
    step: Step, peer: Step, device: str, budget: float, *, turns: tuple[int, int], steps: tuple[int, int] = (1, 1)
) -> tuple[float, float]:
    """Median seconds of a step of each; in turn, so that a machine that slows down slows both.

    Turns go on for the budget's seconds, and are at least and at most as many as `turns` says; `steps` is how many
    steps of each are one turn.
    """
    timed = cuda_seconds if device == "cuda" else cpu_seconds
    mine: list[float] = []
    theirs: list[float] = []
    start = time.perf_counter()
    while len(mine) < turns[0] or (time.perf_counter() - start < budget and len(mine) < turns[1]):
        mine.append(timed(step, steps[0]))
        theirs.append(timed(peer, steps[1]))
    return statistics.median(mine), statistics.median(theirs)


def cpu_seconds(step: Step, steps: int) -> float:
    start = time.process_time()  # seconds of work, which other programs on the machine do not change
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps


def cuda_seconds(step: Step, steps: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / steps


def peak_memory(step: Step, device: str) -> int:
    """Most bytes held at once during a step, beyond what was held before it; the step runs once before that."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
