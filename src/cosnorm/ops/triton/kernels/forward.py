"""Triton: `prepare` and `finish`, the passes of forward."""

import triton
import triton.language as tl

from cosnorm.ops.triton.kernels.numerics import activate, direction, moments
from cosnorm.ops.triton.kernels.tiles import (
    aligned,
    at,
    channels_of,
    fold,
    groups_of,
    jit,
    steps_of,
)
from cosnorm.ops.triton.kernels.units import unit


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
