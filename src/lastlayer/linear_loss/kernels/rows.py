"""Triton kernels over rows: sums and extremes of logits, rows of unit length, and a product with a number.

If the number of classes K is odd, there are a few unused entries between rows of logits. A row then has ROOM entries,
so that the next row begins at an address from which several entries can be read at once. The unused entries are read
and written with the others, and have no meaning.

Imported when it is used, and only if Triton is there. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lastlayer.linear_loss.products import padded

BLOCK = 4096


@triton.jit
def exp(x):
    """e^x. The number is in a function, because Triton compares each constant of a module at each launch, slowly."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _sums(
    z, stride: tl.constexpr, label, peak, out, K: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(label + row)
    largest = -float("inf")
    total = 0.0
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        keep = (columns < K) & (columns != y)
        x = tl.load(z + row * stride + columns, mask=columns < ROOM, other=0.0).to(tl.float32)
        x = tl.where(keep, x, -float("inf"))
        higher = tl.maximum(largest, tl.max(x, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        shrink = exp(largest - base)
        total = total * shrink + tl.sum(exp(x - base), 0)
        largest = higher
    tl.store(peak + row, largest)
    tl.store(out + row, total)


@triton.jit
def _exponentials(z, stride: tl.constexpr, base, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < ROOM
    at = z + row * stride + columns
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    dz = exp(x - tl.load(base))
    tl.store(at, dz.to(z.dtype.element_ty), mask=inside)


@triton.jit
def _best(
    z, stride: tl.constexpr, label, value, place, ties, K: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(label + row)
    largest = -float("inf")
    at = 0
    count = 0
    strange = 0
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        keep = (columns < K) & (columns != y)
        x = tl.load(z + row * stride + columns, mask=columns < ROOM, other=0.0).to(tl.float32)
        x = tl.where(keep, x, -float("inf"))  # not by the mask, which would have to be looked at entry by entry
        strange += tl.sum((x != x).to(tl.int32), 0)  # a maximum passes over NaN
        here = tl.max(x, 0)
        higher = tl.maximum(largest, here)
        equal = tl.sum(((x == higher) & keep).to(tl.int32), 0)
        first = tl.min(tl.where((x == higher) & keep, columns, K), 0)
        at = tl.where(here > largest, first, at)
        count = tl.where(here > largest, equal, count + equal)
        largest = higher
    tl.store(value + row, tl.where(strange > 0, float("nan"), largest))
    tl.store(place + row, at)
    tl.store(ties + row, count)


@triton.jit
def _times(source, factor, out, count, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    f = tl.load(factor).to(tl.float32)
    if (f != 1.0) | (not IN_PLACE):
        x = tl.load(source + at, mask=at < count, other=0.0).to(tl.float32) * f
        tl.store(out + at, x.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def _rows_of(x, N, d: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Some rows, each divided by its largest entry; these entries; and where the rows lie in memory."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows[:, None] < N) & (columns[None, :] < d)
    at = rows[:, None] * d + columns[None, :]
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(v), 1), 1.1754943508222875e-38)[:, None]  # no square overflows or vanishes
    return v / largest, largest, at, inside


@triton.jit
def _unit(x, out, N, scale, d: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    v, _, at, inside = _rows_of(x, N, d, ROWS, BLOCK)
    norm = tl.sqrt(tl.sum(v * v, 1))[:, None]
    u = tl.where(norm == 0, 0.0, scale * (v / tl.where(norm == 0, 1.0, norm)))
    tl.store(out + at, u.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _unit_gradient(x, gradient, out, N, scale, d: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    v, largest, at, inside = _rows_of(x, N, d, ROWS, BLOCK)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    norm = tl.sqrt(tl.sum(v * v, 1))[:, None]
    safe = tl.where(norm == 0, 1.0, norm)
    u = v / safe
    along = tl.sum(u * g, 1)[:, None]
    dx = tl.where(norm == 0, 0.0, scale * ((g - along * u) / safe) / largest)
    tl.store(out + at, dx.to(out.dtype.element_ty), mask=inside)


def sums(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit and sum_k exp(z_k - largest) of each row, (n,) each, without its label. -1 means no label.

    These are two numbers, because in their log-sum a large first one would take the digits of the second.
    """
    largest, total = (torch.empty(z.shape[0], dtype=torch.float32, device=z.device) for _ in range(2))
    if z.shape[0]:
        _sums[(z.shape[0],)](
            z, z.stride(0), label, largest, total, z.shape[1], ROOM=room_of(z), BLOCK=block_of(z), num_warps=8
        )  # fmt: skip
    return largest, total


def put_exponentials(z: Tensor, base: Tensor) -> None:
    """Overwrite z by exp(z - base)."""
    if not z.shape[0]:
        return
    block = block_of(z)
    _exponentials[(z.shape[0], blocks(z.shape[1], block))](
        z, z.stride(0), base, ROOM=room_of(z), BLOCK=block,
        num_warps=8,
    )  # fmt: skip


def best(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit of a class other than the label, the first such class, and how many there are, (n,) each."""
    value = torch.empty(z.shape[0], dtype=torch.float32, device=z.device)
    place, ties = torch.zeros_like(label), torch.zeros_like(label)
    if z.shape[0]:
        _best[(z.shape[0],)](
            z, z.stride(0), label, value, place, ties, z.shape[1], ROOM=room_of(z), BLOCK=block_of(z), num_warps=8
        )  # fmt: skip
    return value, place, ties


def times(values: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    """Contiguous values times a number, written to out. If out is values and the number is 1, nothing is read."""
    if values.numel():
        _times[(blocks(values.numel(), 4096),)](
            values, factor, out, values.numel(), IN_PLACE=out is values, BLOCK=4096, num_warps=8,
        )  # fmt: skip
    return out


def unit(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """scale x / ||x|| for each row of a contiguous x (n, d), in the given dtype. Zero rows stay zero."""
    out = torch.empty_like(x, dtype=dtype)
    if x.shape[0]:
        shape = _rows_of_a_program(x)
        _unit[(blocks(x.shape[0], shape["ROWS"]),)](x, out, x.shape[0], scale, x.shape[1], **shape)
    return out


def unit_gradient(x: Tensor, gradient: Tensor, scale: float) -> Tensor:
    """The gradient of x, from the gradient of `unit(x)`. Both are contiguous. It is 0 at zero rows."""
    out = torch.empty_like(x)
    if x.shape[0]:
        shape = _rows_of_a_program(x)
        _unit_gradient[(blocks(x.shape[0], shape["ROWS"]),)](
            x, gradient, out, x.shape[0], scale, x.shape[1], **shape,
        )  # fmt: skip
    return out


def _rows_of_a_program(x: Tensor) -> dict[str, int]:
    """How many rows a program takes, the power of two that holds one, and its warps."""
    block = _power_of_two(x.shape[1])
    return {"ROWS": max(1, 2048 // block), "BLOCK": block, "num_warps": max(4, block // 512)}


def room_of(z: Tensor) -> int:
    """The columns from one row of (n, K) to the next in memory. Those past K have no meaning."""
    K = z.shape[1]
    return padded(K) if z.stride(0) == padded(K) else K


def block_of(z: Tensor) -> int:
    """Columns of (n, K) that a program takes at a time."""
    return min(BLOCK, _power_of_two(z.shape[1]))


def blocks(count: int, size: int) -> int:
    """How many blocks of a size hold this many entries. Triton's own function takes longer than a launch may."""
    return -(-count // size)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least this large. Triton's own function is slow here too."""
    return 1 << (count - 1).bit_length()
