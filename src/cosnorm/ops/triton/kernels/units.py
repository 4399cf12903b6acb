"""Triton: a program over one unit: its statistics, its normalised weights, and their gradient."""

import triton
import triton.language as tl

from cosnorm.ops.triton.kernels.numerics import FLOOR, inverse_norm


@triton.jit
def row_stats(
    row, w_ptr, bias_ptr, size, CENTERED: tl.constexpr, BIAS: tl.constexpr, BW: tl.constexpr
):
    """(1/|w|, μw) of a row of `size` entries and, with a bias, one more."""
    base = w_ptr + row.to(tl.int64) * size
    mean = 0.0
    m2 = 0.0
    for start in range(0, size, BW):
        i = start + tl.arange(0, BW)
        w = tl.load(base + i, mask=i < size, other=0.0).to(tl.float32)
        if CENTERED:
            count = tl.minimum(size - start, BW).to(tl.float32)
            m = tl.sum(w) / count
            dev = tl.where(i < size, w - m, 0.0)
            drift = tl.sum(dev) / count
            m += drift  # what rounding has left in the mean would pass for a signal
            delta = m - mean
            total = start + count
            mean += delta * (count / total)
            m2 += tl.sum(dev * dev) - drift * drift * count
            m2 += delta * delta * (start * (count / total))
        else:
            m2 += tl.sum(w * w)
    floor = 0.0
    if BIAS:
        b = tl.load(bias_ptr + row).to(tl.float32)
        if CENTERED:
            delta = b - mean
            mean += delta / (size + 1)
            m2 += delta * delta * (size / (size + 1.0))
        else:
            m2 += b * b
    if CENTERED:
        entries = size + 1 if BIAS else size
        floor = FLOOR * (m2 + entries * mean * mean)
    return inverse_norm(m2, floor), mean


@triton.jit
def unit(
    row, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr, lift, units, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, KNOWN: tl.constexpr, RAW: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """v = lift · (w - μw) / |w - μw|, in float32, rounded once; Σv after rounding; (1/|w|, μw).

    KNOWN: the statistics are there. RAW: they are all there is to write.
    """
    if KNOWN:
        rnorm = tl.load(stats_ptr + row)
        mean = tl.load(stats_ptr + units + row)
    else:
        rnorm, mean = row_stats(row, w_ptr, bias_ptr, size, CENTERED, BIAS, BW)
        tl.store(stats_ptr + row, rnorm)
        tl.store(stats_ptr + units + row, mean)
    if not RAW:
        base = row.to(tl.int64) * size
        rnorm *= lift
        total = 0.0
        for start in range(0, size, BW):
            i = start + tl.arange(0, BW)
            w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
            v = ((w - mean) * rnorm).to(v_ptr.dtype.element_ty)
            tl.store(v_ptr + base + i, v, mask=i < size)
            total += tl.sum(tl.where(i < size, v.to(tl.float32), 0.0))
        if BIAS:
            b = tl.load(bias_ptr + row).to(tl.float32)
            vb = ((b - mean) * rnorm).to(vb_ptr.dtype.element_ty)
            tl.store(vb_ptr + row, vb)
            total += vb.to(tl.float32)
        if CENTERED and not KNOWN:
            tl.store(total_ptr + row, total)


@triton.jit
def shared(row, shares_ptr, units, blocks, BW: tl.constexpr):
    """The sum over blocks of what each has left for a unit."""
    total = 0.0
    for start in range(0, blocks, BW):
        i = start + tl.arange(0, BW)
        where = i.to(tl.int64) * units + row
        total += tl.sum(tl.load(shares_ptr + where, mask=i < blocks, other=0.0))
    return total


@triton.jit
def project(
    row, dv_ptr, shares_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr, lift, units, size,
    blocks, CENTERED: tl.constexpr, BIAS: tl.constexpr, RAW: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """dw = r_w (dv - mean(dv) - v⟨dv, v⟩), with v⟨dv, v⟩ = (w - μw) r_w² ⟨dv, w - μw⟩.

    RAW: the product was taken with w, so that what stands for dv is r_w·dv already. Else it is
    dv / lift.
    """
    rnorm = tl.load(stats_ptr + row)
    mean = tl.load(stats_ptr + units + row)
    base = row.to(tl.int64) * size
    dot = 0.0
    total = 0.0
    for start in range(0, size, BW):
        i = start + tl.arange(0, BW)
        w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32) - mean
        g = tl.load(dv_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
        dot += tl.sum(g * w)  # g is zero past the end
        total += tl.sum(g)
    if BIAS:
        b = tl.load(bias_ptr + row).to(tl.float32) - mean
        gb = shared(row, shares_ptr, units, blocks, BW)
        dot += gb * b
        total += gb
    factor = rnorm * lift
    if RAW:
        factor = 1.0
    pull = dot * rnorm * rnorm
    shift = 0.0
    if CENTERED:
        entries = size + 1 if BIAS else size
        shift = total / entries
    for start in range(0, size, BW):
        i = start + tl.arange(0, BW)
        w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32) - mean
        g = tl.load(dv_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
        dw = factor * (g - shift - w * pull)
        tl.store(dw_ptr + base + i, dw.to(dw_ptr.dtype.element_ty), mask=i < size)
    if BIAS:
        db = factor * (gb - shift - b * pull)
        tl.store(db_ptr + row, db.to(db_ptr.dtype.element_ty))
