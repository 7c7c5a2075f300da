"""A function run by real gloo processes, one per rank, whose answers the test reads."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# A forked process has torch already, which takes seconds to import. With a GPU, autograd does not survive a fork.
FORKS = sys.platform == "linux" and not torch.cuda.is_available()
CONTEXT = multiprocessing.get_context("fork" if FORKS else "spawn")


def answers_of_ranks(rank: Callable[[int, int, str], None], world: int, folder: Path) -> list[dict[Any, Any]]:
    """Run `rank(index, world, folder)` for every rank at once, and read what each has saved."""
    processes = [CONTEXT.Process(target=_run, args=(rank, index, world, str(folder))) for index in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        process.kill()  # if it still waits for a rank that failed
    told = [path.read_text() for path in sorted(folder.glob("*.error"))]
    assert all(process.exitcode == 0 for process in processes), "\n".join(told)
    return [torch.load(folder / f"{index}.pt") for index in range(world)]


def _run(rank: Callable[[int, int, str], None], index: int, world: int, folder: str) -> None:
    try:
        rank(index, world, folder)
    except BaseException:
        Path(folder, f"{index}.error").write_text(traceback.format_exc())
        raise


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
