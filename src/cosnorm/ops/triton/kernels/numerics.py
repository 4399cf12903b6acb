"""Triton: norms, moments and activations, the twins of those in torch."""

import torch
import triton
import triton.language as tl

from cosnorm.ops.activations import ACTIVATIONS
from cosnorm.ops.reference.numerics import zero_floor

FLOOR = tl.constexpr(zero_floor(torch.float32))
_RELU = tl.constexpr(ACTIVATIONS["relu"].code)
_GELU = tl.constexpr(ACTIVATIONS["gelu"].code)
_SILU = tl.constexpr(ACTIVATIONS["silu"].code)
_HARDSWISH = tl.constexpr(ACTIVATIONS["hardswish"].code)


@triton.jit
def activate(x, ACT: tl.constexpr):
    """The twin of `activations.ACTIVATIONS`: values."""
    if ACT == _RELU:
        x = tl.where(x < 0.0, 0.0, x)  # NaN passes
    if ACT == _GELU:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACT == _SILU:
        x = x / (1.0 + tl.exp(-x))
    if ACT == _HARDSWISH:
        x = x * gate(x)
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
    if ACT == _SILU:
        share = 1.0 / (1.0 + tl.exp(-x))
        d = share * (1.0 + x * (1.0 - share))
    if ACT == _HARDSWISH:
        d = tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, 1.0, x / 3.0 + 0.5))
    return d


@triton.jit
def gate(x):
    """What a hard swish multiplies x by: from 0 at -3 in a line to 1 at 3."""
    share = (x + 3.0) / 6.0
    share = tl.where(share < 0.0, 0.0, share)  # NaN passes
    return tl.where(share > 1.0, 1.0, share)


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
        floor = FLOOR * (norm2 + count * mean * mean)
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
