"""Weights as a layer multiplies them and as they lie, and the last step of their gradient."""

from typing import NamedTuple

import torch
from torch import Tensor

from cosnorm.ops.reference.numerics import lift, per_unit
from cosnorm.ops.spec import Spec

_LASTS = {4: torch.channels_last, 5: torch.channels_last_3d}


class Unit(NamedTuple):
    """Weights as they are multiplied, and what remains to be done to the product."""

    weight: Tensor
    bias: Tensor | None
    total: Tensor | None  # Σv of each unit as rounded, Pearson only
    raw: bool  # w itself: the product is still to be multiplied by 1/|w|
    lift: float  # what v was multiplied by; no default, which torch.compile takes for a variable


def unit_weight(
    weight: Tensor, bias: Tensor | None, stats: Tensor, spec: Spec, dtype: torch.dtype
) -> Unit:
    """v of each unit, normalised in float32 and rounded once; stats: (1/|w|, μw)."""
    if not spec.centered and weight.dtype == dtype != torch.float16:
        return Unit(weight, bias, None, True, 1.0)
    rnorm, mean, up = stats[0], stats[1], lift(dtype, weight, bias is not None)
    rnorm = rnorm if up == 1 else rnorm * up
    v, vb = weight.to(stats.dtype), None if bias is None else bias.to(stats.dtype)
    if spec.centered:
        v = v - per_unit(mean, v)
        vb = None if vb is None else vb - mean
    v = (v * per_unit(rnorm, v)).to(dtype)
    vb = None if vb is None else (vb * rnorm).to(dtype)
    if not spec.centered:
        return Unit(v, vb, None, False, up)
    total = v.flatten(1).sum(1, dtype=stats.dtype)
    return Unit(v, vb, total if vb is None else total + vb, False, up)


def project(
    dv: Tensor,
    dvb: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stats: Tensor,
    up: float | None,
    spec: Spec,
) -> tuple[Tensor, Tensor | None]:
    """r_w (dv - mean(dv) - v⟨dv, v⟩), with v = r_w (w - μw), of dv / up; None: of r_w·dv."""
    wide, (rnorm, mean) = stats.dtype, (stats[0], stats[1])
    g, w = dv.to(wide), weight.to(wide)
    gb, b = None, None
    if dvb is not None and bias is not None:
        gb, b = dvb.to(wide), bias.to(wide)
    if spec.centered:
        w = w - per_unit(mean, w)
        b = None if b is None else b - mean
    dot, total = (g * w).flatten(1).sum(1), None
    dot = dot if gb is None or b is None else dot + gb * b
    factor = None if up is None else rnorm if up == 1 else rnorm * up
    pull = dot * rnorm * rnorm
    dw = g - w * per_unit(pull, w)
    db = None if gb is None or b is None else gb - b * pull
    if spec.centered:
        total = g.flatten(1).sum(1) if gb is None else g.flatten(1).sum(1) + gb
        shift = total / (weight[0].numel() + (bias is not None))
        dw = dw - per_unit(shift, dw)
        db = None if db is None else db - shift
    if factor is not None:
        dw = dw * per_unit(factor, dw)
        db = None if db is None else db * factor
    return dw.to(weight.dtype), None if db is None or bias is None else db.to(bias.dtype)


def _last(weight: Tensor) -> bool:
    """Whether weights lie channels last; those of one channel, which lie both ways, do not."""
    last = _LASTS.get(weight.dim())
    if last is None or weight.shape[1] == 1:
        return False
    return weight.is_contiguous(memory_format=last)


def in_rows(weight: Tensor) -> Tensor:
    """The weights of each unit in one row, in the order in which they lie in memory."""
    return (weight.movedim(1, -1) if _last(weight) else weight).flatten(1)


def as_weight(moved: Tensor, weight: Tensor) -> Tensor:
    """Rows that `in_rows` has made, and that were changed since, as weights."""
    if not _last(weight):
        return moved.view_as(weight)
    return moved.view(weight.movedim(1, -1).shape).movedim(-1, 1)
