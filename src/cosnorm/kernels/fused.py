"""Triton: the passes of a layer around its products.

    prepare       statistics of the input's channels | unit weights
    windows       1/|x| and μ of the fields
    finish        y = act(gain · scale · r_x (z - μx Σv)), in place
    start_grad    g = d · r_x, s = r_x² Σ_k d·c | unit weights again
    end_grad      dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μ) | projection of the weights' gradient

Between two layers of a chain, finish writes the statistics of the next one's channels (NEXT), and

    link_grad     end_grad of a layer and start_grad of the one before, in one pass

Left of the bar are programs over positions, right of it programs over units. One launch serves
both (FIELDS, UNITS) where a layer is small and launches are what it costs. In a large one each has
a launch of its own, beside a product that does not wait for it.

RAW: the product is taken with w as it is, and r_w is applied where r_x is.
"""

import triton
import triton.language as tl

from cosnorm.kernels.fields import channels, moments, scatter, window
from cosnorm.kernels.weights import project, unit


@triton.jit
def prepare(
    x_ptr, mean_ptr, square_ptr, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr,
    positions, space, groups, depth, sn, sc, sp, units, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, FIELDS: tl.constexpr, UNITS: tl.constexpr,
    RAW: tl.constexpr, EXACT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            unit(
                pid, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr, units, size,
                CENTERED, BIAS, False, RAW, WHOLE, BW,
            )  # fmt: skip
        pid -= units
    if FIELDS:
        if pid >= 0:
            channels(
                pid, x_ptr, mean_ptr, square_ptr, positions, space, groups, depth, sn, sc, sp,
                CENTERED, EXACT, BP, BC,
            )  # fmt: skip


@triton.jit
def windows(
    mean_map, square_map, rnorm_ptr, mean_ptr, positions, space, groups, depth,
    ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """positions: batch × groups × space."""
    at = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = at < positions
    rnorm, mean = window(
        mean_map, square_map, (at // space).to(tl.int64), at % space, inside, 0, 1, depth,
        ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW, CENTERED, BIAS, TAPS,
    )  # fmt: skip
    tl.store(rnorm_ptr + at, rnorm, mask=inside)
    if CENTERED:
        tl.store(mean_ptr + at, mean, mask=inside)


@triton.jit
def _output(
    z, c, where, mask, y_ptr, kept_ptr, total_ptr, rw_ptr, scale_ptr, rnorm, mean, gain, first,
    width, CENTERED: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr, SCALE: tl.constexpr,
    RAW: tl.constexpr,
):  # fmt: skip
    """A tile of y from one of the product, returned as stored; first: of the group's channels."""
    y = z.to(tl.float32)
    if CENTERED:
        total = tl.load(total_ptr + first + c, mask=c < width, other=0.0)
        y -= mean[:, None] * total[None, :]
    y *= rnorm[:, None]
    if RAW:
        y *= tl.load(rw_ptr + first + c, mask=c < width, other=0.0)[None, :]
    y = tl.where(y > 1.0, 1.0, tl.where(y < -1.0, -1.0, y))  # NaN passes
    if KEEP:
        tl.store(kept_ptr + where, y.to(kept_ptr.dtype.element_ty), mask=mask)
    y *= gain
    if SCALE == 1:
        y *= tl.load(scale_ptr).to(tl.float32)
    if SCALE == 2:
        scale = tl.load(scale_ptr + first + c, mask=c < width, other=0.0)
        y *= scale.to(tl.float32)[None, :]
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)
    y = y.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + where, y, mask=mask)
    return y


@triton.jit
def finish(
    z_ptr, y_ptr, kept_ptr, mean_map, square_map, rnorm_ptr, mean_ptr, total_ptr, rw_ptr, scale_ptr,
    next_mean_ptr, next_square_ptr, gain, positions, space, groups, depth, width, sn, sc, sp,
    ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    SCALE: tl.constexpr, RAW: tl.constexpr, READY: tl.constexpr, ONCE: tl.constexpr,
    NEXT: tl.constexpr, EXACT: tl.constexpr,
    TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """SCALE: 0 none, 1 one number, 2 one per output. READY: `windows` has run. ONCE: width ≤ BC.

    NEXT: statistics of the output's channels, of one group in one tile, are written too.
    """
    pid = tl.program_id(0)
    group = pid % groups
    first = group * width
    pos = pid // groups * BP + tl.arange(0, BP)
    inside = pos < positions
    n = (pos // space).to(tl.int64)
    p = pos % space
    row = (n * sn + p.to(tl.int64) * sp + first.to(tl.int64) * sc)[:, None]
    c = tl.arange(0, BC)
    where = row + c[None, :].to(tl.int64) * sc
    mask = inside[:, None] & (c < width)[None, :]
    z = tl.load(z_ptr + where, mask=mask, other=0.0)  # under way while the windows are summed
    at = (n * groups + group) * space + p
    if READY:
        rnorm = tl.load(rnorm_ptr + at, mask=inside, other=0.0)
        mean = tl.zeros_like(rnorm)
        if CENTERED:
            mean = tl.load(mean_ptr + at, mask=inside, other=0.0)
    else:
        rnorm, mean = window(
            mean_map, square_map, n, p, inside, group, groups, depth,
            ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
            CENTERED, BIAS, TAPS,
        )  # fmt: skip
        tl.store(rnorm_ptr + at, rnorm, mask=inside)
        if CENTERED:
            tl.store(mean_ptr + at, mean, mask=inside)
    if ONCE:
        y = _output(
            z, c, where, mask, y_ptr, kept_ptr, total_ptr, rw_ptr, scale_ptr, rnorm, mean, gain,
            first, width, CENTERED, RELU, KEEP, SCALE, RAW,
        ).to(tl.float32)  # fmt: skip
        if NEXT:
            y = tl.where(mask, y, 0.0)
            if CENTERED:
                m, square = moments(y, mask, width * 1.0, EXACT)
                tl.store(next_mean_ptr + at, m, mask=inside)
            else:
                square = tl.sum(y * y, 1)
            tl.store(next_square_ptr + at, square, mask=inside)
    else:
        for start in range(0, width, BC):
            c = start + tl.arange(0, BC)
            mask = inside[:, None] & (c < width)[None, :]
            where = row + c[None, :].to(tl.int64) * sc
            ahead = inside[:, None] & (c + BC < width)[None, :]
            here = z
            then = row + (c + BC)[None, :].to(tl.int64) * sc
            z = tl.load(z_ptr + then, mask=ahead, other=0.0)
            _output(
                here, c, where, mask, y_ptr, kept_ptr, total_ptr, rw_ptr, scale_ptr, rnorm, mean,
                gain, first, width, CENTERED, RELU, KEEP, SCALE, RAW,
            )  # fmt: skip


@triton.jit
def _fields_grad(
    pid, dy_ptr, kept_ptr, rnorm_ptr, rw_ptr, scale_ptr, g_ptr, field_ptr, dscale_ptr,
    gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp,
    RELU: tl.constexpr, COSINE: tl.constexpr, SCALE: tl.constexpr, DSCALE: tl.constexpr,
    RAW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """kept: y, or c if COSINE. sn…: strides of kept and g; gn…: of dy."""
    group = pid % groups
    block = pid // groups
    pos = block * BP + tl.arange(0, BP)
    inside = pos < positions
    n = (pos // space).to(tl.int64)
    p = pos % space
    at = (n * groups + group) * space + p
    rnorm = tl.load(rnorm_ptr + at, mask=inside, other=0.0)
    field = tl.zeros([BP], tl.float32)
    for start in range(0, width, BC):
        c = start + tl.arange(0, BC)
        channel = (group * width + c).to(tl.int64)
        mask = inside[:, None] & (c < width)[None, :]
        where = (n * sn + p.to(tl.int64) * sp)[:, None] + channel[None, :] * sc
        there = (n * gn + p.to(tl.int64) * gp)[:, None] + channel[None, :] * gc
        dy = tl.load(dy_ptr + there, mask=mask, other=0.0).to(tl.float32)
        kept = tl.load(kept_ptr + where, mask=mask, other=0.0).to(tl.float32)
        factor = tl.zeros([BC], tl.float32) + gain
        if SCALE == 1:
            factor *= tl.load(scale_ptr).to(tl.float32)
        if SCALE == 2:
            factor *= tl.load(scale_ptr + channel, mask=c < width, other=0.0).to(tl.float32)
        dot = dy * kept  # of y: d·c = dy·y, whatever the scale
        if DSCALE:
            share = tl.sum(dot, 0)
            if COSINE:
                share *= gain
            else:
                share *= tl.where(factor == 0.0, 0.0, gain / tl.where(factor == 0.0, 1.0, factor))
            tl.store(
                dscale_ptr + block.to(tl.int64) * (groups * width) + channel, share, mask=c < width
            )
        if COSINE:
            dot *= factor[None, :]
        field += tl.sum(dot, 1)
        if RELU:
            dy = tl.where(kept > 0.0, dy, 0.0)
        if RAW:
            factor *= tl.load(rw_ptr + channel, mask=c < width, other=0.0)
        g = dy * factor[None, :] * rnorm[:, None]
        tl.store(g_ptr + where, g.to(g_ptr.dtype.element_ty), mask=mask)
    tl.store(field_ptr + at, field * rnorm * rnorm, mask=inside)


@triton.jit
def start_grad(
    dy_ptr, kept_ptr, rnorm_ptr, scale_ptr, g_ptr, field_ptr, dscale_ptr,
    w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr,
    gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp, units, size,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, COSINE: tl.constexpr,
    SCALE: tl.constexpr, DSCALE: tl.constexpr, UNITS: tl.constexpr, RAW: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            unit(
                pid, w_ptr, bias_ptr, v_ptr, vb_ptr, stats_ptr, total_ptr, units, size,
                CENTERED, BIAS, True, False, WHOLE, BW,
            )  # fmt: skip
        pid -= units
    if pid >= 0:
        _fields_grad(
            pid, dy_ptr, kept_ptr, rnorm_ptr, stats_ptr, scale_ptr, g_ptr, field_ptr, dscale_ptr,
            gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp,
            RELU, COSINE, SCALE, DSCALE, RAW, BP, BC,
        )  # fmt: skip


@triton.jit
def link_grad(
    dx0_ptr, y_ptr, rnorm_ptr, rw_ptr, g_ptr, field_ptr, next_field_ptr, next_mean_ptr,
    gain, positions, space, width, sn, sc, sp, gn, gc, gp,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, RAW: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """From dx₀ of the next layer to g and s of this one, whose output y is the next one's input.

    sn…: strides of y and g; gn…: of dx₀. ReLU, no scale, one group. I…: size of y; O… and the
    window: the next layer's.
    """
    pos = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = pos < positions
    n = (pos // space).to(tl.int64)
    p = pos % space
    at_y = (n * sn + p.to(tl.int64) * sp)[:, None]
    at_g = (n * gn + p.to(tl.int64) * gp)[:, None]
    c = tl.arange(0, BC)
    first = inside[:, None] & (c < width)[None, :]
    next_y = tl.load(y_ptr + at_y + c[None, :].to(tl.int64) * sc, mask=first, other=0.0)
    next_dy = tl.load(dx0_ptr + at_g + c[None, :].to(tl.int64) * gc, mask=first, other=0.0)
    rnorm = tl.load(rnorm_ptr + pos, mask=inside, other=0.0)
    pull, push = scatter(
        next_field_ptr, next_mean_ptr, n, p, inside, 0, 1,
        IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW, CENTERED, TAPS,
    )  # fmt: skip
    field = tl.zeros([BP], tl.float32)
    for start in range(0, width, BC):
        channel = (start + c).to(tl.int64)
        mask = inside[:, None] & (channel < width)[None, :]
        y = next_y.to(tl.float32)
        dy = next_dy.to(tl.float32)
        ahead = inside[:, None] & (channel + BC < width)[None, :]
        next_y = tl.load(y_ptr + at_y + (channel + BC)[None, :] * sc, mask=ahead, other=0.0)
        next_dy = tl.load(dx0_ptr + at_g + (channel + BC)[None, :] * gc, mask=ahead, other=0.0)
        dy -= y * pull[:, None]
        if CENTERED:
            dy += push[:, None]
        field += tl.sum(dy * y, 1)  # y is zero past the end
        g = tl.where(y > 0.0, dy, 0.0) * (gain * rnorm)[:, None]
        if RAW:
            g *= tl.load(rw_ptr + channel, mask=channel < width, other=0.0)[None, :]
        where = at_y + channel[None, :] * sc
        tl.store(g_ptr + where, g.to(g_ptr.dtype.element_ty), mask=mask)
    tl.store(field_ptr + pos, field * rnorm * rnorm, mask=inside)


@triton.jit
def _input_grad(
    pid, dx0_ptr, x_ptr, dx_ptr, field_ptr, mean_ptr,
    positions, space, groups, depth, sn, sc, sp, gn, gc, gp,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sn…: strides of x; gn…: of dx0 and dx."""
    group = pid % groups
    pos = pid // groups * BP + tl.arange(0, BP)
    inside = pos < positions
    n = (pos // space).to(tl.int64)
    p = pos % space
    c = tl.arange(0, BC).to(tl.int64)
    ahead = inside[:, None] & (c < depth)[None, :]
    at_x = x_ptr + (n * sn + p.to(tl.int64) * sp)[:, None]
    at_g = (n * gn + p.to(tl.int64) * gp)[:, None]
    channel = (group * depth + c)[None, :]
    # Under way while the fields are summed.
    next_x = tl.load(at_x + channel * sc, mask=ahead, other=0.0)
    next_dx = tl.load(dx0_ptr + at_g + channel * gc, mask=ahead, other=0.0)
    pull, push = scatter(
        field_ptr, mean_ptr, n, p, inside, group, groups,
        IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW, CENTERED, TAPS,
    )  # fmt: skip
    for start in range(0, depth, BC):
        mask = inside[:, None] & (start + c < depth)[None, :]
        ahead = inside[:, None] & (start + BC + c < depth)[None, :]
        here = channel + start
        then = here + BC
        x = next_x.to(tl.float32)
        dx = next_dx.to(tl.float32)
        next_x = tl.load(at_x + then * sc, mask=ahead, other=0.0)
        next_dx = tl.load(dx0_ptr + at_g + then * gc, mask=ahead, other=0.0)
        dx -= x * pull[:, None]
        if CENTERED:
            dx += push[:, None]
        tl.store(dx_ptr + at_g + here * gc, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def end_grad(
    dx0_ptr, x_ptr, dx_ptr, field_ptr, mean_ptr,
    dv_ptr, dvb_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr,
    positions, space, groups, depth, sn, sc, sp, gn, gc, gp, units, size,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, FIELDS: tl.constexpr, UNITS: tl.constexpr,
    RAW: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if UNITS:
        if pid < units:
            project(
                pid, dv_ptr, dvb_ptr, w_ptr, bias_ptr, dw_ptr, db_ptr, stats_ptr, units, size,
                CENTERED, BIAS, RAW, WHOLE, BW,
            )  # fmt: skip
        pid -= units
    if FIELDS:
        if pid >= 0:
            _input_grad(
                pid, dx0_ptr, x_ptr, dx_ptr, field_ptr, mean_ptr,
                positions, space, groups, depth, sn, sc, sp, gn, gc, gp,
                IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
                CENTERED, TAPS, BP, BC,
            )  # fmt: skip
