"""Triton: where the entries of a tile lie, and how a program walks through them."""

import triton
import triton.language as tl

SIZES = (
    "pitch", "positions", "space", "groups", "depth", "width", "stride", "units",
    "size", "maps", "inner", "shift", "blocks", "ID", "IH", "IW", "OD", "OH", "OW", "KD", "KH",
    "KW", "SD", "SH", "SW", "PD", "PH", "PW", "DD", "DH", "DW",
)  # fmt: skip
jit = triton.jit(do_not_specialize=list(SIZES))


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
