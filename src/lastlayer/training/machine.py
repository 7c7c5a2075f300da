"""What a result was made on: hardware, versions, and the commit of the source.

Tests: tests/training/test_machine.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import lastlayer


def describe_machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Hardware, versions and git commit, for the result of a run."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "device": f"{device.type}: {name}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "lastlayer": lastlayer.__version__,
        "git": _git_of_process(os.environ.get("LASTLAYER_COMMIT")),
    }


def machine_in_words() -> str:
    """Versions, threads, the GPU if there is one, and the processor: one line above a table of times."""
    parts = [f"torch {torch.__version__}", f"python {platform.python_version()}", f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, processor()])


def processor() -> str:
    """The processor's name, if the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state() -> str | None:
    """The commit of the source tree, with "+changes" if it was edited; None outside a checkout.

    If the source was copied without its repository, $LASTLAYER_COMMIT can name the commit.
    """
    if named := os.environ.get("LASTLAYER_COMMIT"):
        return named
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # fails if the source lies in another project's repository
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _git_of_process(named: str | None) -> str | None:
    """`git_state`, asked once: the code that runs is that of the start, and short trainings would wait for git."""
    return git_state()


def _git(*command: str) -> str:
    """What git says of the source tree. It takes no lock, because a commit made meanwhile would fail at it."""
    folder = str(Path(lastlayer.__file__).parent)
    return subprocess.run(
        ["git", "--no-optional-locks", "-C", folder, *command], capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()
