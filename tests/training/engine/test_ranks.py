"""One of several processes, the others simulated: parts of a batch, means of gradients, and what cannot be divided."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lastlayer.training.engine.ranks import Ranks, check_batch, import_fabric


class Fabric:
    """Stands in for Lightning's: the other ranks hold twice, three times, ... what this one holds."""

    global_rank, world_size = 1, 3

    def all_reduce(self, value: Tensor, reduce_op: str) -> Tensor:
        assert reduce_op == "mean"
        return torch.stack([value * (1 + rank) for rank in range(self.world_size)]).mean(0)


@pytest.fixture
def ranks() -> Ranks:
    fabric: Any = Fabric()
    return Ranks(fabric)


def test_each_gradient_becomes_its_mean_over_the_ranks(ranks: Ranks) -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    network[1].bias.requires_grad_(False)
    network(torch.randn(5, 3)).square().sum().backward()
    before = [None if p.grad is None else p.grad.clone() for p in network.parameters()]
    ranks.average_gradients(network)
    assert before[3] is None
    for was, parameter in zip(before[:3], network.parameters(), strict=False):
        assert was is not None
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 2 * was)


def test_a_batch_must_be_divisible(ranks: Ranks) -> None:
    assert ranks.part(12) == 4
    with pytest.raises(ValueError, match="batch_size 64 does not divide among 3 devices: 63 would"):
        ranks.part(64)
    with pytest.raises(ValueError, match="batch_size 2 does not divide among 4 devices: 4 would"):
        check_batch(2, 4)


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r"pip install 'lastlayer\[devices\]'"):
        import_fabric()
