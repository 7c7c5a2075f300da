"""How much memory is free. Tests: tests/_core/test_memory.py."""

import contextlib
import os
from pathlib import Path

import torch


def free_memory(device: torch.device | str = "cpu") -> int:
    """Free bytes of a GPU or of the system's memory. If a container has a lower limit, what is left of that."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, ValueError):  # no such limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        taken = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, max(0, limit - int(taken.get("anon", 0))))
    return free
