"""Linear layers and convolutions, step by step: the four passes around the product.

    prepare     v = w/|w|, for Pearson (w-μw)/|w-μw|, and Σv; 1/|x| and μx of the fields
    finish      y = act(gain · scale · r_x (z - μx Σv))
    start_grad  g = d·r_x, s = r_x² Σ_k d·c
    end_grad    dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx);  dw = r_w (dv - mean(dv) - v⟨dv, v⟩)

A cosine multiplies weights of the product's dtype as they are: RAW, where r_w is applied with r_x.
In float16, unit weights are lifted (see `numerics.lift`), and g is by as much the other way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.eager import boxes, convs, early, rows
from cosnorm.ops.reference.numerics import (
    full_precision,
    into_cosine,
    lift,
    like_scale,
    per_channel,
    per_unit,
    product_dtype,
    weight_stats,
)
from cosnorm.ops.spec import Spec, is_early, keeps_unit, laid, memory_format

unsafe_view = (
    torch.ops.aten._unsafe_view.default
)  # no view: what comes after may change it in place
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


class Unit(NamedTuple):
    """Weights as they are multiplied, and what remains to be done to the product."""

    weight: Tensor
    bias: Tensor | None
    total: Tensor | None  # Σv of each unit as rounded, Pearson only
    raw: bool  # w itself: the product is still to be multiplied by 1/|w|
    lift: float  # what v was multiplied by; no default, which torch.compile takes for a variable


def forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """y, and of what backward keeps: y or c (`early`: None), 1/|x|, μx, (1/|w|, μw) and v."""
    with full_precision(input):
        if spec.geometry is None and input.dim() != 2:
            lead, x = input.shape[:-1], input.reshape(-1, input.shape[-1])
            y, kept = forward(x, weight, bias, scale, spec, keep)
            shaped = unsafe_view(y, (*lead, y.shape[-1]))
            return shaped, [shaped if t is y else t for t in kept]
        if rows.serves(input, weight, spec):
            return rows.forward(input, weight, bias, scale, spec, keep)
        if convs.serves(input, weight, spec):
            return convs.forward(input, weight, bias, scale, spec, keep)
        if is_early(spec, weight, scale, product_dtype(input)):
            return early.forward(input, weight, bias, spec, keep)
        x = input
        stats = weight_stats(weight, bias, spec.centered)
        unit = unit_weight(weight, bias, stats, spec, product_dtype(input))
        rnorm, mean = boxes.fields(x, weight.shape[2:], spec, bias is not None)
        z = product(x.to(unit.weight.dtype), unit, spec)
        y, cosine = finish(z, rnorm, mean, stats[0], unit, scale, spec, keep, input.dtype)
        if not keep:
            return y, []
        v = unit.weight if keeps_unit(z.dtype, weight) else None
        return y, [y if cosine is None else cosine, rnorm, mean, stats, v]


def infer(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    total: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
) -> Tensor:
    """y alone, of weights that are units already; total: Σv, for Pearson."""
    unit = Unit(weight, bias, total, False, 1.0)
    rnorm, mean = boxes.fields(input, weight.shape[2:], spec, bias is not None)
    z = product(input.to(weight.dtype), unit, spec)
    return finish(z, rnorm, mean, rnorm, unit, scale, spec, False, input.dtype)[0]


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


def product(x: Tensor, unit: Unit, spec: Spec) -> Tensor:
    if spec.geometry is None:
        return F.linear(x, unit.weight, unit.bias)
    stride, padding, dilation, groups, _ = spec.geometry
    none = [0] * len(stride)
    z = torch.convolution(x, unit.weight, unit.bias, stride, padding, dilation, False, none, groups)
    return z.contiguous(memory_format=memory_format(x, unit.weight))


def finish(
    z: Tensor,
    rnorm: Tensor,
    mean: Tensor | None,
    wnorm: Tensor,
    unit: Unit,
    scale: Tensor | None,
    spec: Spec,
    keep: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """(y, c) from the product, which is overwritten; c where backward keeps it."""
    z = z.to(rnorm.dtype)  # itself and no view of it: autograd forbids changing those
    groups = rnorm.shape[1]
    grouped = z.unflatten(1, (groups, -1))
    if unit.total is not None:
        assert mean is not None
        total = per_channel(unit.total, z).unflatten(0, (groups, -1))
        grouped.addcmul_(mean.unsqueeze(2), total, value=-1)
    grouped.mul_((rnorm if unit.lift == 1 else rnorm / unit.lift).unsqueeze(2))
    if unit.raw:
        z.mul_(per_channel(wnorm, z))
    plain = scale is None and spec.gain == 1
    if plain and spec.activation == "relu":
        return z.clamp_(0, 1).to(dtype), None
    cosine = None
    z.clamp_(-1, 1)
    if keep and not spec.act.keeps_output:
        cosine = z.to(dtype, copy=True)
    if not plain:
        z.mul_(spec.gain if scale is None else per_channel(scale.to(z.dtype), z) * spec.gain)
    return spec.act.value(z).to(dtype), cosine


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Tensor | None],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    with full_precision(input):
        value, rnorm, mean, stats, v = kept
        assert rnorm is not None and stats is not None
        x = input
        if value is None:  # `early`
            x, grad = (t.reshape(-1, t.shape[-1]) for t in (input, grad))
            dx, dw, db = early.backward(grad, x, weight, bias, kept, spec, need)
            if dw is not None:
                dw, db = project(dw, db, weight, bias, stats, 1.0, spec)
            return _shaped(dx, input), dw, db, None
        if spec.geometry is None:
            x, grad, value = (t.reshape(-1, t.shape[-1]) for t in (input, grad, value))
            kept = [value, *kept[1:]]
        if rows.serves(x, weight, spec):
            done = rows.backward(grad, x, weight, bias, scale, kept, spec, need)
            return _shaped(done[0], input), *done[1:]
        if convs.serves(x, weight, spec):
            dx, dw, db, dscale = convs.backward(grad, x, weight, bias, scale, kept, spec, need)
            return laid(dx, input, weight), laid(dw, weight), db, dscale
        dtype = product_dtype(input)
        unit = unit_weight(weight, bias, stats, spec, dtype)
        unit = unit if v is None else unit._replace(weight=v)
        g, field, dscale = start_grad(grad, value, rnorm, stats[0], unit, scale, spec)
        units = need[1] or need[2]  # the projection of one is made of both
        wanted = (need[0], units, units and bias is not None)
        dx, dw, db = product_grad(g.to(dtype), x.to(dtype), unit.weight, spec, wanted)
        if dx is not None:
            dx = _shaped(correct(dx, x, field, mean, weight.shape[2:], spec), input)
        if dw is not None:
            up = None if unit.raw else unit.lift
            dw, db = project(dw, db, weight, bias, stats, up, spec)
    dscale = None if dscale is None or scale is None else like_scale(dscale, scale)
    if spec.geometry is not None:  # outside: torch.compile loses a context in which this is asked
        dx, dw = laid(dx, input, weight), laid(dw, weight)
    return dx, dw, db, dscale


def _shaped(dx: Tensor | None, input: Tensor) -> Tensor | None:
    return dx if dx is None or dx.dim() == input.dim() else dx.view(input.shape)


def start_grad(
    grad: Tensor,
    value: Tensor,
    rnorm: Tensor,
    wnorm: Tensor,
    unit: Unit,
    scale: Tensor | None,
    spec: Spec,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(g, s, gradient of each unit's scale); g is the larger, the smaller lifted weights are."""
    wide, groups = rnorm.dtype, rnorm.shape[1]
    factor = None if scale is None else per_channel(scale.to(wide), grad)
    d, dot, dscale = into_cosine(grad.to(wide), value, factor, spec)
    field = dot.unflatten(1, (groups, -1)).sum(2) * rnorm.square()
    rnorm = rnorm if unit.lift == 1 else rnorm / unit.lift
    g = d.unflatten(1, (groups, -1)) * rnorm.unsqueeze(2)
    g = g.flatten(1, 2)
    return g * per_channel(wnorm, g) if unit.raw else g, field, dscale


def product_grad(
    g: Tensor, x: Tensor, w: Tensor, spec: Spec, need: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if spec.geometry is None:
        dx = g @ w if need[0] else None
        dw = g.t() @ x if need[1] else None
        return dx, dw, g.sum(0) if need[2] else None
    stride, padding, dilation, groups, _ = spec.geometry
    none, out = [0] * len(stride), [w.shape[0]]
    return _CONVOLUTION_BACKWARD(
        g, x, w, out, stride, padding, dilation, False, none, groups, list(need)
    )


def correct(
    dx: Tensor, x: Tensor, field: Tensor, mean: Tensor | None, kernel: Sequence[int], spec: Spec
) -> Tensor:
    """dx₀ - x·boxᵀ(s) + boxᵀ(s·μx)."""
    groups, size = field.shape[1], x.shape[2:]
    pull = boxes.scatter(field, size, kernel, spec.geometry)
    out = dx.to(field.dtype).unflatten(1, (groups, -1))
    out = out - x.unflatten(1, (groups, -1)) * pull.unsqueeze(2)
    if mean is not None:
        out = out + boxes.scatter(field * mean, size, kernel, spec.geometry).unsqueeze(2)
    return out.flatten(1, 2).to(x.dtype)


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
