"""Sums and extremes over ranks, without a group and in a group of one. tests/distributed has several ranks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lastlayer._core.ranks import Group, max_over_ranks, sum_over_ranks


@pytest.fixture(params=[False, True], ids=["no group", "a group of one"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    if not request.param:
        yield None
        return
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_one_rank_holds_the_sum_and_its_gradient(group: Group) -> None:
    local = torch.tensor([1.0, -2.0], requires_grad=True)
    total = sum_over_ranks(local, group)
    assert total.tolist() == [1.0, -2.0]
    (total * torch.tensor([3.0, 4.0])).sum().backward()
    assert local.grad is not None
    assert local.grad.tolist() == [3.0, 4.0]


def test_entries_that_tie_for_the_largest_share_its_gradient(group: Group) -> None:
    values = torch.tensor([[1.0, 5.0], [5.0, 2.0]], requires_grad=True)
    largest = max_over_ranks(values, group)
    assert largest.item() == 5.0
    largest.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, 0.5], [0.5, 0.0]]
