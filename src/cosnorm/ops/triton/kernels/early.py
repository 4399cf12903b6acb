"""Triton: the three passes of a layer whose rows are normalised before its product.

    normalise   x̂ = r_x (x-μx) | unit weights; y is their product, and nothing is left to do
    normalise   x̂ again, of which dv is made, and what the bias takes of dy
    end_early   dx = r_x (dx₀ - mean(dx₀) - x̂⟨dx₀, x̂⟩) | projection of the weights' gradient

The names are those of the room; positions are rows. Rows and units are multiplied as they are
rounded, and their product is rounded once more: to keep it from going above 1, a vector that has
become too long is rounded again with every other entry made a little shorter, and if that is not
enough, with all of them.
"""

import triton
import triton.language as tl

from cosnorm.ops.triton.kernels.forward import channel_stats
from cosnorm.ops.triton.kernels.numerics import direction
from cosnorm.ops.triton.kernels.tiles import jit
from cosnorm.ops.triton.kernels.units import project, row_stats


@triton.jit
def shorter(LOW: tl.constexpr):
    """What too long a vector is multiplied by before it is rounded; no rounding undoes that.

    1 - ε/2, ε being that of the low dtype.
    """
    half: tl.constexpr = 0.00390625 if tl.bfloat16 == LOW else 0.00048828125
    return 1.0 - half


@triton.jit
def beyond(norm2, LOW: tl.constexpr):
    """Whether a rounded unit vector is so long that a product of two such could round to over 1.

    That happens above 1 + ε/2. Half of it is left to products that add up parts which they have
    rounded, each by no more than ε/4 of itself, and an eighth of the rest to sums.
    """
    return norm2 > 1.0 + 0.4375 * (1.0 - shorter(LOW))


@triton.jit
def squared(x, LOW: tl.constexpr):
    """Of what x is rounded to."""
    x = x.to(LOW).to(tl.float32)
    return x * x


@triton.jit
def unit_entries(w_ptr, v_ptr, base, out, size, mean, rnorm, even, odd, BW: tl.constexpr):
    """(w - μw) / |w - μw|, times `even` and `odd` in turn, is written; its square as rounded."""
    low: tl.constexpr = v_ptr.dtype.element_ty
    norm2 = 0.0
    for start in range(0, size, BW):
        i = start + tl.arange(0, BW)
        w = tl.load(w_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
        v = tl.where(i < size, (w - mean) * rnorm, 0.0) * tl.where(i % 2 == 1, odd, even)
        tl.store(v_ptr + out + i, v.to(low), mask=i < size)
        norm2 += tl.sum(squared(v, low))
    return norm2


@triton.jit
def early_unit(
    row, w_ptr, bias_ptr, v_ptr, stats_ptr, units, size, pitch,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """v = (w - μw) / |w - μw|, in rows of `pitch`, which end in the bias's entry and zeros."""
    rnorm, mean = row_stats(row, w_ptr, bias_ptr, size, CENTERED, BIAS, BW)
    tl.store(stats_ptr + row, rnorm)
    tl.store(stats_ptr + units + row, mean)
    low: tl.constexpr = v_ptr.dtype.element_ty
    less = shorter(low)
    base = row.to(tl.int64) * size
    out = row.to(tl.int64) * pitch
    b = rnorm * 0.0
    if BIAS:
        b = (tl.load(bias_ptr + row).to(tl.float32) - mean) * rnorm
    norm2 = squared(b, low)
    norm2 += unit_entries(w_ptr, v_ptr, base, out, size, mean, rnorm, 1.0, 1.0, BW)
    if beyond(norm2, low):
        norm2 = squared(b, low)
        norm2 += unit_entries(w_ptr, v_ptr, base, out, size, mean, rnorm, 1.0, less, BW)
        if beyond(norm2, low):
            b *= less
            unit_entries(w_ptr, v_ptr, base, out, size, mean, rnorm, less, less, BW)
    if BIAS:
        i = tl.arange(0, 8)
        tl.store(v_ptr + out + size + i, tl.where(i == 0, b, 0.0).to(low), mask=i < pitch - size)


@triton.jit
def row_entries(
    x_ptr, out_ptr, base, out, inside, mean, rnorm, even, odd, depth,
    CENTERED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """As `unit_entries`, of rows."""
    low: tl.constexpr = out_ptr.dtype.element_ty
    norm2 = tl.zeros([BP, 1], tl.float32)
    for start in range(0, depth, BC):
        i = start + tl.arange(0, BC)[None, :]
        mask = inside & (i < depth)
        x = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
        if CENTERED:
            x -= mean
        x = tl.where(mask, x * rnorm, 0.0) * tl.where(i % 2 == 1, odd, even)
        tl.store(out_ptr + out + i, x.to(low), mask=mask)
        norm2 += tl.sum(squared(x, low), 1, keep_dims=True)
    return norm2


@triton.jit
def early_rows(
    x_ptr, out_ptr, pos, inside, rnorm, mean, depth, pitch,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """x̂ = r_x (x-μ), in rows of `pitch`, which end in the entry of 1 and zeros."""
    low: tl.constexpr = out_ptr.dtype.element_ty
    less = shorter(low)
    base = pos.to(tl.int64) * depth
    out = pos.to(tl.int64) * pitch
    one = rnorm
    if CENTERED:
        one *= 1.0 - mean
    first = tl.zeros([BP, 1], tl.float32)
    if BIAS:
        first += squared(one, low)
    norm2 = first + row_entries(
        x_ptr, out_ptr, base, out, inside, mean, rnorm, 1.0, 1.0, depth, CENTERED, BP, BC
    )
    long = beyond(norm2, low)
    if tl.sum(long.to(tl.int32)) > 0:
        odd = tl.where(long, less, 1.0)
        norm2 = first + row_entries(
            x_ptr, out_ptr, base, out, inside, mean, rnorm, 1.0, odd, depth, CENTERED, BP, BC
        )
        long = beyond(norm2, low)
        if tl.sum(long.to(tl.int32)) > 0:
            even = tl.where(long, less, 1.0)
            one *= even
            row_entries(
                x_ptr, out_ptr, base, out, inside, mean, rnorm, even, odd, depth, CENTERED, BP, BC
            )
    if BIAS:
        i = tl.arange(0, 8)[None, :]
        tail = tl.where(i == 0, one, 0.0).to(low)
        tl.store(out_ptr + out + depth + i, tail, mask=inside & (i < pitch - depth))


@jit
def normalise(
    x_ptr, w_ptr, bias_ptr, v_ptr, out_ptr, kept_ptr, dy_ptr, shares_ptr,
    positions, depth, pitch, units, shift,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, KNOWN: tl.constexpr,
    DBIAS: tl.constexpr, EXACT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Forward, units too, and KNOWN, with statistics that are there, backward.

    Backward with a BIAS leaves Σ_k dy·v_b of every row in the place of s, and DBIAS a block's share
    of every unit's Σ dy·r_x, or (1-μx) of it. ROWS: x̂ is written.
    """
    depth = depth // 8 * 8
    pitch = pitch // 8 * 8
    stats_ptr = kept_ptr + positions
    if CENTERED:
        stats_ptr += positions
    pid = tl.program_id(0)
    if not KNOWN:
        if pid < units:
            early_unit(
                pid, w_ptr, bias_ptr, v_ptr, stats_ptr, units, depth, pitch, CENTERED, BIAS, BW
            )
        pid -= units
    if pid >= 0:
        pos = (pid * BP + tl.arange(0, BP))[:, None]
        inside = pos < positions
        if KNOWN:
            rnorm = tl.load(kept_ptr + pos, mask=inside, other=0.0)
            mean = rnorm
            if CENTERED:
                mean = tl.load(kept_ptr + positions + pos, mask=inside, other=0.0)
        else:
            mean, square = channel_stats(
                x_ptr, pos, inside, 0, positions, 1, depth, depth,
                CENTERED, EXACT, True, False, False, BP, BC,
            )  # fmt: skip
            rnorm, mean = direction(mean, square, depth * 1.0, CENTERED, BIAS)
            tl.store(kept_ptr + pos, rnorm, mask=inside)
            if CENTERED:
                tl.store(kept_ptr + positions + pos, mean, mask=inside)
        if ROWS:
            early_rows(
                x_ptr, out_ptr, pos, inside, rnorm, mean, depth, pitch,
                CENTERED, BIAS, BP, BC,
            )  # fmt: skip
        if KNOWN and BIAS:
            one = rnorm
            if CENTERED:
                one *= 1.0 - mean
            field = tl.zeros([BP, 1], tl.float32)
            for start in range(0, units, BC):
                k = start + tl.arange(0, BC)[None, :]
                real = k < units
                where = pos.to(tl.int64) * units + k
                d = tl.load(dy_ptr + where, mask=inside & real, other=0.0).to(tl.float32)
                b = tl.load(bias_ptr + k, mask=real, other=0.0).to(tl.float32)
                b -= tl.load(stats_ptr + units + k, mask=real, other=0.0)
                b *= tl.load(stats_ptr + k, mask=real, other=0.0)
                field += tl.sum(d * b, 1, keep_dims=True)
                if DBIAS:
                    share = tl.sum(d * one, 0, keep_dims=True)
                    tl.store(shares_ptr + pid.to(tl.int64) * units + k, share, mask=real)
            tl.store(kept_ptr + shift + pos, field, mask=inside)


@jit
def end_early(
    dx0_ptr, x_ptr, dx_ptr, kept_ptr, dv_ptr, shares_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr,
    positions, depth, units, shift, blocks,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, FIELDS: tl.constexpr, UNITS: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    depth = depth // 8 * 8
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            stats_ptr = kept_ptr + positions
            if CENTERED:
                stats_ptr += positions
            project(
                pid, dv_ptr, shares_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr, 1.0, units,
                depth, blocks, CENTERED, BIAS, False, BW,
            )  # fmt: skip
        pid -= units
    if FIELDS:
        if pid >= 0:
            pos = (pid * BP + tl.arange(0, BP))[:, None]
            inside = pos < positions
            base = pos.to(tl.int64) * depth
            rnorm = tl.load(kept_ptr + pos, mask=inside, other=0.0)
            mean = tl.zeros([BP, 1], tl.float32)
            if CENTERED:
                mean += tl.load(kept_ptr + positions + pos, mask=inside, other=0.0)
            dot = tl.zeros([BP, 1], tl.float32)
            total = tl.zeros([BP, 1], tl.float32)
            if BIAS:
                total += tl.load(kept_ptr + shift + pos, mask=inside, other=0.0)
                dot += total * ((1.0 - mean) * rnorm)
            for start in range(0, depth, BC):
                i = start + tl.arange(0, BC)[None, :]
                mask = inside & (i < depth)
                x = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
                dx = tl.load(dx0_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
                dot += tl.sum(dx * ((x - mean) * rnorm), 1, keep_dims=True)  # dx₀: 0 past the end
                if CENTERED:
                    total += tl.sum(dx, 1, keep_dims=True)
            left = tl.zeros([BP, 1], tl.float32)
            if CENTERED:
                left = total / (depth + 1.0 if BIAS else depth * 1.0)
            for start in range(0, depth, BC):
                i = start + tl.arange(0, BC)[None, :]
                mask = inside & (i < depth)
                x = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
                dx = tl.load(dx0_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
                dx = (dx - left - (x - mean) * rnorm * dot) * rnorm
                tl.store(dx_ptr + base + i, dx.to(dx_ptr.dtype.element_ty), mask=mask)
