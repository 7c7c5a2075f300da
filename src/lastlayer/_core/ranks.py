"""Sums and extremes over the ranks of a process group, with gradients that are right after DDP has averaged them.

Every rank computes the same global loss. The backward of a sum over R ranks is the sum of R equal gradients, so each
rank holds R times its part. DDP takes the mean over ranks, which is the gradient of one process with the whole batch.

Tests: tests/_core/test_ranks.py, and tests/distributed with several processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lastlayer._core.precision import wide

Group = Any  # a torch.distributed.ProcessGroup or None; some builds of torch have no such class


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group, sum_values: bool, sum_gradients: bool) -> Tensor:
        ctx.group = group if sum_gradients else None
        if not sum_values:
            return values.view_as(values)
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        total = sum_over_ranks(gradient.to(wide(gradient.dtype)), ctx.group)
        return total.to(gradient.dtype), None, None, None


def sum_over_ranks(values: Tensor, group: Group, *, sum_values: bool = True, sum_gradients: bool = True) -> Tensor:
    """The sum of a tensor over the group; without a group, the tensor itself. Its gradient is summed likewise.

    Without `sum_values` the values pass as they are, and without `sum_gradients` their gradient does.
    """
    if group is None:
        return values
    return _SumOverRanks.apply(values, group, sum_values, sum_gradients)  # type: ignore[no-any-return, no-untyped-call]


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
