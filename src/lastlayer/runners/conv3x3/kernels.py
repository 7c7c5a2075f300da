"""Triton kernels of 3x3 convolutions of few channels; `launch` cuts the work for them. All is channels_last.

Forward and input gradient are the same product. A program owns BM blocks of TH x TW output pixels. It loads every row
of the input patch of a block once, `PXC` neighbouring pixels with all their channels as one run of K, and multiplies it
with the weights of every tap row kh that leads from this row to one of the TH output rows. Along a row the weights are
spread out (Toeplitz): a column of B for each of the TW pixels and channels, zero where the tap would lie outside 0..2.
With TH = TW = 2 a pixel is read four times instead of nine.

    fprop, stride s:   input row = s (TH hb + dh) + kh - 1      = (s TH) hb - 1 + r       so  kh = r - s dh
    dgrad, stride 1:   dy row    = (TH hb + dh) + 1 - kh        = TH hb - 1 + r           so  kh = dh + 2 - r
    dgrad, stride 2:   dy row    = ((TH hb + dh) + 1 - kh) / 2  = (TH / 2) hb + r         so  kh = dh + 1 - 2 r

The weight gradient contracts pixels: dW[kh][(pixel j, ci), (dw, co)] = sum over blocks x[row r, j, ci] dy[dh, dw, co].
The blocks are cut into S parts (fixed for a shape). Every part writes its sums. A second kernel adds them in a fixed
order, so that the bits are the same each time.

Imported where it is used, and only if Triton is installed. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
EXACT: multiply in float32. The interpreter needs it, because numpy has no bfloat16.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108 (the interpreter takes (*a, b), the compiler does not; if with a constant is compiled away)
from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _tap_row(r, dh, stride, off, dgrad):
    """The kh that leads from patch row r to output row dh, -1 if none does."""
    kh = dh + 1 - stride * off - stride * r if dgrad else r - stride * dh
    return kh if 0 <= kh <= 2 else -1


@triton.jit(do_not_specialize=["BLOCKS"])
def patch_kernel(
    A, W, OUT, BLOCKS,
    HA: tl.constexpr, WA: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, CA: tl.constexpr, CB: tl.constexpr,
    PX: tl.constexpr, PXC: tl.constexpr, ROWS: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, OFF: tl.constexpr, STRIDE: tl.constexpr, DGRAD: tl.constexpr,
    BM: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0) * BM + tl.arange(0, BM)
    wb = block % WB
    hb = (block // WB) % HB
    image = block // (WB * HB)
    real = block < BLOCKS
    top = hb * STEP_H + OFF
    left = wb * STEP_W + OFF
    k = tl.arange(0, PXC * CA)  # (pixel of the chunk, channel of A)
    kj = k // CA
    kc = k % CA
    n = tl.arange(0, TW * CB)  # (pixel of the block, channel of OUT)
    dw = n // CB
    cb = n % CB
    if DGRAD:  # A's channels are the weight's rows
        weights = W + kc[:, None] * (9 * CB) + cb[None, :]
        tap = CB
    else:
        weights = W + cb[None, :] * (9 * CA) + kc[:, None]
        tap = CA
    start = A + ((image * HA + top) * WA + left) * CA
    acc = ()
    for _dh in tl.static_range(TH):
        acc = acc + (tl.zeros([BM, TW * CB], tl.float32),)
    for jc in range(0, (PX + PXC - 1) // PXC):
        j = jc * PXC + kj
        col = left[:, None] + j[None, :]
        inside = (col >= 0) & (col < WA) & (j < PX)[None, :] & real[:, None]
        if DGRAD:
            kw = dw[None, :] + (1 - STRIDE * OFF) - STRIDE * j[:, None]
        else:
            kw = j[:, None] - STRIDE * dw[None, :]
        live = (kw >= 0) & (kw < 3)
        b = ()
        for kh in tl.static_range(3):
            part = tl.load(weights + (kh * 3 + kw) * tap, mask=live, other=0.0)
            if EXACT:
                part = part.to(tl.float32)
            b = b + (part,)
        rows = ()
        for r in tl.static_range(ROWS):  # all loads before the first product: they are under way together
            row = top + r
            mask = inside & ((row >= 0) & (row < HA))[:, None]
            a = tl.load(start[:, None] + (r * WA + j[None, :]) * CA + kc[None, :], mask=mask, other=0.0)
            if EXACT:
                a = a.to(tl.float32)
            rows = rows + (a,)
        for r in tl.static_range(ROWS):
            for dh in tl.static_range(TH):
                if _tap_row(r, dh, STRIDE, OFF, DGRAD) >= 0:
                    total = tl.dot(rows[r], b[_tap_row(r, dh, STRIDE, OFF, DGRAD)], acc[dh])
                    acc = acc[:dh] + (total,) + acc[dh + 1 :]
    pixel = (image * (HB * TH) + hb * TH) * (WB * TW) + wb * TW
    out = OUT + (pixel[:, None] + dw[None, :]) * CB + cb[None, :]
    for dh in tl.static_range(TH):
        tl.store(out + dh * (WB * TW * CB), acc[dh].to(OUT.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=["BLOCKS"])
def weight_kernel(
    X, D, P, BLOCKS, ITERS: tl.constexpr, S: tl.constexpr,
    HX: tl.constexpr, WX: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    PX: tl.constexpr, PXC: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, STRIDE: tl.constexpr,
    KHS: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    NJ: tl.constexpr = (PX + PXC - 1) // PXC
    ROWS: tl.constexpr = STRIDE * (TH - 1) + KHS
    pid = tl.program_id(0)
    part = pid % S
    kh0 = pid // S  # the tap row where each has programs of its own (KHS = 1), else 0
    m = tl.arange(0, PXC * CI)
    mj = m // CI
    mc = m % CI
    n = tl.arange(0, TW * CO)
    dw = n // CO
    co = n % CO
    acc = ()
    for _i in tl.static_range(KHS * NJ):
        acc = acc + (tl.zeros([PXC * CI, TW * CO], tl.float32),)
    for it in range(0, ITERS):
        block = (part * ITERS + it) * BK + tl.arange(0, BK)
        wb = block % WB
        hb = (block // WB) % HB
        image = block // (WB * HB)
        real = block < BLOCKS
        top = hb * (STRIDE * TH) - 1 + kh0
        left = wb * (STRIDE * TW) - 1
        d_start = D + ((image * (HB * TH) + hb * TH) * (WB * TW) + wb * TW) * CO
        d = ()
        for dh in tl.static_range(TH):
            value = tl.load(
                d_start[:, None] + (dh * (WB * TW) + dw[None, :]) * CO + co[None, :], mask=real[:, None], other=0.0
            )
            if EXACT:
                value = value.to(tl.float32)
            d = d + (value,)
        x_start = X + ((image * HX + top) * WX + left) * CI
        x = ()
        for r in tl.static_range(ROWS):
            row = top + r
            seen = (row >= 0) & (row < HX) & real
            for jc in tl.static_range(NJ):
                j = jc * PXC + mj
                col = left[:, None] + j[None, :]
                mask = seen[:, None] & (col >= 0) & (col < WX) & (j < PX)[None, :]
                value = tl.load(x_start[:, None] + (r * WX + j[None, :]) * CI + mc[None, :], mask=mask, other=0.0)
                if EXACT:
                    value = value.to(tl.float32)
                x = x + (value,)
        for dh in tl.static_range(TH):
            for kh in tl.static_range(KHS):
                for jc in tl.static_range(NJ):
                    total = tl.dot(tl.trans(x[(STRIDE * dh + kh) * NJ + jc]), d[dh], acc[kh * NJ + jc])
                    acc = acc[: kh * NJ + jc] + (total,) + acc[kh * NJ + jc + 1 :]
    for kh in tl.static_range(KHS):
        for jc in tl.static_range(NJ):
            j = jc * PXC + mj
            kw = j[:, None] - STRIDE * dw[None, :]
            slot = (((part * 3 + kh0 + kh) * (NJ * PXC) + j[:, None]) * TW + dw[None, :]) * (CO * CI)
            tl.store(P + slot + co[None, :] * CI + mc[:, None], acc[kh * NJ + jc], mask=(kw >= 0) & (kw < 3))


@triton.jit(do_not_specialize=["BLOCKS"])
def stem_kernel(
    X, W, OUT, x_n, x_c, x_h, x_w, BLOCKS,
    H: tl.constexpr, WID: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, BM: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Of a few input channels: all taps and channels as one K, padded to a power of two."""
    block = tl.program_id(0) * BM + tl.arange(0, BM)
    w = block % WID
    h = (block // WID) % H
    image = block // (WID * H)
    k = tl.arange(0, K)  # (kh, kw, ci)
    kh = k // (3 * CI)
    kw = (k // CI) % 3
    ci = k % CI
    n = tl.arange(0, CO)
    row = h[:, None] + kh[None, :] - 1
    col = w[:, None] + kw[None, :] - 1
    mask = (row >= 0) & (row < H) & (col >= 0) & (col < WID) & (k < 9 * CI)[None, :] & (block < BLOCKS)[:, None]
    x = tl.load(X + image[:, None] * x_n + ci[None, :] * x_c + row * x_h + col * x_w, mask=mask, other=0.0)
    b = tl.load(W + n[None, :] * (9 * CI) + k[:, None], mask=(k < 9 * CI)[:, None], other=0.0)
    x = x.to(tl.bfloat16)
    if EXACT:
        x = x.to(tl.float32)
        b = b.to(tl.float32)
    y = tl.dot(x, b)
    out = OUT + block[:, None] * CO + n[None, :]
    tl.store(out, y.to(OUT.dtype.element_ty), mask=(block < BLOCKS)[:, None])


@triton.jit(do_not_specialize=["BLOCKS"])
def stem_weight_kernel(
    X, D, P, x_n, x_c, x_h, x_w, BLOCKS, ITERS: tl.constexpr,
    H: tl.constexpr, WID: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    k = tl.arange(0, K)
    kh = k // (3 * CI)
    kw = (k // CI) % 3
    ci = k % CI
    n = tl.arange(0, CO)
    acc = tl.zeros([K, CO], tl.float32)
    for it in range(0, ITERS):
        block = (part * ITERS + it) * BK + tl.arange(0, BK)
        w = block % WID
        h = (block // WID) % H
        image = block // (WID * H)
        row = h[:, None] + kh[None, :] - 1
        col = w[:, None] + kw[None, :] - 1
        mask = (row >= 0) & (row < H) & (col >= 0) & (col < WID) & (k < 9 * CI)[None, :] & (block < BLOCKS)[:, None]
        x = tl.load(X + image[:, None] * x_n + ci[None, :] * x_c + row * x_h + col * x_w, mask=mask, other=0.0)
        d = tl.load(D + block[:, None] * CO + n[None, :], mask=(block < BLOCKS)[:, None], other=0.0)
        x = x.to(tl.bfloat16)
        if EXACT:
            x = x.to(tl.float32)
            d = d.to(tl.float32)
        acc = tl.dot(tl.trans(x), d, acc)
    slot = part * (CO * K) + n[None, :] * K + k[:, None]
    tl.store(P + slot, acc)


@triton.jit
def add_parts_kernel(
    P, OUT, S: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, PXN: tl.constexpr, TW: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr,
    SB: tl.constexpr, EB: tl.constexpr,
):  # fmt: skip
    """Sum the parts of a weight gradient, in an order that depends on their number alone."""
    e = tl.program_id(0) * EB + tl.arange(0, EB)  # (co, kh, kw, ci) as the weight lies in memory
    real = e < 9 * CI * CO
    co = e // (9 * CI)
    if K > 0:  # of stem_weight_kernel
        SIZE: tl.constexpr = CO * K
        first = co * K + e % (9 * CI)
    else:
        SIZE: tl.constexpr = 3 * PXN * TW * CO * CI
        tap = (e // CI) % 9
        first = (((tap // 3) * PXN + tap % 3) * TW * CO + co) * CI + e % CI
    s = tl.arange(0, SB)
    acc = tl.zeros([SB, EB], tl.float32)
    for s0 in range(0, S, SB):
        for dw in tl.static_range(TW):  # its part lies STRIDE dw pixels further, in column dw
            here = P + ((s0 + s)[:, None] * SIZE + first[None, :] + dw * ((STRIDE * TW + 1) * CO * CI))
            acc += tl.load(here, mask=(s0 + s < S)[:, None] & real[None, :], other=0.0)
    tl.store(OUT + e, tl.sum(acc, 0), mask=real)
