"""The three matrix products of a linear layer, in pieces, with sums kept in float32 or better."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32

WIDTH = 8  # entries of half precision that a GPU reads at once, where they begin at a multiple of so many
SPLIT_PAYS = 2**33  # n d K, from which a product gains more from whole widths than another product of the rest costs


def padded(K: int) -> int:
    """Entries between the beginnings of two rows of K logits: a multiple of WIDTH."""
    return -(-K // WIDTH) * WIDTH


def empty_rows(n: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Room for logits (n, K) of a weight (K, d), or for their gradient, in the weight's dtype if none is given."""
    K = like.shape[0]
    memory = torch.empty(n, padded(K), dtype=dtype or like.dtype, device=like.device)
    if not memory.is_cuda:
        # On processors with AMX, oneDNN multiplies what lies behind a row of half precision by 0. A NaN stays NaN.
        memory[:, K:] = 0
    return memory[:, :K]


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


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def narrow(values: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Gradients in the dtype of the input they belong to, or in out; float16 is held within its finite range."""
    if dtype is torch.float16 and values.dtype is not dtype:
        limit = torch.finfo(dtype).max
        values = values.clamp(-limit, limit)
    return values.to(dtype) if out is None else out.copy_(values)


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


def on_its_device(tensor: Tensor) -> torch.cuda.device_of:
    """Make the tensor's device the current one: that is where Triton launches, wherever its arguments are."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """What autocast multiplies in where the tensor is; None where it is off."""
    device = tensor.device.type
    if device == "meta":  # asked whether it is on there, torch raises
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def in_full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off: the products are in the dtype of their inputs already, and the sums must not be rounded."""
    return nullcontext() if autocast_dtype(tensor) is None else torch.autocast(tensor.device.type, enabled=False)
