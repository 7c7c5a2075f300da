"""What the benchmarks share: on what they ran, and the memory a step takes."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch


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


def peak_memory(step: Callable[[], None], device: str) -> int:
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
