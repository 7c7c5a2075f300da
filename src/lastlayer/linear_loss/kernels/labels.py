"""Triton kernels for losses of one label per sample: a few numbers of each row of logits, then the gradient in place.

The first kernel reads each row once. A loss depends on the false logits of a row only through one number:
    softmax losses                  their log-sum
    binary cross-entropy and nce    a sum of softplus
    mse                             a sum of squares
    hinges                          the largest of them
This number and the true logit give the loss of the row and its slopes in closed form. Some losses also need the norm or
the plain sum. The second kernel reads the logits once more and writes the gradient over them.

If a row has room for more than K classes (ROOM), the rest of it has no meaning, as in `rows.py`.

Imported when it is used, and only if Triton is there. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lastlayer.linear_loss.kernels import LINES, NO_LABEL, RowLoss, place
from lastlayer.linear_loss.kernels.rows import block_of, blocks, exp, room_of
from lastlayer.linear_loss.plan import ONE_PROGRAM
from lastlayer.losses.forms import Kind

TILE = 2**11  # logits of a program, where that is several rows
LONG = 2**19  # classes, of which so few rows fit a chunk that the memory is busy only if each is read ahead


_place = triton.constexpr_function(place)


@triton.jit
def log(x):
    """The natural logarithm."""
    return tl.log2(x) * 0.6931471805599453


@triton.jit
def line(numbers, N, WHAT: tl.constexpr):
    """The line that holds one number of each row."""
    return numbers + _place(WHAT) * N


@triton.jit
def _decay(x):
    """e^-|x|."""
    return tl.exp2(tl.abs(x) * -1.4426950408889634)


@triton.jit
def _softplus(x):
    """log(1 + e^x) to the precision of float32, by the series of the inverse hyperbolic tangent of at most 1/3."""
    e = _decay(x)
    s = e / (2.0 + e)
    s2 = s * s
    tail = 1 / 9 + s2 * (1 / 11 + s2 * (1 / 13 + s2 * (1 / 15)))
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1 / 3 + s2 * (1 / 5 + s2 * (1 / 7 + s2 * tail))))


@triton.jit
def _logistic(x):
    """1 / (1 + e^-x), which keeps its digits at both ends."""
    e = _decay(x)
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _rows(count, ROWS: tl.constexpr):
    """The rows of a program, and which of them exist."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return rows, rows < count


@triton.jit
def _logits(z, there, columns, ROOM: tl.constexpr):
    """Some columns of each row, in float32."""
    inside = there[:, None] & (columns < ROOM)[None, :]
    return tl.load(z[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _squares(
    z, there, inverse, K: tl.constexpr, ROOM: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each row is multiplied by a number. Returns its sum of squares and its largest absolute value."""
    squares = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    sizes = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.range(0, K, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)
        x = _logits(z, there, columns, ROOM) * inverse[:, None]
        if ROOM != K:
            x = tl.where((columns < K)[None, :], x, 0.0)
        squares += x * x
        sizes = tl.maximum(sizes, tl.abs(x))
    return tl.sum(squares, 1), tl.max(sizes, 1)


@triton.jit
def _inverse_norm(
    z, there, K: tl.constexpr, ROOM: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """1 / ||z|| of each row; 0 for a zero row."""
    square, size = _squares(z, there, tl.full([ROWS], 1.0, dtype=tl.float32), K, ROOM, STAGES, ROWS, BLOCK)
    zero = size < 1.1754943508222875e-38
    unit = tl.where(zero | ((size > 1e-15) & (size < 1e15)), 1.0, size)
    if tl.max((unit != 1.0).to(tl.int32), 0) != 0:  # such squares overflow or vanish
        square, _ = _squares(z, there, 1.0 / unit, K, ROOM, STAGES, ROWS, BLOCK)
    return tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, tl.sqrt(square)) / unit)


@triton.jit
def _over_false_classes(
    z, there, y, t, factor, offset, a, K: tl.constexpr, KIND: tl.constexpr, HAS_OFFSET: tl.constexpr,
    SMOOTH: tl.constexpr, ROOM: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For each row: the largest score, the sum that the loss needs, this sum weighted by the logits, and a plain sum.

    For a hinge, the first sum counts how many logits are the largest, and the plain one counts NaN.
    """
    largest = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    weighted = tl.zeros([ROWS], dtype=tl.float32)
    plain = tl.zeros([ROWS], dtype=tl.float32)
    for start in tl.range(0, K, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)
        false = (columns < K)[None, :] & (columns[None, :] != y[:, None])
        x = _logits(z, there, columns, ROOM)
        if KIND == "binary":
            total += tl.sum(tl.where(false, _softplus(x + a), 0.0), 1)
        elif KIND == "squares":
            total += tl.sum(tl.where(false, x * x, 0.0), 1)
        elif KIND == "hinge":
            here = tl.max(tl.where(false, x, -float("inf")), 1)
            plain += tl.sum(tl.where(false & (x != x), 1.0, 0.0), 1)  # a maximum passes over NaN
            ties = tl.sum(tl.where(false & (x == here[:, None]), 1.0, 0.0), 1)
            total = tl.where(here > largest, ties, tl.where(here == largest, total + ties, total))
            largest = tl.maximum(largest, here)
        else:
            s = factor[:, None] * x
            if HAS_OFFSET:
                s += tl.load(offset + columns, mask=columns < K, other=0.0)[None, :]
            s = tl.where(false, s, -float("inf"))
            higher = tl.maximum(largest, tl.max(s, 1))
            base = tl.where(higher == -float("inf"), 0.0, higher)
            shrink = exp(largest - base)
            terms = exp(s - base[:, None])  # in this order: a large common part leaves before anything is rounded
            total = total * shrink + tl.sum(terms, 1)
            if KIND == "norm":
                weighted = weighted * shrink + tl.sum(tl.where(false, terms * x, 0.0), 1)
            largest = higher
        if SMOOTH:
            plain += tl.sum(tl.where(false, x - t[:, None], 0.0), 1)
    return largest, total, weighted, plain


# Chunks of an odd number of samples start at all sorts of addresses: none of them is worth a compilation of its own.
@triton.jit(do_not_specialize=["N", "count", "ignored"], do_not_specialize_on_alignment=["label", "numbers"])
def _numbers(
    z, stride: tl.constexpr, label, class_weight, offset, numbers, N, count, K: tl.constexpr, ignored, factor, a, b, c,
    KIND: tl.constexpr, WEIGHTED: tl.constexpr, HAS_OFFSET: tl.constexpr, SMOOTH: tl.constexpr, COUPLED: tl.constexpr,
    ROOM: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, there = _rows(count, ROWS)
    N = N.to(tl.int64)  # times a line it may be past 2^31
    z += rows * stride
    y = tl.load(label + rows, mask=there, other=0)
    counts = y != ignored
    y = tl.where(counts, y, 0)
    tl.device_assert((y >= 0) & (y < K), "a label is no class")
    t = tl.load(z + y, mask=there, other=0.0).to(tl.float32)

    inverse = 0.0
    factor += tl.zeros([ROWS], dtype=tl.float32)
    if KIND == "norm":
        inverse = _inverse_norm(z, there, K, ROOM, STAGES, ROWS, BLOCK)
        factor = tl.where(inverse == 0, 0.0, factor * tl.exp2(a * tl.log2(tl.where(inverse == 0, 1.0, inverse))))

    largest, total, weighted, plain = _over_false_classes(
        z, there, y, t, factor, offset, a, K, KIND=KIND, HAS_OFFSET=HAS_OFFSET, SMOOTH=SMOOTH,
        ROOM=ROOM, STAGES=STAGES, ROWS=ROWS, BLOCK=BLOCK,
    )  # fmt: skip

    even = 0.0
    norm_slope = 0.0
    if KIND == "binary":
        score = t + a
        value = b * (total + tl.where(c == 0, 0.0, c * _softplus(score))) + _softplus(-score)
        slope = b
        d_true = b * c * _logistic(score) - _logistic(-score)
    elif KIND == "squares":
        value = a * (t - b) * (t - b) + total
        slope = 2.0
        d_true = 2.0 * a * (t - b)
    elif KIND == "hinge":
        lack = a - (t - tl.where(plain > 0, float("nan"), largest))  # one class has no others: -inf
        value = tl.where(lack < 0, 0.0, lack)
        active = tl.where(lack != lack, lack, tl.where(lack > 0, 1.0, 0.0))
        slope = active / tl.maximum(total, 1.0)
        d_true = -active
    else:
        largest = tl.where(largest == -float("inf"), 0.0, largest)  # no other class, or none that is not masked
        safe_total = tl.where(total == 0.0, 1.0, total)
        score = factor * t
        d_score = factor
        if KIND == "softmax":
            if HAS_OFFSET:
                score += tl.load(offset + y)
            score = tl.where(score == float("inf"), float("nan"), score - a)  # an overflow is no perfect answer
        if KIND == "arc":
            inside = tl.abs(t) < 1
            cosine = tl.where(inside, t, tl.where(t > 0, 1.0, tl.where(t < 0, -1.0, t)))
            sine = tl.sqrt(tl.where(inside, (1.0 - cosine) * (1.0 + cosine), 0.0))
            falls = tl.where(inside, cosine / tl.where(inside, sine, 1.0), 0.0)
            near = cosine >= -a
            score = factor * tl.where(near, cosine * a - sine * b, cosine - c * b)
            d_score = factor * tl.where(near, a + falls * b, 1.0)
        log_total = log(total)
        lead = (largest - score) + log_total  # of the false classes' log-sum
        surprise = _softplus(lead)
        missing = _logistic(lead)  # 1 - p of the label
        value = surprise
        slope = missing
        d_true = -missing * d_score
        if SMOOTH:
            value -= tl.where(t == -float("inf"), 0.0, b * factor * plain / K)  # infinite already, and plain is too
            d_true += b * factor * (1.0 - 1.0 / K)
            even = -b * factor / K
        if KIND == "norm":
            d_factor = missing * (weighted / safe_total - t)
            norm_slope = -a * d_factor * factor * inverse
        if KIND == "focus":
            focus = exp(-a * _softplus(-lead))
            value = tl.where(missing == 0, 0.0, focus * surprise)
            slope = tl.where(missing == 0, 0.0, focus * (missing + a * _logistic(-lead) * surprise))
            d_true = -slope
        if KIND == "partition":
            log_sum = tl.where(lead > 0, largest + log_total + _softplus(-lead), score + surprise)
            value += a * log_sum * log_sum
            slope += 2.0 * a * log_sum * missing
            d_true += 2.0 * a * log_sum * _logistic(-lead)
        slope = slope * factor / safe_total

    if COUPLED:
        even = t
        norm_slope = total
    mass = 1.0
    if WEIGHTED:
        mass = tl.load(class_weight + y)
    numbers += rows
    tl.store(line(numbers, N, "value"), tl.where(counts, mass * value, 0.0), mask=there)
    tl.store(line(numbers, N, "mass"), tl.where(counts, mass, 0.0), mask=there)
    tl.store(line(numbers, N, "largest"), largest, mask=there)
    tl.store(line(numbers, N, "factor"), factor, mask=there)
    tl.store(line(numbers, N, "slope"), mass * slope, mask=there)
    tl.store(line(numbers, N, "true"), mass * d_true, mask=there)
    if SMOOTH or COUPLED:
        tl.store(line(numbers, N, "even"), mass * even, mask=there)
    if KIND == "norm" or COUPLED:
        tl.store(line(numbers, N, "norm slope"), mass * norm_slope, mask=there)
    if KIND == "norm":
        tl.store(line(numbers, N, "inverse"), inverse, mask=there)


@triton.jit
def _column(numbers, N, there, WHAT: tl.constexpr):
    """One number of each row, in a shape that broadcasts with its logits."""
    return tl.load(line(numbers, N, WHAT), mask=there, other=0.0)[:, None]


@triton.jit(
    do_not_specialize=["N", "count", "ignored"], do_not_specialize_on_alignment=["label", "numbers", "upstream"]
)
def _gradient(
    z, stride: tl.constexpr, label, offset, numbers, upstream, share, N, count, K: tl.constexpr, ignored, a,
    KIND: tl.constexpr, HAS_OFFSET: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, SHARED: tl.constexpr,
    ROOM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, there = _rows(count, ROWS)
    N = N.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z += rows * stride
    numbers += rows
    y = tl.load(label + rows, mask=there, other=0)[:, None]
    times = 1.0
    if PER_ROW:
        times = tl.load(upstream + rows, mask=there, other=0.0)[:, None]
    elif SHARED:
        times = tl.load(upstream) * tl.load(share)
    largest = _column(numbers, N, there, "largest")
    slope = _column(numbers, N, there, "slope") * times
    x = _logits(z, there, columns, ROOM)
    if KIND == "binary":
        dz = slope * _logistic(x + a)
    elif KIND == "squares":
        dz = slope * x
    elif KIND == "hinge":
        dz = tl.where(x == largest, slope, 0.0)
    else:
        s = _column(numbers, N, there, "factor") * x
        if HAS_OFFSET:
            s += tl.load(offset + columns, mask=columns < K, other=0.0)[None, :]
        dz = slope * exp(s - largest)
        if SMOOTH:
            dz += _column(numbers, N, there, "even") * times
    dz = tl.where(columns[None, :] == y, _column(numbers, N, there, "true") * times, dz)
    if KIND == "norm":
        inverse = _column(numbers, N, there, "inverse")
        dz += _column(numbers, N, there, "norm slope") * times * (x * inverse)
    dz = tl.where(y == ignored, 0.0, dz)
    inside = there[:, None] & (columns < ROOM)[None, :]
    tl.store(z[:, None] + columns[None, :], dz.to(z.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N", "ignored"])
def _reduce(numbers, label, value, share, N, ignored, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    N = N.to(tl.int64)
    values = tl.zeros([BLOCK], dtype=tl.float32)
    masses = tl.zeros([BLOCK], dtype=tl.float32)
    counted = tl.zeros([BLOCK], dtype=tl.int32)
    start = 0
    while start < N:  # the interpreter has no range over a number that is an argument
        rows = start + tl.arange(0, BLOCK)
        values += tl.load(line(numbers, N, "value") + rows, mask=rows < N, other=0.0)
        if MEAN:
            masses += tl.load(line(numbers, N, "mass") + rows, mask=rows < N, other=0.0)
            counted += (tl.load(label + rows, mask=rows < N, other=ignored) != ignored).to(tl.int32)
        start += BLOCK
    total = tl.sum(values, 0)
    factor = 1.0
    if MEAN:
        mass = tl.sum(masses, 0)
        total = total / mass
        factor = tl.where(tl.sum(counted, 0) > 0, 1.0 / mass, 0.0)  # no sample counts: no gradient
    tl.store(value, total)
    tl.store(share, factor)


def put_numbers(z: Tensor, label: Tensor, loss: RowLoss, into: Tensor) -> None:
    """Compute the numbers of each row of logits (n, K), and write them into (LINES, n)."""
    n, K = z.shape
    shape = _launch(z, loss)
    _numbers[(blocks(n, shape["ROWS"]),)](
        z, z.stride(0), label, loss.class_weight, loss.offset, into, into.stride(0), n, K, loss.ignored,
        *loss.numbers, KIND=loss.kind.value, WEIGHTED=loss.class_weight is not None, HAS_OFFSET=loss.offset is not None,
        SMOOTH=loss.smooth, COUPLED=loss.coupled, STAGES=3 if K >= LONG else 1, **shape,
        debug=True, sanitize_overflow=False,  # for the assertion, and that one alone
    )  # fmt: skip


def put_gradient(
    z: Tensor,
    label: Tensor,
    loss: RowLoss,
    numbers: Tensor,
    upstream: Tensor | None = None,
    share: Tensor | None = None,
) -> None:
    """Overwrite the logits (n, K) by their gradient, which is made from the numbers (LINES, n) of each row.

    The gradient is multiplied by `upstream`, one number per row (n,). If `share` is given, both are scalars, and it is
    multiplied by both.
    """
    n, K = z.shape
    shape = _launch(z, loss)
    _gradient[(blocks(n, shape["ROWS"]), blocks(K, shape["BLOCK"]))](
        z, z.stride(0), label, loss.offset, numbers, upstream, share, numbers.stride(0), n, K, loss.ignored,
        loss.numbers[1], KIND=loss.kind.value, HAS_OFFSET=loss.offset is not None,
        SMOOTH=loss.smooth, PER_ROW=upstream is not None and share is None, SHARED=share is not None,
        **shape,
    )  # fmt: skip


def put_slopes(z: Tensor, label: Tensor, largest: Tensor, slope: Tensor, true: Tensor) -> None:
    """Overwrite logits (n, K) by slope exp(z - largest), and by `true` at the label. The numbers are (n,)."""
    numbers = torch.empty(LINES, len(z), dtype=torch.float32, device=z.device)
    for name, values in (("largest", largest), ("factor", 1.0), ("slope", slope), ("true", true)):
        numbers[place(name)] = values
    put_gradient(z, label, RowLoss(Kind.SOFTMAX, (1.0, 0.0, 0.0, 0.0), NO_LABEL), numbers)


def reduced(numbers: Tensor, label: Tensor, loss: RowLoss, mean: bool) -> tuple[Tensor, Tensor]:
    """The sum or the mean of the values, and the factor that this reduction puts on the gradient."""
    if numbers.shape[1] > ONE_PROGRAM:
        total = numbers[place("value")].sum()
        if not mean:
            return total, torch.ones_like(total)
        mass = numbers[place("mass")].sum()
        return total / mass, torch.where((label != loss.ignored).any(), 1 / mass, 0.0)
    value, share = numbers.new_empty(()), numbers.new_empty(())  # no views of one tensor: the caller may write to one
    _reduce[(1,)](numbers, label, value, share, numbers.shape[1], loss.ignored, MEAN=mean, BLOCK=8192, num_warps=16)
    return value, share


def _launch(z: Tensor, loss: RowLoss) -> dict[str, int | bool]:
    """Rows, columns and warps of a program, and whether a product and a sum may be rounded together.

    In a softmax they may not. There, the largest of all factor * x is rounded and then subtracted. If the other
    products were not rounded, the difference would not be 0 at the largest: with scores of 1e9, its exponential would
    be wrong by e^32. Binary cross-entropy has no such difference, and its long series has fewer steps this way.
    """
    block = block_of(z)
    return {
        "ROOM": room_of(z),
        "ROWS": max(1, TILE // block),
        "BLOCK": block,
        "num_warps": 4 if block <= 1024 else 8,
        "enable_fp_fusion": loss.kind is Kind.BINARY,
    }
