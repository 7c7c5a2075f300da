"""The three matrix products of a linear layer, in pieces, and sums of them in float32 or better."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, wide
from lastlayer.linear_loss import kernels

WIDTH = 8  # entries of half precision that a GPU reads at once if the first of them is at a multiple of 8
BLOCK = 2**23  # entries rounded at a time if the result lies in the memory of the sum
SPLIT_PAYS = 2**33  # n d K from which a product of whole widths gains more than the second product, of the rest, costs


def chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(low, high) of every chunk. If the count is 0, one empty chunk, so that the loss still sees its arguments."""
    for low in range(0, max(count, 1), size):
        yield low, min(low + size, count)


def padded(K: int) -> int:
    """Entries from the start of a row of K logits to the start of the next: a multiple of WIDTH."""
    return -(-K // WIDTH) * WIDTH


def pieces(n: int, d: int, K: int) -> list[slice]:
    """The K columns of a product of size n d K: the whole widths, then the few columns that are left.

    If the number of columns is odd, cuBLAS multiplies bfloat16 matrices at a fifth to an eighth of its speed.
    """
    whole = K // WIDTH * WIDTH
    if whole in (0, K) or n * d * K < SPLIT_PAYS:
        return [slice(0, K)]
    return [slice(0, whole), slice(whole, K)]


def logits_of(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits (n, k) in float32 or better. Half precision is multiplied and rounded as in the dense layer."""
    z = features @ weight.T if bias is None else torch.addmm(bias, features, weight.T)
    return at_least_float32(z)


def put_product(total: Tensor, left: Tensor, right: Tensor, *, add: bool = False) -> None:
    """total (a, b) = left (n, a)^T right (n, b), in the dtype of the total. With `add`, total += the product.

    The sum is not rounded to the dtype of right.
    """
    put = _add_product if add else _put_product
    for some in pieces(len(right), right.shape[1], left.shape[1]):
        put(total[some], left[:, some], right)


def _put_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    exact = total.dtype is wide(total.dtype)
    if right.shape[0] == 0:
        total.zero_()
    elif right.dtype is total.dtype and (exact or (right.is_cuda and right.dtype is torch.bfloat16)):
        torch.mm(left.to(total.dtype).T, right, out=total)
    elif not exact:  # a CPU has no good sums in half precision, and float16 may not hold the sum
        total.copy_(left.to(wide(total.dtype)).T @ right.to(wide(total.dtype)))
    elif right.is_cuda:
        torch.ops.aten.mm.dtype_out(left.to(right.dtype).T, right, total.dtype, out=total)
    else:
        torch.mm(left.to(total.dtype).T, right.to(total.dtype), out=total)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if right.shape[0] == 0:
        return
    if right.dtype is total.dtype:
        total.addmm_(left.to(total.dtype).T, right)
    elif right.is_cuda:
        left = left.to(right.dtype).T
        if (in_place := _adding_product(right.device, right.dtype)) is not None:
            in_place(total, left, right)
        else:
            total.add_(torch.mm(left, right, out_dtype=total.dtype))
    else:
        total.addmm_(left.to(total.dtype).T, right.to(total.dtype))


@functools.cache
def _adding_product(device: torch.device, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], None] | None:
    """A call that adds a half-precision product to a float32 sum in one pass. None if this torch has no such call.

    Each candidate is tried on small matrices.
    """

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
    """Gradient (n, d) of the features, from that of the logits (n, k) and the weight (k, d). In the weight's dtype."""
    gradient = gradient.to(weight.dtype)
    whole, *rest = pieces(len(gradient), weight.shape[1], len(weight))
    if not rest:
        return torch.mm(gradient, weight, out=out)
    few = torch.mm(gradient[:, rest[0]], weight[rest[0]], out=out)
    return few.addmm_(gradient[:, whole], weight[whole])  # in this order only the part of the few is rounded twice


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """The dtype in which autocast multiplies on the tensor's device. None if autocast is off."""
    device = tensor.device.type
    on = device != "meta" and torch.is_autocast_enabled(device)  # torch raises if asked about meta
    return torch.get_autocast_dtype(device) if on else None


def in_full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off. The inputs of the products have its dtype already, and it must not round the sums."""
    return nullcontext() if autocast_dtype(tensor) is None else torch.autocast(tensor.device.type, enabled=False)


class WeightSum:
    """The sum over chunks of dz^T h, (K, d), in float32 or better. It is rounded once.

    In half precision the result has room for the float32 sums of about half the classes. They are kept there, so only
    the sums of the other classes take more memory.
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
            put_product(total, dz[:, low:high], rows, add=not self.empty)
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
        """Multiply the sums so far."""
        for _, _, total in self.parts:
            times(total, factor, total.dtype, in_place=True)

    def finish(self, factor: Tensor | float) -> Tensor:
        """The sum times a number, in the weight's dtype. It can be taken only once."""
        for low, high, total in self.parts:
            if total is self.result:
                total *= factor
                continue
            # In this order each block, made as a copy, overwrites only sums that have been read already.
            step = max(1, BLOCK // self.result.shape[1])
            for first in range(0, high - low, step):
                last = min(first + step, high - low)
                self.result[low + first : low + last] = times(total[first:last], factor, self.result.dtype)
        self.parts = []
        return self.result


def times(values: Tensor, factor: Tensor | float, dtype: torch.dtype, *, in_place: bool = False) -> Tensor:
    """Contiguous values times a number, in another dtype. In one pass if kernels can do it."""
    found = kernels.row_kernels(values)
    if found is not None and isinstance(factor, Tensor):
        out = values if in_place else torch.empty_like(values, dtype=dtype)
        return found.times(values, factor, out)  # type: ignore[no-any-return]
    return values.mul_(factor) if in_place else (values * factor).to(dtype)
