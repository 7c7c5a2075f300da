"""Two real gloo processes with unequal shares of the data see what one process sees."""

import sys

import pytest
import torch

from lastlayer.tasks import OpenSetMetrics, SingleLogitMetrics
from tests.distributed.processes import answers_of_ranks, joined


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


def rank(index, world, folder):
    # str of a float64 tensor rounds, so more digits are asked for.
    torch.set_printoptions(precision=17)
    shares = (slice(0, 100), slice(0, 20)), (slice(100, 150), slice(20, 90))
    with joined(index, world, folder) as answers:
        answers["measured"] = measure(*shares[index])


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_two_ranks_equal_one_process(tmp_path):
    found = answers_of_ranks(rank, 2, tmp_path)
    torch.set_printoptions(precision=17)
    try:
        alone = measure(slice(None), slice(None))
    finally:
        torch.set_printoptions(profile="default")
    assert [answers["measured"] for answers in found] == [alone, alone]
