"""Triton kernels over the logits of some rows: sums of a row without its label, and the gradient in their place.

Imported where it is used, and only where Triton is there. `TRITON_INTERPRET=1` runs them on a CPU, for tests.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
LARGEST = {torch.float16: 65504.0}


@triton.jit
def _squares(z, stride, out, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(z + row * stride + columns, mask=columns < K, other=0.0).to(tl.float32)
        total += x * x
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
def _others(
    z, stride, label, factor, offset, log_sum, mean, plain, K: tl.constexpr,
    SIGMOID: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_OFFSET: tl.constexpr, WANT_MEAN: tl.constexpr,
    WANT_PLAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(label + row)
    scale = 1.4426950408889634
    if HAS_FACTOR:
        scale = scale * tl.load(factor + row)
    largest = -float("inf")
    total = 0.0
    weighted = 0.0
    straight = 0.0
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        keep = (columns < K) & (columns != y)
        x = tl.load(z + row * stride + columns, mask=columns < K, other=0.0).to(tl.float32)
        if SIGMOID:
            terms = tl.maximum(x, 0.0) + tl.log2(1.0 + tl.exp2(-1.4426950408889634 * tl.abs(x))) / 1.4426950408889634
            total += tl.sum(tl.where(keep, terms, 0.0), 0)
        else:
            s = x * scale  # in powers of two
            if HAS_OFFSET:
                s += tl.load(offset + columns, mask=columns < K, other=0.0) * 1.4426950408889634
            s = tl.where(keep, s, -float("inf"))
            higher = tl.maximum(largest, tl.max(s, 0))
            base = tl.where(higher == -float("inf"), 0.0, higher)
            shrink = tl.exp2(largest - base)
            terms = tl.exp2(s - base)
            total = total * shrink + tl.sum(terms, 0)
            if WANT_MEAN:
                weighted = weighted * shrink + tl.sum(tl.where(keep, terms * x, 0.0), 0)
            largest = higher
        if WANT_PLAIN:
            straight += tl.sum(tl.where(keep, x, 0.0), 0)
    if SIGMOID:
        tl.store(log_sum + row, total)
    else:
        alone = total == 0.0  # one class has no others
        safe = tl.where(alone, 1.0, total)
        found = (tl.log2(safe) + tl.where(alone, 0.0, largest)) / 1.4426950408889634
        tl.store(log_sum + row, tl.where(alone, -3.0e38, found))
        if WANT_MEAN:
            tl.store(mean + row, weighted / safe)
    if WANT_PLAIN:
        tl.store(plain + row, straight)


@triton.jit
def _gradient(
    z, stride, label, factor, offset, log_sum, slope, square, even, true, K: tl.constexpr, limit,
    SIGMOID: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_SQUARE: tl.constexpr,
    HAS_EVEN: tl.constexpr, CLAMP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < K
    y = tl.load(label + row)
    a = tl.load(slope + row)
    at = z + row * stride + columns
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if SIGMOID:
        dz = a * tl.sigmoid(x)
    else:
        f = 1.0
        if HAS_FACTOR:
            f = tl.load(factor + row)
        s = f * x
        if HAS_OFFSET:
            s += tl.load(offset + columns, mask=inside, other=0.0)
        dz = a * f * tl.exp2((s - tl.load(log_sum + row)) * 1.4426950408889634)
    dz = tl.where(columns == y, tl.load(true + row), dz)
    if HAS_EVEN:
        dz += tl.where(columns == y, 0.0, tl.load(even + row))
    if HAS_SQUARE:
        dz += 2.0 * tl.load(square + row) * x
    if CLAMP:
        dz = tl.minimum(tl.maximum(dz, -limit), limit)
    tl.store(at, dz.to(z.dtype.element_ty), mask=inside)


@triton.jit
def _best(z, stride, label, value, place, ties, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(label + row)
    largest = -float("inf")
    at = 0
    count = 0
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        keep = (columns < K) & (columns != y)
        x = tl.load(z + row * stride + columns, mask=keep, other=-float("inf")).to(tl.float32)
        here = tl.max(x, 0)
        higher = tl.maximum(largest, here)
        equal = tl.sum(((x == higher) & keep).to(tl.int32), 0)
        first = tl.min(tl.where((x == higher) & keep, columns, K), 0)
        at = tl.where(here > largest, first, at)
        count = tl.where(here > largest, equal, count + equal)
        largest = higher
    tl.store(value + row, largest)
    tl.store(place + row, at)
    tl.store(ties + row, count)


@triton.jit
def _times(source, factor, out, count, limit, CLAMP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    if CLAMP:
        x = tl.minimum(tl.maximum(x, -limit), limit)
    tl.store(out + at, x.to(out.dtype.element_ty), mask=at < count)


def squares(z: Tensor) -> Tensor:
    """sum_k z_k^2 of each row, (n,)."""
    out = torch.empty(z.shape[0], dtype=torch.float32, device=z.device)
    if z.shape[0]:
        _squares[(z.shape[0],)](z, z.stride(0), out, z.shape[1], BLOCK=_block(z), num_warps=8)
    return out


def others(
    z: Tensor,
    label: Tensor,
    *,
    sigmoid: bool = False,
    factor: Tensor | None = None,
    offset: Tensor | None = None,
    mean: bool = False,
    plain: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Over the classes k other than the label (n,), of each row:

    log sum_k exp(s_k) with s = factor z + offset, or sum_k softplus(z_k) for `sigmoid`;
    sum_k z_k exp(s_k) / sum_k exp(s_k), if the mean is wanted;
    sum_k z_k, if that is.
    """
    log_sum = torch.empty(z.shape[0], dtype=torch.float32, device=z.device)
    average = torch.empty_like(log_sum) if mean else None
    straight = torch.empty_like(log_sum) if plain else None
    if z.shape[0]:
        _others[(z.shape[0],)](
            z, z.stride(0), label, factor, offset, log_sum, average, straight, z.shape[1],
            SIGMOID=sigmoid, HAS_FACTOR=factor is not None, HAS_OFFSET=offset is not None, WANT_MEAN=mean,
            WANT_PLAIN=plain, BLOCK=_block(z), num_warps=8,
        )  # fmt: skip
    return log_sum, average, straight


def put_gradient(
    z: Tensor,
    label: Tensor,
    log_sum: Tensor,
    slope: Tensor,
    true: Tensor,
    *,
    sigmoid: bool = False,
    factor: Tensor | None = None,
    offset: Tensor | None = None,
    square: Tensor | None = None,
    even: Tensor | None = None,
) -> None:
    """Put the gradient of the logits in their place, from one number a row, (n,), each:

    at the label    true + 2 square z
    elsewhere       slope factor exp(s_k - log_sum) + even + 2 square z, or slope sigmoid(z_k) + ... for `sigmoid`
    """
    if not z.shape[0]:
        return
    numbers = (label, log_sum, slope, true, factor, square, even)
    label, log_sum, slope, true, factor, square, even = (None if x is None else x.contiguous() for x in numbers)
    block = _block(z)
    _gradient[(z.shape[0], triton.cdiv(z.shape[1], block))](
        z, z.stride(0), label, factor, offset, log_sum, slope, square, even, true, z.shape[1],
        LARGEST.get(z.dtype, 0.0),
        SIGMOID=sigmoid, HAS_FACTOR=factor is not None, HAS_OFFSET=offset is not None, HAS_SQUARE=square is not None,
        HAS_EVEN=even is not None, CLAMP=z.dtype in LARGEST, BLOCK=block, num_warps=8,
    )  # fmt: skip


def best(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit of a class other than the label, the first such class, and how many there are, (n,) each."""
    value = torch.empty(z.shape[0], dtype=torch.float32, device=z.device)
    place, ties = torch.zeros_like(label), torch.zeros_like(label)
    if z.shape[0]:
        _best[(z.shape[0],)](z, z.stride(0), label, value, place, ties, z.shape[1], BLOCK=_block(z), num_warps=8)
    return value, place, ties


def times(values: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    """Contiguous values times a number, in the dtype and the memory of out, which may be the values'."""
    if values.numel():
        _times[(triton.cdiv(values.numel(), 4096),)](
            values, factor, out, values.numel(), LARGEST.get(out.dtype, 0.0),
            CLAMP=out.dtype in LARGEST, BLOCK=4096, num_warps=8,
        )  # fmt: skip
    return out


def _block(z: Tensor) -> int:
    return min(BLOCK, triton.next_power_of_2(z.shape[1]))
