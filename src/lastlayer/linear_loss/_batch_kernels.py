"""Triton kernels of the losses that couple the rows of a batch: from the numbers of each row, the loss and the slopes.

The numbers are those of `_label_kernels`, which computes them before and puts the gradient in the logits' place after.
One program goes over all rows: for what the batch is measured against, for its sums, and to write the slopes.

Imported where it is used, and only where Triton is there. `TRITON_INTERPRET=1` runs them on a CPU, for tests.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lastlayer.linear_loss._kernels import LOG2E
from lastlayer.linear_loss._label_kernels import LARGEST, LN2, SCORE, SLOPE, SUM, TRUE, VALUE
from lastlayer.linear_loss._label_losses import Kind, RowLoss

BLOCK = 8192  # rows at a time
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _line(numbers, LINE: tl.constexpr, N, rows, other):
    """A number of some rows; another one past the last of them."""
    return tl.load(numbers + LINE * N + rows, mask=rows < N, other=other)


@triton.jit
def _softmax_of(numbers, N, rows, top):
    """exp(z - top) of the true logit, of the largest false one, and summed over the false ones."""
    total = _line(numbers, SUM, N, rows, 0.0)
    largest = tl.exp2((_line(numbers, LARGEST, N, rows, 0.0) - top) * LOG2E)
    true = tl.exp2((_line(numbers, SCORE, N, rows, 0.0) - top) * LOG2E)
    return true, largest, tl.where(total == 0, 0.0, total * largest)


@triton.jit(do_not_specialize=["N"])
def _softmax(numbers, value, share, N, BLOCK: tl.constexpr):
    N = N.to(tl.int64)
    n = N.to(tl.float32)
    highest = tl.full([BLOCK], -INFINITY, dtype=tl.float32)
    start = 0
    while start < N:  # the interpreter has no range over a number that is an argument
        rows = start + tl.arange(0, BLOCK)
        false = tl.where(_line(numbers, SUM, N, rows, 0.0) == 0, -INFINITY, _line(numbers, LARGEST, N, rows, 0.0))
        highest = tl.maximum(highest, tl.maximum(_line(numbers, SCORE, N, rows, -INFINITY), false))
        start += BLOCK
    top = tl.max(highest, 0)

    sums = tl.zeros([BLOCK], dtype=tl.float32)
    leads = tl.zeros([BLOCK], dtype=tl.float32)
    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        true, _, false = _softmax_of(numbers, N, rows, top)
        sums += tl.where(rows < N, true + false, 0.0)
        leads += tl.where(rows < N, _line(numbers, SCORE, N, rows, 0.0) - top, 0.0)
        start += BLOCK
    whole = tl.sum(sums, 0)
    tl.store(value, tl.log2(whole / n) * LN2 - tl.sum(leads, 0) / n)
    tl.store(share, 1.0)

    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        true, largest, _ = _softmax_of(numbers, N, rows, top)
        tl.store(numbers + SLOPE * N + rows, largest / whole, mask=rows < N)
        tl.store(numbers + TRUE * N + rows, true / whole - 1.0 / n, mask=rows < N)
        start += BLOCK


@triton.jit(do_not_specialize=["N"])
def _hinge(numbers, value, share, N, margin, SAMPLE_TERM: tl.constexpr, BLOCK: tl.constexpr):
    N = N.to(tl.int64)
    n = N.to(tl.float32)
    lowest = tl.full([BLOCK], INFINITY, dtype=tl.float32)
    highest = tl.full([BLOCK], -INFINITY, dtype=tl.float32)
    hinges = tl.zeros([BLOCK], dtype=tl.float32)
    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        lowest = tl.minimum(lowest, _line(numbers, SCORE, N, rows, INFINITY))
        highest = tl.maximum(highest, _line(numbers, LARGEST, N, rows, -INFINITY))
        hinges += _line(numbers, VALUE, N, rows, 0.0)
        start += BLOCK
    bottom, top, total = tl.min(lowest, 0), tl.max(highest, 0), tl.sum(hinges, 0)
    lack = tl.where(total != total, float("nan"), margin - bottom + top)  # extremes pass over NaN
    found = tl.where(lack < 0, 0.0, lack)
    if SAMPLE_TERM:
        found += total
    tl.store(value, found / n)
    tl.store(share, 1.0 / n)

    lows = tl.zeros([BLOCK], dtype=tl.float32)
    highs = tl.zeros([BLOCK], dtype=tl.float32)
    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        lows += tl.where((_line(numbers, SCORE, N, rows, 0.0) == bottom) & (rows < N), 1.0, 0.0)
        highs += tl.where((_line(numbers, LARGEST, N, rows, 0.0) == top) & (rows < N), 1.0, 0.0)
        start += BLOCK
    active = tl.where(lack >= 0, 1.0, 0.0)
    low_share = active / tl.maximum(tl.sum(lows, 0), 1.0)  # what ties for an extreme shares its slope
    high_share = active / tl.maximum(tl.sum(highs, 0), 1.0)

    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        ties = tl.maximum(_line(numbers, SUM, N, rows, 1.0), 1.0)
        slope = tl.where(_line(numbers, LARGEST, N, rows, 0.0) == top, high_share / ties, 0.0)
        d_true = tl.where(_line(numbers, SCORE, N, rows, 0.0) == bottom, -low_share, 0.0)
        if SAMPLE_TERM:
            slope += _line(numbers, SLOPE, N, rows, 0.0)
            d_true += _line(numbers, TRUE, N, rows, 0.0)
        tl.store(numbers + SLOPE * N + rows, slope, mask=rows < N)
        tl.store(numbers + TRUE * N + rows, d_true, mask=rows < N)
        start += BLOCK


def coupled(numbers: Tensor, loss: RowLoss) -> tuple[Tensor, Tensor]:
    """The loss of all rows together, and what the gradient is multiplied by; slopes (LINES, n) become the batch's."""
    value, share = numbers.new_empty(()), numbers.new_empty(())
    n, shape = numbers.shape[1], {"BLOCK": BLOCK, "num_warps": 16}
    if loss.kind is Kind.HINGE:
        _hinge[(1,)](numbers, value, share, n, loss.numbers[1], SAMPLE_TERM=loss.sample_term, **shape)
    else:
        _softmax[(1,)](numbers, value, share, n, **shape)
    return value, share
