"""Triton: the four passes of a layer around its product.

    prepare     statistics of the input's channels | unit weights
    finish      1/|x| and μx of the fields, y = act(gain · scale · r_x (z - μx Σv)), in place
    start_grad  g = d·r_x, s = r_x² Σ_k d·c | unit weights again
    end_grad    dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx) | projection of the weights' gradient

Left of the bar are programs over positions, right of it programs over units, in one launch.

A tile is BP positions by BC channels of a group, which a program walks through in steps. LANES: of
many small groups, a tile is BP positions by BC groups, and a step takes the next channel of each.
Statistics of a tile have BC columns then, and one otherwise, so that one text serves both.

LAST: channels are dense in memory, else positions are. RAW: the product is taken with w as it is,
and r_w is applied where r_x is. POINT: fields are single positions, so that the statistics of the
channels are those of the fields. THIN: groups of one channel, as many maps as there are channels:
a window's columns are summed up first (`prepare`, `spread`), then its rows, as a window that is one
column wide. TAPS: a window's taps are a dimension of a tile, so that it costs the latency of one
load; at 0 they are walked through. SINGLE: groups of one output. ALIGN divides the distance between
rows and what a program begins with in one; no other size is known when compiling. lift: what unit
weights are multiplied by, see `numerics.lift`. LEAN: a POINT whose y is c times a number. Since
Σ_k d·c = ⟨dx₀, x-μ⟩ + (1-μ) Σ_k g·v_b, backward needs no c, which y itself cannot stand in for:
callers may change it in place.

Statistics are float32, in one arena: 1/|x| and for Pearson μx of the fields (`maps` of each), then
1/|w| and μw of the units. From `shift` on, what lives for one direction only: in forward Σv of the
units, then Σx², for Pearson M2 and m, of the channels at each position; in backward s. THIN ones
have such maps apart from the arena, which is held for backward.
"""

import torch
import triton
import triton.language as tl

from cosnorm.ops.activations import ACTIVATIONS
from cosnorm.ops.reference.numerics import zero_floor

_FLOOR = tl.constexpr(zero_floor(torch.float32))
_RELU = tl.constexpr(ACTIVATIONS["relu"].code)
_GELU = tl.constexpr(ACTIVATIONS["gelu"].code)
SIZES = (
    "pitch", "positions", "space", "groups", "depth", "width", "stride", "units",
    "size", "maps", "inner", "shift", "blocks", "ID", "IH", "IW", "OD", "OH", "OW", "KD", "KH",
    "KW", "SD", "SH", "SW", "PD", "PH", "PW", "DD", "DH", "DW",
)  # fmt: skip
jit = triton.jit(do_not_specialize=list(SIZES))


@triton.jit
def activate(x, ACT: tl.constexpr):
    """The twin of `activations.ACTIVATIONS`: values."""
    if ACT == _RELU:
        x = tl.where(x < 0.0, 0.0, x)  # NaN passes
    if ACT == _GELU:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return x


@triton.jit
def slope(x, ACT: tl.constexpr):
    """The twin of `activations.ACTIVATIONS`: derivatives, of x or, for ReLU, of y."""
    d = tl.zeros_like(x) + 1.0
    if ACT == _RELU:
        d = tl.where(x > 0.0, 1.0, 0.0)
    if ACT == _GELU:
        density = tl.exp(x * x * -0.5) * 0.3989422804014327
        d = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    return d


@triton.jit
def inverse_norm(norm2, floor):
    """1/√norm2, 0 at or below the floor: a vector without direction.

    sqrt_rn, since sqrt takes a very small number for zero.
    """
    alive = norm2 > floor
    return tl.where(alive, 1.0 / tl.sqrt_rn(tl.where(alive, norm2, 1.0)), 0.0)


@triton.jit
def direction(mean, norm2, count, CENTERED: tl.constexpr, BIAS: tl.constexpr):
    """(1/|x|, μ) of vectors of `count` entries, extended by 1 with a bias."""
    if CENTERED:
        if BIAS:
            delta = 1.0 - mean
            mean += delta / (count + 1)
            norm2 += delta * delta * (count / (count + 1))
            count += 1
        floor = _FLOOR * (norm2 + count * mean * mean)
    else:
        if BIAS:
            norm2 += 1.0
        floor = norm2 * 0.0
    return inverse_norm(norm2, floor), mean


@triton.jit
def moments(x, mask, count, EXACT: tl.constexpr):
    """(m, M2) of the rows of a tile over its `count` columns that are real; EXACT: all of them."""
    m = tl.sum(x, 1, keep_dims=True) / count
    dev = x - m
    if not EXACT:
        dev = tl.where(mask, dev, 0.0)
    m2 = tl.sum(dev * dev, 1, keep_dims=True)
    if not EXACT:  # what rounding has left in the mean would pass for a signal
        drift = tl.sum(dev, 1, keep_dims=True) / count
        m += drift
        m2 -= drift * drift * count
    return m, m2


@triton.jit
def fold(x, LANES: tl.constexpr):
    """The sum over the channels of a tile, of which each column is a group of its own in LANES."""
    if not LANES:
        x = tl.sum(x, 1, keep_dims=True)
    return x


@triton.jit
def channels_of(
    step, group, groups, width, LANES: tl.constexpr, SINGLE: tl.constexpr, BC: tl.constexpr
):
    """(channel, whether it is real) of a tile's columns; group: the first one in LANES."""
    column = tl.arange(0, BC)[None, :]
    if LANES:
        channel = group + column
        if not SINGLE:
            channel = channel * width + step
        real = group + column < groups
    else:
        channel = group * width + step * BC + column
        real = step * BC + column < width
    return channel, real


@triton.jit
def at(pos, channel, space, stride, LAST: tl.constexpr):
    """Where an entry lies: stride, of positions if LAST, is the number of channels."""
    if LAST:
        where = pos.to(tl.int64) * stride + channel
    else:
        where = ((pos // space).to(tl.int64) * stride + channel) * space + pos % space
    return where


@triton.jit
def groups_of(pid, groups, LANES: tl.constexpr, BC: tl.constexpr):
    """(block of positions, group, the columns' groups, which of them are real)."""
    if LANES:
        many = tl.cdiv(groups, BC)
        group = pid % many * BC
        column = group + tl.arange(0, BC)[None, :]
    else:
        many = groups
        group = pid % many
        column = group + tl.arange(0, 1)[None, :]
    return pid // many, group, column, column < groups


@triton.jit
def steps_of(width, LANES: tl.constexpr, BC: tl.constexpr):
    count = width
    if not LANES:
        count = tl.cdiv(width, BC)
    return count


@triton.jit
def aligned(
    stride, space, groups, width, LAST: tl.constexpr, LANES: tl.constexpr, ALIGN: tl.constexpr
):
    """Sizes as multiples of ALIGN in the eyes of the compiler, for wide loads and stores."""
    if LAST:
        stride = stride // ALIGN * ALIGN
        if LANES:
            groups = groups // ALIGN * ALIGN
        else:
            width = width // ALIGN * ALIGN
    else:
        space = space // ALIGN * ALIGN
    return stride, space, groups, width


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
        floor = _FLOOR * (m2 + entries * mean * mean)
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


@triton.jit
def channel_stats(
    x_ptr, pos, inside, group, space, groups, depth, stride,
    CENTERED: tl.constexpr, EXACT: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
    SINGLE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """(m, M2), or (0, Σx²), over the channels of a group at each position.

    EXACT: tiles have no columns beyond the depth, so that a constant is its own mean.
    """
    columns: tl.constexpr = BC if LANES else 1
    mean = tl.zeros([BP, columns], tl.float32)
    square = tl.zeros([BP, columns], tl.float32)
    for step in range(steps_of(depth, LANES, BC)):
        channel, real = channels_of(step, group, groups, depth, LANES, SINGLE, BC)
        mask = inside & real
        x = tl.load(x_ptr + at(pos, channel, space, stride, LAST), mask=mask, other=0.0)
        x = x.to(tl.float32)
        if CENTERED:
            if LANES:
                before = step * 1.0
                count = 1.0
                delta = x - mean
            else:
                before = step * BC * 1.0
                count = tl.minimum(depth - step * BC, BC).to(tl.float32)
                m, m2 = moments(x, mask, count, EXACT)
                square += m2
                delta = m - mean
            part = count / (before + count)
            mean += delta * part
            square += delta * delta * (before * part)
        else:
            square += fold(x * x, LANES)
    return mean, square


@triton.jit
def column_sums(
    x_ptr, pos, inside, column, groups, space, IW, OW, KW, SW, PW, DW,
    CENTERED: tl.constexpr, LAST: tl.constexpr, BP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(m, M2), or (0, Σx²), over a window's columns: at rows of the input, columns of the output.

    space: rows by columns.
    """
    row = pos // OW
    left = pos % OW * SW - PW
    mean = tl.zeros([BP, COLUMNS], tl.float32)
    square = tl.zeros([BP, COLUMNS], tl.float32)
    for tap in range(KW):
        w = left + tap * DW
        mask = (w >= 0) & (w < IW) & inside & (column < groups)
        where = at(row * IW + w, column, space // OW * IW, groups, LAST)
        x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
        if CENTERED:
            delta = x - mean
            mean += delta / (tap + 1.0)
            square += delta * (x - mean)
        else:
            square += x * x
    return mean, square


@jit
def prepare(
    x_ptr, w_ptr, bias_ptr, v_ptr, vb_ptr, kept_ptr, maps_ptr, lift,
    positions, space, groups, depth, stride, units, size, maps, inner, shift,
    IW, OW, KW, SW, PW, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, UNITS: tl.constexpr, RAW: tl.constexpr,
    LAST: tl.constexpr, LANES: tl.constexpr, POINT: tl.constexpr, THIN: tl.constexpr,
    EXACT: tl.constexpr, SINGLE: tl.constexpr, ALIGN: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """inner: from the first map of the input's statistics to the second; maps_ptr: THIN ones'."""
    scratch_ptr = kept_ptr + shift
    if not THIN:
        maps_ptr = scratch_ptr + units
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            stats = kept_ptr + maps
            if CENTERED:
                stats += maps
            unit(
                pid, w_ptr, bias_ptr, v_ptr, vb_ptr, stats, scratch_ptr, lift, units, size,
                CENTERED, BIAS, False, RAW, BW,
            )  # fmt: skip
        pid -= units
    if pid >= 0:
        stride, space, groups, depth = aligned(stride, space, groups, depth, LAST, LANES, ALIGN)
        block, group, column, there = groups_of(pid, groups, LANES, BC)
        pos = (block * BP + tl.arange(0, BP))[:, None]
        inside = pos < positions
        if THIN:
            columns: tl.constexpr = BC if LANES else 1
            mean, square = column_sums(
                x_ptr, pos, inside, column, groups, space, IW, OW, KW, SW, PW, DW,
                CENTERED, LAST, BP, columns,
            )  # fmt: skip
        else:
            mean, square = channel_stats(
                x_ptr, pos, inside, group, space, groups, depth, stride,
                CENTERED, EXACT, LAST, LANES, SINGLE, BP, BC,
            )  # fmt: skip
        where = at(pos, column, space, groups, LAST)
        mask = inside & there
        if POINT:
            rnorm, mean = direction(mean, square, depth * 1.0, CENTERED, BIAS)
            tl.store(kept_ptr + where, rnorm, mask=mask)
            if CENTERED:
                tl.store(kept_ptr + maps + where, mean, mask=mask)
        else:
            tl.store(maps_ptr + where, square, mask=mask)
            if CENTERED:
                tl.store(maps_ptr + inner + where, mean, mask=mask)


@triton.jit
def window(
    square_ptr, mean_ptr, pos, inside, column, groups, depth, space,
    ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr, TAPS: tl.constexpr,
    BP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(1/|x|, μ) of the fields at output positions; square and mean: maps of the input, each of
    `depth` entries.
    """
    n = pos // space
    p = pos % space
    front = p // (OH * OW) * SD - PD
    top = p // OW % OH * SH - PH
    left = p % OW * SW - PW
    area = ID * IH * IW
    taps = KD * KH * KW
    mean = tl.zeros([BP, COLUMNS], tl.float32)
    norm2 = tl.zeros([BP, COLUMNS], tl.float32)
    if TAPS > 0:
        tap = tl.arange(0, TAPS)[None, :]
        d = front + tap // (KH * KW) * DD
        h = top + tap // KW % KH * DH
        w = left + tap % KW * DW
        real = tap < taps
        mask = (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW) & inside & real
        where = at(n * area + (d * IH + h) * IW + w, column, area, groups, LAST)
        norm2 += tl.sum(tl.load(square_ptr + where, mask=mask, other=0.0), 1, keep_dims=True)
        if CENTERED:
            m = tl.load(mean_ptr + where, mask=mask, other=0.0)
            mean += tl.sum(m, 1, keep_dims=True) / taps
            dev = tl.where(real, m - mean, 0.0)
            norm2 += depth * tl.sum(dev * dev, 1, keep_dims=True)
    else:
        for tap in range(taps):
            d = front + tap // (KH * KW) * DD
            h = top + tap // KW % KH * DH
            w = left + tap % KW * DW
            mask = (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW) & inside
            mask = mask & (column < groups)
            where = at(n * area + (d * IH + h) * IW + w, column, area, groups, LAST)
            norm2 += tl.load(square_ptr + where, mask=mask, other=0.0)
            if CENTERED:
                m = tl.load(mean_ptr + where, mask=mask, other=0.0)
                delta = m - mean
                mean += delta / (tap + 1.0)
                norm2 += depth * delta * (m - mean)
    return direction(mean, norm2, taps * depth * 1.0, CENTERED, BIAS)


@jit
def finish(
    z_ptr, y_ptr, c_ptr, maps_ptr, kept_ptr, total_ptr, scale_ptr, gain, lift,
    positions, space, groups, depth, width, stride, units, maps, inner, shift,
    ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, KEEP: tl.constexpr,
    STORE: tl.constexpr, SCALE: tl.constexpr, RAW: tl.constexpr, LAST: tl.constexpr,
    LANES: tl.constexpr, POINT: tl.constexpr, THIN: tl.constexpr, TAPS: tl.constexpr,
    SINGLE: tl.constexpr, FOLDED: tl.constexpr, ALIGN: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """SCALE: 0 none, 1 one number, 2 one per output. KEEP: c is written. STORE: 1/|x|, μx are.

    total_ptr: Σv of folded weights, FOLDED; of others `prepare` has written it. maps_ptr: what it
    has written of THIN ones, each entry over a window's columns.
    """
    scratch_ptr = kept_ptr + shift
    if not THIN:
        maps_ptr = scratch_ptr + units
    if not FOLDED:
        total_ptr = scratch_ptr
    stride, space, groups, width = aligned(stride, space, groups, width, LAST, LANES, ALIGN)
    block, group, column, there = groups_of(tl.program_id(0), groups, LANES, BC)
    pos = (block * BP + tl.arange(0, BP))[:, None]
    inside = pos < positions
    place = at(pos, column, space, groups, LAST)
    known = inside & there
    if POINT:
        rnorm = tl.load(kept_ptr + place, mask=known, other=0.0)
        mean = rnorm
        if CENTERED:
            mean = tl.load(kept_ptr + maps + place, mask=known, other=0.0)
    else:
        columns: tl.constexpr = BC if LANES else 1
        rnorm, mean = window(
            maps_ptr, maps_ptr + inner, pos, inside, column, groups, depth, space,
            ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
            CENTERED, BIAS, LAST, TAPS, BP, columns,
        )  # fmt: skip
        if STORE:
            tl.store(kept_ptr + place, rnorm, mask=known)
            if CENTERED:
                tl.store(kept_ptr + maps + place, mean, mask=known)
    wnorm_ptr = kept_ptr + maps
    if CENTERED:
        wnorm_ptr += maps
    for step in range(steps_of(width, LANES, BC)):
        channel, real = channels_of(step, group, groups, width, LANES, SINGLE, BC)
        where = at(pos, channel, space, stride, LAST)
        mask = inside & real
        y = tl.load(z_ptr + where, mask=mask, other=0.0).to(tl.float32)
        if CENTERED:
            y -= mean * tl.load(total_ptr + channel, mask=real, other=0.0)
        y *= rnorm / lift
        if RAW:
            y *= tl.load(wnorm_ptr + channel, mask=real, other=0.0)
        y = tl.where(y > 1.0, 1.0, tl.where(y < -1.0, -1.0, y))  # NaN passes
        if KEEP:
            tl.store(c_ptr + where, y.to(c_ptr.dtype.element_ty), mask=mask)
        y *= gain
        if SCALE == 1:
            y *= tl.load(scale_ptr).to(tl.float32)
        if SCALE == 2:
            y *= tl.load(scale_ptr + channel, mask=real, other=0.0).to(tl.float32)
        y = activate(y, ACT)
        tl.store(y_ptr + where, y.to(y_ptr.dtype.element_ty), mask=mask)


@jit
def start_grad(
    dy_ptr, value_ptr, kept_ptr, scale_ptr, g_ptr, shares_ptr,
    w_ptr, bias_ptr, v_ptr, vb_ptr, gain, lift,
    positions, space, groups, width, stride, units, size, maps, shift, blocks,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, VALUE: tl.constexpr,
    SCALE: tl.constexpr, DBIAS: tl.constexpr, DSCALE: tl.constexpr, UNITS: tl.constexpr,
    RAW: tl.constexpr, LEAN: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
    SINGLE: tl.constexpr, ALIGN: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """value: y if VALUE, else c; LEAN has none, and leaves Σ_k g·v_b in the place of s.

    DBIAS, DSCALE: each block of positions leaves its share of the gradient of every unit's bias,
    and after those, scale.
    """
    field_ptr = kept_ptr + shift
    stats_ptr = kept_ptr + maps
    if CENTERED:
        stats_ptr += maps
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            unit(
                pid, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, stats_ptr, lift, units, size,
                CENTERED, BIAS, True, False, BW,
            )  # fmt: skip
        pid -= units
    if pid >= 0:
        stride, space, groups, width = aligned(stride, space, groups, width, LAST, LANES, ALIGN)
        block, group, column, there = groups_of(pid, groups, LANES, BC)
        pos = (block * BP + tl.arange(0, BP))[:, None]
        inside = pos < positions
        place = at(pos, column, space, groups, LAST)
        known = inside & there
        rnorm = tl.load(kept_ptr + place, mask=known, other=0.0)
        columns: tl.constexpr = BC if LANES else 1
        field = tl.zeros([BP, columns], tl.float32)
        for step in range(steps_of(width, LANES, BC)):
            channel, real = channels_of(step, group, groups, width, LANES, SINGLE, BC)
            mask = inside & real
            where = at(pos, channel, space, stride, LAST)
            d = tl.load(dy_ptr + where, mask=mask, other=0.0).to(tl.float32)
            factor = tl.zeros([1, BC], tl.float32) + gain
            if SCALE == 1:
                factor *= tl.load(scale_ptr).to(tl.float32)
            if SCALE == 2:
                factor *= tl.load(scale_ptr + channel, mask=real, other=0.0).to(tl.float32)
            dot = d
            if not LEAN:
                value = tl.load(value_ptr + where, mask=mask, other=0.0).to(tl.float32)
                if VALUE:
                    d *= slope(value, ACT)
                else:
                    if ACT != 0:
                        d *= slope(value * factor, ACT)
                dot = d * value  # of y: d·c = dy·y, whatever the scale
            if DSCALE:
                share = tl.sum(dot, 0, keep_dims=True)
                if VALUE:
                    share *= tl.where(
                        factor == 0.0, 0.0, gain / tl.where(factor == 0.0, 1.0, factor)
                    )
                else:
                    share *= gain
                share_ptr = shares_ptr + block.to(tl.int64) * units
                if DBIAS:
                    share_ptr += units.to(tl.int64) * blocks
                tl.store(share_ptr + channel, share, mask=real)
            if not LEAN:
                if not VALUE:
                    dot *= factor
                field += fold(dot, LANES)
            if RAW:
                factor *= tl.load(stats_ptr + channel, mask=real, other=0.0)
            g = d * factor * (rnorm / lift)
            tl.store(g_ptr + where, g.to(g_ptr.dtype.element_ty), mask=mask)
            if LEAN and BIAS:
                vb = tl.load(bias_ptr + channel, mask=real, other=0.0).to(tl.float32)
                if not RAW:
                    vb -= tl.load(stats_ptr + units + channel, mask=real, other=0.0)
                    vb *= tl.load(stats_ptr + channel, mask=real, other=0.0) * lift
                field += fold(g * vb.to(g_ptr.dtype.element_ty).to(tl.float32), LANES)
            if DBIAS:
                share = tl.sum(g, 0, keep_dims=True)
                tl.store(shares_ptr + block.to(tl.int64) * units + channel, share, mask=real)
        if not LEAN:
            field *= rnorm * rnorm
        if BIAS or not LEAN:
            tl.store(field_ptr + place, field, mask=known)


@jit
def spread(
    kept_ptr, maps_ptr, positions, space, groups, maps, inner, shift, IW, OW, KW, SW, PW, DW,
    CENTERED: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr, ALIGN: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """THIN: sums of s, and of s·μ, over the fields of a row that contain a column of the input."""
    _, space, groups, _ = aligned(groups, space, groups, groups, LAST, LANES, ALIGN)
    block, _, column, there = groups_of(tl.program_id(0), groups, LANES, BC)
    pos = (block * BP + tl.arange(0, BP))[:, None]
    inside = pos < positions
    columns: tl.constexpr = BC if LANES else 1
    row = pos // IW
    right = pos % IW + PW
    pull = tl.zeros([BP, columns], tl.float32)
    push = tl.zeros([BP, columns], tl.float32)
    for tap in range(KW):
        w = right - tap * DW
        mask = (w >= 0) & (w % SW == 0) & (w // SW < OW) & inside & there
        where = at(row * OW + w // SW, column, space // IW * OW, groups, LAST)
        s = tl.load(kept_ptr + shift + where, mask=mask, other=0.0)
        pull += s
        if CENTERED:
            push += s * tl.load(kept_ptr + maps + where, mask=mask, other=0.0)
    place = at(pos, column, space, groups, LAST)
    tl.store(maps_ptr + place, pull, mask=inside & there)
    if CENTERED:
        tl.store(maps_ptr + inner + place, push, mask=inside & there)


@triton.jit
def projected(
    dx0_ptr, x_ptr, extra_ptr, kept_ptr, pos, place, inside, known, group,
    space, groups, depth, stride, maps,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
    SINGLE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """LEAN: s = r_x² (⟨dx₀, x-μ⟩ + (1-μ) Σ_k g·v_b), and s·μ."""
    columns: tl.constexpr = BC if LANES else 1
    mean = tl.zeros([BP, columns], tl.float32)
    dot = tl.zeros([BP, columns], tl.float32)
    if CENTERED:
        mean += tl.load(kept_ptr + maps + place, mask=known, other=0.0)
    if BIAS:
        dot += tl.load(extra_ptr + place, mask=known, other=0.0) * (1.0 - mean)
    for step in range(steps_of(depth, LANES, BC)):
        channel, real = channels_of(step, group, groups, depth, LANES, SINGLE, BC)
        where = at(pos, channel, space, stride, LAST)
        x = tl.load(x_ptr + where, mask=inside & real, other=0.0).to(tl.float32)
        dx = tl.load(dx0_ptr + where, mask=inside & real, other=0.0).to(tl.float32)
        dot += fold(dx * (x - mean), LANES)  # dx₀ is zero past the end
    rnorm = tl.load(kept_ptr + place, mask=known, other=0.0)
    pull = dot * rnorm * rnorm
    return pull, pull * mean


@triton.jit
def scatter(
    field_ptr, mean_ptr, pos, inside, column, groups, space,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, LAST: tl.constexpr, THIN: tl.constexpr, TAPS: tl.constexpr,
    BP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(boxᵀ(s), boxᵀ(s·μ)) at input positions: sums over the fields that contain them.

    field and mean: s and μ; THIN: s and s·μ, which `spread` has summed up.
    """
    n = pos // space
    p = pos % space
    back = p // (IH * IW) + PD
    bottom = p // IW % IH + PH
    right = p % IW + PW
    area = OD * OH * OW
    taps = KD * KH * KW
    pull = tl.zeros([BP, COLUMNS], tl.float32)
    push = tl.zeros([BP, COLUMNS], tl.float32)
    if TAPS > 0:
        tap = tl.arange(0, TAPS)[None, :]
        d = back - tap // (KH * KW) * DD
        h = bottom - tap // KW % KH * DH
        w = right - tap % KW * DW
        mask = (d >= 0) & (h >= 0) & (w >= 0) & (d % SD == 0) & (h % SH == 0) & (w % SW == 0)
        mask = mask & (d // SD < OD) & (h // SH < OH) & (w // SW < OW) & inside & (tap < taps)
        there = n * area + (d // SD * OH + h // SH) * OW + w // SW
        where = at(there, column, area, groups, LAST)
        s = tl.load(field_ptr + where, mask=mask, other=0.0)
        pull += tl.sum(s, 1, keep_dims=True)
        if CENTERED:
            m = tl.load(mean_ptr + where, mask=mask, other=0.0)
            if not THIN:
                m *= s
            push += tl.sum(m, 1, keep_dims=True)
    else:
        for tap in range(taps):
            d = back - tap // (KH * KW) * DD
            h = bottom - tap // KW % KH * DH
            w = right - tap % KW * DW
            mask = (d >= 0) & (h >= 0) & (w >= 0) & (d % SD == 0) & (h % SH == 0) & (w % SW == 0)
            mask = mask & (d // SD < OD) & (h // SH < OH) & (w // SW < OW) & inside
            mask = mask & (column < groups)
            there = n * area + (d // SD * OH + h // SH) * OW + w // SW
            where = at(there, column, area, groups, LAST)
            s = tl.load(field_ptr + where, mask=mask, other=0.0)
            pull += s
            if CENTERED:
                m = tl.load(mean_ptr + where, mask=mask, other=0.0)
                if not THIN:
                    m *= s
                push += m
    return pull, push


@jit
def end_grad(
    dx0_ptr, x_ptr, dx_ptr, kept_ptr, maps_ptr,
    dv_ptr, shares_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, lift,
    positions, space, groups, depth, stride, units, size, maps, inner, shift, blocks,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, FIELDS: tl.constexpr, UNITS: tl.constexpr,
    RAW: tl.constexpr, LEAN: tl.constexpr, LAST: tl.constexpr, LANES: tl.constexpr,
    POINT: tl.constexpr, THIN: tl.constexpr, TAPS: tl.constexpr, SINGLE: tl.constexpr,
    ALIGN: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    field_ptr = kept_ptr + shift
    mean_ptr = kept_ptr + maps
    if THIN and FIELDS:  # else there are no maps
        field_ptr = maps_ptr
        mean_ptr = maps_ptr + inner
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            stats_ptr = kept_ptr + maps
            if CENTERED:
                stats_ptr += maps
            project(
                pid, dv_ptr, shares_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr, lift, units,
                size, blocks, CENTERED, BIAS, RAW, BW,
            )  # fmt: skip
        pid -= units
    if FIELDS:
        if pid >= 0:
            stride, space, groups, depth = aligned(stride, space, groups, depth, LAST, LANES, ALIGN)
            block, group, column, there = groups_of(pid, groups, LANES, BC)
            pos = (block * BP + tl.arange(0, BP))[:, None]
            inside = pos < positions
            if POINT:
                place = at(pos, column, space, groups, LAST)
                if LEAN:
                    pull, push = projected(
                        dx0_ptr, x_ptr, field_ptr, kept_ptr, pos, place, inside, inside & there,
                        group, space, groups, depth, stride, maps,
                        CENTERED, BIAS, LAST, LANES, SINGLE, BP, BC,
                    )  # fmt: skip
                else:
                    pull = tl.load(field_ptr + place, mask=inside & there, other=0.0)
                    push = pull
                    if CENTERED:
                        push = pull * tl.load(mean_ptr + place, mask=inside & there, other=0.0)
            else:
                columns: tl.constexpr = BC if LANES else 1
                pull, push = scatter(
                    field_ptr, mean_ptr, pos, inside, column, groups, space,
                    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
                    CENTERED, LAST, THIN, TAPS, BP, columns,
                )  # fmt: skip
            for step in range(steps_of(depth, LANES, BC)):
                channel, real = channels_of(step, group, groups, depth, LANES, SINGLE, BC)
                mask = inside & real
                where = at(pos, channel, space, stride, LAST)
                x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
                dx = tl.load(dx0_ptr + where, mask=mask, other=0.0).to(tl.float32)
                dx -= x * pull
                if CENTERED:
                    dx += push
                tl.store(dx_ptr + where, dx.to(dx_ptr.dtype.element_ty), mask=mask)
