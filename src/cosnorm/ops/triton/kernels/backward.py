"""Triton: `start_grad`, `spread` and `end_grad`, the passes of backward."""

import triton
import triton.language as tl

from cosnorm.ops.triton.kernels.numerics import slope
from cosnorm.ops.triton.kernels.tiles import (
    aligned,
    at,
    channels_of,
    fold,
    groups_of,
    jit,
    steps_of,
)
from cosnorm.ops.triton.kernels.units import project, unit


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
