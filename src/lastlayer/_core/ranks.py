"""Sums and extremes over the ranks of a process group, with gradients that are right after DDP has averaged them.

Every rank computes the same global loss. The backward of a sum over R ranks is the sum of R equal gradients, so each
rank holds R times its part. DDP takes the mean over ranks, which is the gradient of one process with the whole batch.

Tests: tests/_core/test_ranks.py, and tests/distributed with several processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # a torch.distributed.ProcessGroup or None; some builds of torch have no such class


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, group: Group) -> Tensor:
        ctx.group = group
        total = local.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(gradient, ctx.group), None


def sum_over_ranks(local: Tensor, group: Group) -> Tensor:
    """The sum of a tensor over the group; without a group, the tensor itself."""
    if group is None:
        return local
    return _SumOverRanks.apply(local, group)  # type: ignore[no-any-return, no-untyped-call]


def max_over_ranks(values: Tensor, group: Group) -> Tensor:
    """The largest of all values on all ranks. Equal entries share its gradient equally, as in `torch.amax`.

    A rank without values counts as -inf.
    """
    flat = values.flatten()
    if group is None:
        return flat.amax()
    with torch.no_grad():
        largest = flat.amax() if flat.numel() else flat.new_tensor(float("-inf"))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        ties = flat == largest
        count = ties.sum().to(flat.dtype)
        dist.all_reduce(count, group=group)
    mean_of_ties = sum_over_ranks(torch.where(ties, flat, 0.0).sum(), group) / count
    return largest + (mean_of_ties - mean_of_ties.detach())
