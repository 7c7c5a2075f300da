"""A test module run as real gloo processes, one a rank, whose answers the test reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]  # from where a test module is imported by its name


def answers_of_ranks(module: str, world: int, folder: Path) -> list[dict[Any, Any]]:
    """Run `python -m module rank world folder` for every rank at once, and read what each has saved."""
    commands = [[sys.executable, "-m", module, str(index), str(world), str(folder)] for index in range(world)]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for command in commands]
    told = [process.communicate(timeout=300)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(told)
    return [torch.load(folder / f"{index}.pt") for index in range(world)]


@contextmanager
def joined(index: int, world: int, folder: str) -> Iterator[dict[Any, Any]]:
    """A rank of the process group, and a dictionary that is saved at the end for the test to read."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=world)
    answers: dict[Any, Any] = {}
    yield answers
    torch.save(answers, Path(folder) / f"{index}.pt")
    dist.barrier()  # no rank leaves while another still needs it
    dist.destroy_process_group()
