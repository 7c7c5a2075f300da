"""Two real gloo processes with unequal shares of the data see what one process sees."""

import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from lastlayer.tasks import OpenSetMetrics, SingleLogitMetrics


def data():
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(4, (150,), generator=generator)
    logits = torch.randn(150, 4, generator=generator)
    logits[torch.arange(150), target] += 1
    return logits, target, torch.randn(90, 4, generator=generator)


def measure(known, unknown):
    logits, target, others = data()
    single, opened = SingleLogitMetrics(4, bits=10), OpenSetMetrics(4, bits=10)
    single.update(logits[known], target[known])
    opened.update(logits[known], target[known])
    opened.update(others[unknown])
    return [tuple(map(str, metric.compute())) for metric in (single, opened)]


def rank(index, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    # str of a float64 tensor rounds, so more digits are asked for.
    torch.set_printoptions(precision=17)
    shares = (slice(0, 100), slice(0, 20)), (slice(100, 150), slice(20, 90))
    torch.save(measure(*shares[index]), Path(folder) / f"{index}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_two_ranks_equal_one_process(tmp_path):
    mp.spawn(rank, args=(str(tmp_path),), nprocs=2)
    torch.set_printoptions(precision=17)
    try:
        alone = measure(slice(None), slice(None))
    finally:
        torch.set_printoptions(profile="default")
    assert torch.load(tmp_path / "0.pt") == alone
    assert torch.load(tmp_path / "1.pt") == alone
