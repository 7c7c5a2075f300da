"""The three matrix products of a linear layer, in pieces, and sums of them, kept in float32 or better."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, narrow, wide
from lastlayer.linear_loss import kernels

WIDTH = 8  # entries of half precision that a GPU reads at once, where they begin at a multiple of so many
BLOCK = 2**23  # entries rounded at a time, where the result lies in the memory of the sum
SPLIT_PAYS = 2**33  # n d K, from which a product gains more from whole widths than another product of the rest costs


def padded(K: int) -> int:
    """Entries between the beginnings of two rows of K logits: a multiple of WIDTH."""
    return -(-K // WIDTH) * WIDTH


def pieces(n: int, d: int, K: int) -> list[slice]:
    """The K columns of a product of n d K, whole widths of them and the few left over.

    cuBLAS multiplies bfloat16 matrices of an odd number of columns at a fifth to an eighth of its speed.
    """
    whole = K // WIDTH * WIDTH
    if whole in (0, K) or n * d * K < SPLIT_PAYS:
        return [slice(0, K)]
    return [slice(0, whole), slice(whole, K)]


def logits_of(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits (n, k) in float32 or better; half precision is multiplied, and rounded, as the dense layer does it."""
    z = features @ weight.T if bias is None else torch.addmm(bias, features, weight.T)
    return at_least_float32(z)


def put_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total (a, b) = left (n, a)^T right (n, b), in the dtype of the total."""
    for some in pieces(len(right), right.shape[1], left.shape[1]):
        _put_product(total[some], left[:, some], right)


def _put_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    exact = total.dtype is wide(total.dtype)
    if right.shape[0] == 0:
        total.zero_()
    elif right.dtype is total.dtype and (exact or (right.is_cuda and right.dtype is torch.bfloat16)):
        torch.mm(left.to(total.dtype).T, right, out=total)
    elif not exact:  # a sum in half precision where the processor has none, or one that float16 may not hold
        total.copy_(narrow(left.to(wide(total.dtype)).T @ right.to(wide(total.dtype)), total.dtype))
    elif right.is_cuda and hasattr(torch.ops.aten.mm, "dtype_out"):
        torch.ops.aten.mm.dtype_out(narrow(left, right.dtype).T, right, total.dtype, out=total)
    else:
        torch.mm(left.to(total.dtype).T, right.to(total.dtype), out=total)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total (a, b) += left (n, a)^T right (n, b), without rounding the sum to the dtype of right."""
    for some in pieces(len(right), right.shape[1], left.shape[1]):
        _add_product(total[some], left[:, some], right)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if right.shape[0] == 0:
        return
    if right.dtype is total.dtype:
        total.addmm_(left.to(total.dtype).T, right)
    elif right.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        left = narrow(left, right.dtype).T
        if (in_place := _adding_product(right.device, right.dtype)) is not None:
            in_place(total, left, right)
        else:
            total.add_(torch.mm(left, right, out_dtype=total.dtype))
    else:
        total.addmm_(left.to(total.dtype).T, right.to(total.dtype))


@functools.cache
def _adding_product(device: torch.device, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], None] | None:
    """What adds a half-precision product to a float32 sum in one pass, if this torch has it: tried on small ones."""

    def by_addmm(total: Tensor, left: Tensor, right: Tensor) -> None:
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)

    def by_baddbmm(total: Tensor, left: Tensor, right: Tensor) -> None:
        one = total.unsqueeze(0)
        torch.ops.aten.baddbmm.dtype_out(one, left.unsqueeze(0), right.unsqueeze(0), total.dtype, out=one)

    left = torch.full((16, 32), 2.0, dtype=dtype, device=device)
    for attempt in (by_addmm, by_baddbmm):
        total = torch.full((16, 16), 0.5, dtype=torch.float32, device=device)
        try:
            attempt(total, left, left.T)
        except (RuntimeError, AttributeError, NotImplementedError):
            continue
        if bool((total == 128.5).all()):
            return attempt
    return None


def input_gradient(gradient: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Gradient (n, d) of the features from that of the logits (n, k) and the weight (k, d), in the weight's dtype."""
    gradient = narrow(gradient, weight.dtype)
    whole, *rest = pieces(len(gradient), weight.shape[1], len(weight))
    if not rest:
        return torch.mm(gradient, weight, out=out)
    few = torch.mm(gradient[:, rest[0]], weight[rest[0]], out=out)
    return few.addmm_(gradient[:, whole], weight[whole])  # in this order only what the few give is rounded twice


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """What autocast multiplies in where the tensor is; None where it is off."""
    device = tensor.device.type
    if device == "meta":  # asked whether it is on there, torch raises
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def in_full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off: the products are in the dtype of their inputs already, and the sums must not be rounded."""
    return nullcontext() if autocast_dtype(tensor) is None else torch.autocast(tensor.device.type, enabled=False)


class WeightSum:
    """sum over chunks of dz^T h, (K, d), in float32 or better, rounded once.

    The gradient of a half-precision weight has room for the float32 sums of half its classes, or a few less. They are
    kept there, so that only the others take memory of their own.
    """

    def __init__(self, weight: Tensor) -> None:
        self.result = torch.empty_like(weight, memory_format=torch.contiguous_format)
        total = wide(weight.dtype)
        K, d = weight.shape
        self.empty = True
        self.half = K // 2 // WIDTH * WIDTH
        if weight.dtype is total:
            self.parts = [(0, K, self.result)]
            return
        inside = self.result.view(-1)[: 2 * self.half * d].view(total).view(self.half, d)
        outside = torch.empty(K - self.half, d, dtype=total, device=weight.device)
        self.parts = [(0, self.half, inside)] * (self.half > 0) + [(self.half, K, outside)]

    def add(self, dz: Tensor, rows: Tensor) -> None:
        """Add dz (n, K)^T rows (n, d)."""
        for low, high, total in self.parts:
            if self.empty:
                put_product(total, dz[:, low:high], rows)
            else:
                add_product(total, dz[:, low:high], rows)
        self.empty = False

    def add_whole(self, values: Tensor) -> None:
        """Add values (K, d)."""
        for low, high, total in self.parts:
            if self.empty:
                total.copy_(values[low:high])
            else:
                total += values[low:high]
        self.empty = False

    def add_at(self, classes: Tensor, values: Tensor) -> None:
        """Add values (n, d) to the rows of some classes (n,)."""
        for low, high, total in self.parts:
            inside = (classes >= low) & (classes < high)
            total.index_add_(0, (classes - low).clamp(0, high - low - 1), values * inside.unsqueeze(1))

    def shrink(self, factor: Tensor) -> None:
        """Multiply what is there."""
        for _, _, total in self.parts:
            times(total, factor, total.dtype, in_place=True)

    def finish(self, factor: Tensor | float) -> Tensor:
        """The sum times a number, in the weight's dtype; what was kept for it is gone."""
        for low, high, total in self.parts:
            if total is self.result:
                total *= factor
                continue
            # In this order, and by way of a copy, a block is written where sums were that have been read already.
            step = max(1, BLOCK // self.result.shape[1])
            for first in range(0, high - low, step):
                last = min(first + step, high - low)
                self.result[low + first : low + last] = times(total[first:last], factor, self.result.dtype)
        self.parts = []
        return self.result


def times(values: Tensor, factor: Tensor | float, dtype: torch.dtype, *, in_place: bool = False) -> Tensor:
    """Contiguous values times a number in another dtype, in one pass where that is faster."""
    found = kernels.row_kernels(values)
    if found is not None and isinstance(factor, Tensor):
        out = values if in_place else torch.empty_like(values, dtype=dtype)
        return found.times(values, factor, out)  # type: ignore[no-any-return]
    return values.mul_(factor) if in_place else narrow(values * factor, dtype)
