"""Triton: statistics of receptive fields, from one read of the input.

    channels   Σx², or the mean m and M2 = Σ(x-m)², over the channels of a group at a position
    window     over the taps of a field: Σ Σx², or μ = mean of m and Σ M2 + depth·Σ(m-μ)²
    scatter    boxᵀ: at an input position, the sum of a map over the fields that contain it

Positions are flattened over batch and space, and always three-dimensional: sizes of one are added
in front. Taps are a dimension of the tile, so that a window costs the latency of one load.
"""

import triton
import triton.language as tl


@triton.jit
def moments(x, mask, count, EXACT: tl.constexpr):
    """(m, M2) of the rows of a tile over its `count` columns that are real; EXACT: all of them."""
    m = tl.sum(x, 1) / count
    dev = x - m[:, None]
    if not EXACT:
        dev = tl.where(mask, dev, 0.0)
    m2 = tl.sum(dev * dev, 1)
    if not EXACT:  # what rounding has left in the mean would pass for a signal
        drift = tl.sum(dev, 1) / count
        m += drift
        m2 -= drift * drift * count
    return m, m2


@triton.jit
def channels(
    pid, x_ptr, mean_ptr, square_ptr, positions, space, groups, depth, sn, sc, sp,
    CENTERED: tl.constexpr, EXACT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """square: Σx², or M2 when centred; both maps are (batch, groups, space).

    EXACT: depth is a power of two, so that tiles have no columns beyond it, and a constant is its
    own mean to the last digit.
    """
    group = pid % groups
    pos = pid // groups * BP + tl.arange(0, BP)
    inside = pos < positions
    n = (pos // space).to(tl.int64)
    p = pos % space
    row = x_ptr + n * sn + p.to(tl.int64) * sp + (group * depth).to(tl.int64) * sc
    mean = tl.zeros([BP], tl.float32)
    square = tl.zeros([BP], tl.float32)
    for start in range(0, depth, BC):
        c = start + tl.arange(0, BC)
        mask = inside[:, None] & (c < depth)[None, :]
        x = tl.load(row[:, None] + c[None, :].to(tl.int64) * sc, mask=mask, other=0.0)
        x = x.to(tl.float32)
        if CENTERED:
            count = tl.minimum(depth - start, BC).to(tl.float32)
            m, m2 = moments(x, mask, count, EXACT)
            total = start + count
            delta = m - mean
            mean += delta * (count / total)
            square += m2 + delta * delta * (start * (count / total))
        else:
            square += tl.sum(x * x, 1)
    out = (n * groups + group) * space + p
    tl.store(square_ptr + out, square, mask=inside)
    if CENTERED:
        tl.store(mean_ptr + out, mean, mask=inside)


@triton.jit
def inverse_norm(norm2, floor):
    """1/√norm2, 0 at or below the floor: a vector without direction.

    sqrt_rn, since sqrt takes a very small number for zero.
    """
    alive = norm2 > floor
    return tl.where(alive, 1.0 / tl.sqrt_rn(tl.where(alive, norm2, 1.0)), 0.0)


@triton.jit
def window(
    mean_ptr, square_ptr, n, p, inside, group, groups, depth,
    ID, IH, IW, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, BIAS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """(1/|x|, μ) of the fields of output positions p of images n."""
    tap = tl.arange(0, TAPS)
    real = tap < KD * KH * KW
    d = (p // (OH * OW) * SD - PD)[:, None] + (tap // (KH * KW) * DD)[None, :]
    h = (p // OW % OH * SH - PH)[:, None] + (tap // KW % KH * DH)[None, :]
    w = (p % OW * SW - PW)[:, None] + (tap % KW * DW)[None, :]
    mask = (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW)
    mask = mask & inside[:, None] & real[None, :]
    at = (n * groups + group)[:, None] * (ID * IH * IW) + (d * IH + h) * IW + w
    square = tl.load(square_ptr + at, mask=mask, other=0.0)
    norm2 = tl.sum(square, 1)
    mean = tl.zeros_like(norm2)
    if CENTERED:
        taps = KD * KH * KW * 1.0
        m = tl.load(mean_ptr + at, mask=mask, other=0.0)
        mean = tl.sum(m, 1) / taps
        dev = tl.where(real[None, :], m - mean[:, None], 0.0)
        norm2 += depth * tl.sum(dev * dev, 1)
        count = taps * depth
        if BIAS:
            delta = 1.0 - mean
            mean += delta / (count + 1)
            norm2 += delta * delta * (count / (count + 1))
            count += 1
        floor = 2.2737368e-13 * (norm2 + count * mean * mean)  # 16 ε² of float32
        return inverse_norm(norm2, floor), mean
    if BIAS:
        norm2 += 1.0
    return inverse_norm(norm2, 0.0), mean


@triton.jit
def scatter(
    field_ptr, shift_ptr, n, p, inside, group, groups,
    IH, IW, OD, OH, OW, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW,
    CENTERED: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """(boxᵀ(s), boxᵀ(s·μ)) at input positions p of images n; shift_ptr holds μ."""
    tap = tl.arange(0, TAPS)
    d = (p // (IH * IW) + PD)[:, None] - (tap // (KH * KW) * DD)[None, :]
    h = (p // IW % IH + PH)[:, None] - (tap // KW % KH * DH)[None, :]
    w = (p % IW + PW)[:, None] - (tap % KW * DW)[None, :]
    mask = (d >= 0) & (h >= 0) & (w >= 0) & (d % SD == 0) & (h % SH == 0) & (w % SW == 0)
    d = d // SD
    h = h // SH
    w = w // SW
    mask = mask & (d < OD) & (h < OH) & (w < OW) & inside[:, None]
    mask = mask & (tap < KD * KH * KW)[None, :]
    at = (n * groups + group)[:, None] * (OD * OH * OW) + (d * OH + h) * OW + w
    s = tl.load(field_ptr + at, mask=mask, other=0.0)
    total = tl.sum(s, 1)
    if CENTERED:
        m = tl.load(shift_ptr + at, mask=mask, other=0.0)
        return total, tl.sum(s * m, 1)
    return total, tl.zeros_like(total)
