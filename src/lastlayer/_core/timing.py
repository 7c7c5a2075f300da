"""The time and the memory that a step takes, for `lastlayer bench` and `benchmarks/`.

Tests: tests/_core/test_timing.py.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Step = Callable[[], None]


@dataclass(frozen=True)
class Stopwatch:
    """Which clock times a step on a CPU, and how the turns are summarised.

    Other programs on the machine do not change `time.process_time`. `time.perf_counter` is the time that a user waits.
    """

    clock: Callable[[], float] = time.process_time
    summary: Callable[[list[float]], float] = statistics.median


WORK = Stopwatch()


def training_step(loss: Callable[..., Tensor], leaves: list[Tensor]) -> Step:
    """A step that computes the loss of the leaves and its gradients."""

    def step() -> None:
        torch.autograd.grad(loss(*leaves), leaves)

    return step


@dataclass(frozen=True)
class Both:
    """Time and peak memory of a step and of its peer; NaN if one runs out of memory or is missing."""

    seconds: float
    peer_seconds: float
    bytes: float
    peer_bytes: float


def measure_both(step: Step, peer: Step | None, device: str, budget: float, *, watch: Stopwatch = WORK) -> Both:
    """Time (as `seconds_of_both`) and peak memory of a step and its peer."""
    held, peer_held = (math.nan if one is None else _peak_or_nan(one, device) for one in (step, peer))
    # If one does not fit in memory, the other is still timed.
    ours = _nothing if math.isnan(held) else step
    theirs = _nothing if peer is None or math.isnan(peer_held) else peer
    seconds, peer_seconds = seconds_of_both(ours, theirs, device, budget, watch=watch)
    return Both(
        math.nan if ours is _nothing else seconds, math.nan if theirs is _nothing else peer_seconds, held, peer_held
    )


def _nothing() -> None:
    pass


def _peak_or_nan(step: Step, device: str) -> float:
    try:
        return peak_memory(step, device)
    except (torch.OutOfMemoryError, MemoryError):
        torch.cuda.empty_cache()
        return math.nan


def seconds_of_both(
    step: Step, peer: Step, device: str, budget: float, *, watch: Stopwatch = WORK
) -> tuple[float, float]:
    """Seconds of each step. On a GPU one turn takes about 20 ms, so that the CPU can run ahead."""
    steps = (_steps_a_turn(step), _steps_a_turn(peer)) if device == "cuda" else (1, 1)
    return time_in_turn(step, peer, device, budget, turns=(3, 200), steps=steps, watch=watch)


def _steps_a_turn(step: Step) -> int:
    return max(3, min(20, int(0.02 / max(cuda_seconds(step, 1), 1e-6))))


def time_in_turn(
    step: Step,
    peer: Step,
    device: str,
    budget: float,
    *,
    turns: tuple[int, int],
    steps: tuple[int, int] = (1, 1),
    watch: Stopwatch = WORK,
) -> tuple[float, float]:
    """Seconds of each step, by default the median over turns.

    The two take turns, so that a machine that slows down slows both. Turns go on for `budget` seconds, and there are at
    least turns[0] and at most turns[1] of them. One turn has steps[0] steps of the first and steps[1] of the second.
    """

    def timed(step: Step, steps: int) -> float:
        if device == "cuda":
            return cuda_seconds(step, steps)
        start = watch.clock()
        for _ in range(steps):
            step()
        return (watch.clock() - start) / steps

    mine: list[float] = []
    theirs: list[float] = []
    start = time.perf_counter()
    while len(mine) < turns[0] or (time.perf_counter() - start < budget and len(mine) < turns[1]):
        mine.append(timed(step, steps[0]))
        theirs.append(timed(peer, steps[1]))
    return watch.summary(mine), watch.summary(theirs)


def cuda_seconds(step: Step, steps: int) -> float:
    """Seconds of a step on a GPU, the mean of `steps` in a row, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / steps


def replay_seconds(step: Step) -> float:
    """Seconds of a step as a captured CUDA graph, so that the CPU costs no time. NaN if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
            # A step that waits for the device cannot be captured. It must fail here, because a failed capture never
            # gives its memory back, and up to torch 2.12 no cache can be emptied after it.
            torch.cuda.set_sync_debug_mode("error")
            step()
        # Before the capture this waits for the GPU and frees what other streams hold. Inside, neither is possible.
        with torch.cuda.graph(graph):
            step()
        steps = _steps_a_turn(graph.replay)
        return statistics.median(cuda_seconds(graph.replay, steps) for _ in range(5))
    except (RuntimeError, NotImplementedError):  # the step reads a value back, or has no memory left
        torch.cuda.synchronize()
        return math.nan
    finally:
        torch.cuda.set_sync_debug_mode("default")
        del graph
        torch.cuda.empty_cache()


def peak_memory(step: Step, device: str) -> int:
    """The most bytes held at once during a step, beyond those held before it. The step first runs once unmeasured."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print two lines per measurement
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
