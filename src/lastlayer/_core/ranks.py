"""Sums and extremes over the ranks of a process group, with gradients that DDP's averaging brings out right.

Every rank computes the same global loss. The backward of a sum over R ranks is the sum of R equal gradients, so each
rank holds R times its part, and DDP's mean over ranks is then the gradient of one process that holds the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # torch.distributed.ProcessGroup, where torch is built with it


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
    """The sum of a tensor over the group; the tensor itself without one."""
    if group is None:
        return local
    return _SumOverRanks.apply(local, group)  # type: ignore[no-any-return, no-untyped-call]


def max_over_ranks(values: Tensor, group: Group) -> Tensor:
    """The largest of all values on all ranks; entries that tie share its gradient equally, as in `torch.amax`.

    A rank without values takes part with -inf.
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
