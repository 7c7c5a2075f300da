"""A weight whose classes are spread over the ranks of a process group, and the sums over ranks that this takes.

Features, target and loss are the same on every rank; each rank holds some rows of the weight. A number of a sample that
is a sum over classes is then a sum over ranks. The loss made of such numbers is the same everywhere, and so is its
gradient with respect to them: the backward of the sum passes it on as it is, to each rank's own classes. What every
rank holds alike, the features above all, gets a part of its gradient on each, and those parts are summed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lastlayer._core.precision import wide
from lastlayer._core.ranks import Group


@dataclass(frozen=True)
class Shard:
    """The classes start..stop-1 of K that this rank holds."""

    group: Group
    start: int
    stop: int
    K: int

    def total(self, part: Tensor) -> Tensor:
        """The sum over ranks; each keeps the gradient of its own part."""
        return _Total.apply(part, self)  # type: ignore[no-any-return, no-untyped-call]

    def shared(self, values: Tensor) -> Tensor:
        """The values, alike on every rank, whose gradient is the sum of what the ranks find."""
        return _Shared.apply(values, self)  # type: ignore[no-any-return, no-untyped-call]

    def add(self, values: Tensor) -> Tensor:
        """The sum over ranks in place, without history."""
        dist.all_reduce(values, group=self.group)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over ranks in place, without history."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, shard: Shard) -> Tensor:
        return shard.add(part.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = ctx.shard.add(gradient.to(wide(gradient.dtype), copy=True))
        return total.to(gradient.dtype), None


def read_shard(group: Group, features: Tensor, weight: Tensor) -> Shard:
    """Which classes are here, from the sizes every rank tells; on every rank the same error where they do not fit."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("group needs torch.distributed: call torch.distributed.init_process_group on every rank first")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group: call linear_loss on the ranks of the group alone")
    mine = torch.tensor([*weight.shape, features.shape[0]], device=weight.device)
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, mine, group=group)
    counts, widths, samples = (list(column) for column in zip(*(size.tolist() for size in sizes), strict=True))
    if len(set(widths)) > 1 or len(set(samples)) > 1:
        raise ValueError(
            f"every rank must give the same samples and its own classes: the ranks have N = {samples} and d = {widths}"
        )
    if 0 in counts:
        raise ValueError(f"every rank must hold at least one class, the ranks hold {counts}: use a smaller group")
    return Shard(group, sum(counts[:rank]), sum(counts[: rank + 1]), sum(counts))
