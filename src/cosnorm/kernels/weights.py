"""Triton: weight vectors centred, normalised and cast, and the projection of their gradient.

    unit       v = (w - μw) / |w - μw|, in float32, rounded once; Σv after rounding
    project    dw = r_w (dv - mean(dv) - v⟨dv, v⟩), ⟨dv, v⟩ v = ⟨dv, w⟩ r_w² w

A program serves a unit. A row's entries may lie in any order in memory, as long as they are dense.
"""

import triton
import triton.language as tl

from cosnorm.kernels.fields import inverse_norm


@triton.jit
def row_stats(
    row, w_ptr, bias_ptr, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(1/|w|, μw) of a row of `size` entries and, with a bias, one more."""
    base = w_ptr + row.to(tl.int64) * size
    mean = 0.0
    m2 = 0.0
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        w = tl.load(base + i, mask=i < size, other=0.0).to(tl.float32)
        if CENTERED:
            count = tl.minimum(size - start, BLOCK).to(tl.float32)
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
    return _with_bias(row, bias_ptr, size, mean, m2, CENTERED, BIAS)


@triton.jit
def _with_bias(row, bias_ptr, size, mean, m2, CENTERED: tl.constexpr, BIAS: tl.constexpr):
    if BIAS:
        b = tl.load(bias_ptr + row).to(tl.float32)
        if CENTERED:
            delta = b - mean
            mean += delta / (size + 1)
            m2 += delta * delta * (size / (size + 1.0))
        else:
            m2 += b * b
    floor = 0.0
    if CENTERED:
        entries = size + 1 if BIAS else size
        floor = 2.2737368e-13 * (m2 + entries * mean * mean)  # 16 ε² of float32
    return inverse_norm(m2, floor), mean


@triton.jit
def unit(
    row, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr, units, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, KNOWN: tl.constexpr, RAW: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes v, its bias entry, Σv and, unless they are known already, (1/|w|, μw).

    RAW: writes the latter alone, as weights are multiplied as they are.
    WHOLE: a row fits into one block and is read once.
    """
    base = row.to(tl.int64) * size
    i = tl.arange(0, BLOCK)
    if WHOLE:
        w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
    if KNOWN:
        rnorm = tl.load(stats_ptr + row)
        mean = tl.load(stats_ptr + units + row)
    else:
        if WHOLE:
            mean = 0.0
            if CENTERED:
                mean = tl.sum(w) / size
            dev = tl.where(i < size, w - mean, 0.0)
            m2 = tl.sum(dev * dev)
            if CENTERED:
                drift = tl.sum(dev) / size
                mean += drift
                m2 -= drift * drift * size
            rnorm, mean = _with_bias(row, bias_ptr, size, mean, m2, CENTERED, BIAS)
        else:
            rnorm, mean = row_stats(row, w_ptr, bias_ptr, size, CENTERED, BIAS, BLOCK)
        tl.store(stats_ptr + row, rnorm)
        tl.store(stats_ptr + units + row, mean)
    if not RAW:
        if WHOLE:
            v = ((w - mean) * rnorm).to(v_ptr.dtype.element_ty)
            tl.store(v_ptr + base + i, v, mask=i < size)
            total = tl.sum(tl.where(i < size, v.to(tl.float32), 0.0))
        else:
            total = 0.0
            for start in range(0, size, BLOCK):
                j = start + i
                w = tl.load(w_ptr + base + j, mask=j < size, other=0.0).to(tl.float32)
                v = ((w - mean) * rnorm).to(v_ptr.dtype.element_ty)
                tl.store(v_ptr + base + j, v, mask=j < size)
                total += tl.sum(tl.where(j < size, v.to(tl.float32), 0.0))
        if BIAS:
            b = tl.load(bias_ptr + row).to(tl.float32)
            vb = ((b - mean) * rnorm).to(vb_ptr.dtype.element_ty)
            tl.store(vb_ptr + row, vb)
            total += vb.to(tl.float32)
        if CENTERED:
            tl.store(total_ptr + row, total)


@triton.jit
def project(
    row, dv_ptr, dvb_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr, units, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, RAW: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """RAW: the product was taken with w, so that what stands for dv is r_w·dv already."""
    rnorm = tl.load(stats_ptr + row)
    mean = tl.load(stats_ptr + units + row)
    factor = rnorm
    if RAW:
        factor = 1.0
    base = row.to(tl.int64) * size
    i = tl.arange(0, BLOCK)
    if WHOLE:
        w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32) - mean
        g = tl.load(dv_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
        dot = tl.sum(g * w)  # g is zero past the end
        total = tl.sum(g)
    else:
        dot = 0.0
        total = 0.0
        for start in range(0, size, BLOCK):
            j = start + i
            w = tl.load(w_ptr + base + j, mask=j < size, other=0.0).to(tl.float32) - mean
            g = tl.load(dv_ptr + base + j, mask=j < size, other=0.0).to(tl.float32)
            dot += tl.sum(g * w)
            total += tl.sum(g)
    if BIAS:
        b = tl.load(bias_ptr + row).to(tl.float32) - mean
        gb = tl.load(dvb_ptr + row).to(tl.float32)
        dot += gb * b
        total += gb
    pull = dot * rnorm * rnorm
    shift = 0.0
    if CENTERED:
        entries = size + 1 if BIAS else size
        shift = total / entries
    if WHOLE:
        dw = factor * (g - shift - w * pull)
        tl.store(dw_ptr + base + i, dw.to(dw_ptr.dtype.element_ty), mask=i < size)
    else:
        for start in range(0, size, BLOCK):
            j = start + i
            w = tl.load(w_ptr + base + j, mask=j < size, other=0.0).to(tl.float32) - mean
            g = tl.load(dv_ptr + base + j, mask=j < size, other=0.0).to(tl.float32)
            dw = factor * (g - shift - w * pull)
            tl.store(dw_ptr + base + j, dw.to(dw_ptr.dtype.element_ty), mask=j < size)
    if BIAS:
        db = factor * (gb - shift - b * pull)
        tl.store(db_ptr + row, db.to(db_ptr.dtype.element_ty))
