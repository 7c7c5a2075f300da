"""Triton kernels of losses that couple the rows of a batch. They make the loss and its slopes from numbers of each row.

`labels.py` computes these numbers first, and at the end overwrites the logits by the gradient. In between, one program
goes over all rows three times: for the extremes of the batch, for its sums, and to write the slopes.

Imported when it is used, and only if Triton is there. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lastlayer.linear_loss.kernels import RowLoss
from lastlayer.linear_loss.kernels.labels import line, log
from lastlayer.linear_loss.kernels.rows import exp
from lastlayer.losses.forms import Kind

BLOCK = 8192  # rows at a time


@triton.jit
def _load(numbers, N, WHAT: tl.constexpr, rows, other):
    """One number of some rows. Past the last row it is `other`."""
    return tl.load(line(numbers, N, WHAT) + rows, mask=rows < N, other=other)


@triton.jit
def _softmax_of(numbers, N, rows, top):
    """exp(z - top) of three things: the true logit, the largest false logit, and the sum over all false logits."""
    total = _load(numbers, N, "sum", rows, 0.0)
    largest = exp(_load(numbers, N, "largest", rows, 0.0) - top)
    largest = tl.where(total == 0, 0.0, largest)  # there is none, and what stands for it may be far above the top
    true = exp(_load(numbers, N, "score", rows, 0.0) - top)
    return true, largest, total * largest


@triton.jit(do_not_specialize=["N"])
def _softmax(numbers, value, share, N, BLOCK: tl.constexpr):
    N = N.to(tl.int64)
    n = N.to(tl.float32)
    highest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    start = 0
    while start < N:  # the interpreter has no range over a number that is an argument
        rows = start + tl.arange(0, BLOCK)
        largest = _load(numbers, N, "largest", rows, 0.0)
        largest = tl.where(_load(numbers, N, "sum", rows, 0.0) == 0, -float("inf"), largest)  # there is none
        highest = tl.maximum(highest, tl.maximum(_load(numbers, N, "score", rows, -float("inf")), largest))
        start += BLOCK
    top = tl.max(highest, 0)

    sums = tl.zeros([BLOCK], dtype=tl.float32)
    leads = tl.zeros([BLOCK], dtype=tl.float32)
    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        true, _, false = _softmax_of(numbers, N, rows, top)
        sums += tl.where(rows < N, true + false, 0.0)
        leads += tl.where(rows < N, _load(numbers, N, "score", rows, 0.0) - top, 0.0)
        start += BLOCK
    whole = tl.sum(sums, 0)
    tl.store(value, log(whole / n) - tl.sum(leads, 0) / n)
    tl.store(share, 1.0)

    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        true, largest, _ = _softmax_of(numbers, N, rows, top)
        tl.store(line(numbers, N, "slope") + rows, largest / whole, mask=rows < N)
        tl.store(line(numbers, N, "true") + rows, true / whole - 1.0 / n, mask=rows < N)
        start += BLOCK


@triton.jit(do_not_specialize=["N"])
def _hinge(numbers, value, share, N, margin, SAMPLE_TERM: tl.constexpr, BLOCK: tl.constexpr):
    N = N.to(tl.int64)
    n = N.to(tl.float32)
    lowest = tl.full([BLOCK], float("inf"), dtype=tl.float32)
    highest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    hinges = tl.zeros([BLOCK], dtype=tl.float32)
    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        lowest = tl.minimum(lowest, _load(numbers, N, "score", rows, float("inf")))
        highest = tl.maximum(highest, _load(numbers, N, "largest", rows, -float("inf")))
        hinges += _load(numbers, N, "value", rows, 0.0)
        start += BLOCK
    bottom, top, total = tl.min(lowest, 0), tl.max(highest, 0), tl.sum(hinges, 0)
    lack = tl.where(total != total, float("nan"), margin - (bottom - top))  # extremes pass over NaN
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
        lows += tl.where((_load(numbers, N, "score", rows, 0.0) == bottom) & (rows < N), 1.0, 0.0)
        highs += tl.where((_load(numbers, N, "largest", rows, 0.0) == top) & (rows < N), 1.0, 0.0)
        start += BLOCK
    active = tl.where(lack != lack, lack, tl.where(lack > 0, 1.0, 0.0))
    low_share = active / tl.maximum(tl.sum(lows, 0), 1.0)  # what ties for an extreme shares its slope
    high_share = active / tl.maximum(tl.sum(highs, 0), 1.0)

    start = 0
    while start < N:
        rows = start + tl.arange(0, BLOCK)
        ties = tl.maximum(_load(numbers, N, "sum", rows, 1.0), 1.0)
        slope = tl.where(_load(numbers, N, "largest", rows, 0.0) == top, high_share / ties, 0.0)
        d_true = tl.where(_load(numbers, N, "score", rows, 0.0) == bottom, -low_share, 0.0)
        if SAMPLE_TERM:
            slope += _load(numbers, N, "slope", rows, 0.0)
            d_true += _load(numbers, N, "true", rows, 0.0)
        tl.store(line(numbers, N, "slope") + rows, slope, mask=rows < N)
        tl.store(line(numbers, N, "true") + rows, d_true, mask=rows < N)
        start += BLOCK


def coupled(numbers: Tensor, loss: RowLoss) -> tuple[Tensor, Tensor]:
    """The loss of the whole batch, and the factor on its gradient. Slopes in (LINES, n) become those of the batch."""
    value, share = numbers.new_empty(()), numbers.new_empty(())
    n, shape = numbers.shape[1], {"BLOCK": BLOCK, "num_warps": 16}
    if loss.kind is Kind.HINGE:
        _hinge[(1,)](numbers, value, share, n, loss.numbers[1], SAMPLE_TERM=loss.sample_term, **shape)
    else:
        _softmax[(1,)](numbers, value, share, n, **shape)
    return value, share
