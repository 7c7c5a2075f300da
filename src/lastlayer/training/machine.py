"""On what a result was made: hardware, versions, state of the source."""

from __future__ import annotations

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
        "git": git_state(),
    }


def machine_in_words() -> str:
    """Versions, threads, GPU if there is one, processor: one line above a table of times."""
    parts = [f"torch {torch.__version__}", f"python {platform.python_version()}", f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, processor()])


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git_state() -> str | None:
    """The commit of the source tree, with "+changes" where it was edited; None outside a checkout.

    $LASTLAYER_COMMIT names it where the source was copied without its repository.
    """
    if named := os.environ.get("LASTLAYER_COMMIT"):
        return named
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # an environment may lie in the repository of something else
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*command: str) -> str:
    """What git says of the source tree, without the lock in which a commit made meanwhile would fail."""
    folder = str(Path(lastlayer.__file__).parent)
    return subprocess.run(
        ["git", "--no-optional-locks", "-C", folder, *command], capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()
