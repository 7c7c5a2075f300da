"""Real gloo processes with unequal shares of the data, one lacking a class or all data, see what one process sees."""

import sys

import pytest
import torch

from lastlayer.geometry import GeometryMetrics
from tests.distributed.processes import answers_of_ranks, joined


def data():
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(90) % 5
    means = torch.randn(5, 6, generator=generator)
    features = means[target] + 1e-2 * torch.randn(90, 6, generator=generator) + 10
    return features, target, torch.randn(5, 6, generator=generator), torch.randn(5, generator=generator)


def shares(world):
    """Unequal shares: rank 0 lacks class 0, and of three ranks the last has nothing."""
    _, target, _, _ = data()
    first = (target != 0) & (torch.arange(90) < 70)
    return [first, ~first, torch.zeros(90, dtype=torch.bool)][:world]


def measure(own, batch):
    features, target, weight, bias = data()
    metrics = GeometryMetrics(5, 6)
    for rows, labels in zip(features[own].split(batch), target[own].split(batch), strict=True):
        metrics.update(rows, labels)
    one = metrics.compute(weight, bias)
    for rows, labels in zip(features[own].split(batch), target[own].split(batch), strict=True):
        metrics.refine(rows, labels, weight, bias)
    return [vars(result) for result in (one, metrics.compute(weight, bias))]


def rank(index, world, folder):
    with joined(index, world, folder) as answers:
        answers["measured"] = measure(shares(world)[index], batch=11)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_equal_one_process(tmp_path, world):
    alone = measure(torch.ones(90, dtype=torch.bool), batch=90)
    assert alone[0]["compactness"] is None
    assert alone[1]["compactness"] is not None
    for answers in answers_of_ranks(rank, world, tmp_path):
        for got, expected in zip(answers["measured"], alone, strict=True):
            assert got.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-14, msg=name)
