"""Linear layers and convolutions, step by step: the four passes around the product.

    prepare     v = w/|w|, for Pearson (w-μw)/|w-μw|, and Σv; 1/|x| and μx of the fields
    finish      y = act(gain · scale · r_x (z - μx Σv))
    start_grad  g = d·r_x, s = r_x² Σ_k d·c
    end_grad    dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx);  dw = r_w (dv - mean(dv) - v⟨dv, v⟩)

A cosine multiplies weights of the product's dtype as they are: RAW, where r_w is applied with r_x.
In float16, unit weights are lifted (see `numerics.lift`), and g is by as much the other way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cosnorm.ops.eager import boxes, convs, early, rows
from cosnorm.ops.eager.products import product, product_grad
from cosnorm.ops.eager.units import Unit, project, unit_weight
from cosnorm.ops.reference.numerics import (
    full_precision,
    into_cosine,
    like_scale,
    per_channel,
    product_dtype,
    weight_stats,
)
from cosnorm.ops.spec import Spec, is_early, keeps_unit, laid

unsafe_view = (
    torch.ops.aten._unsafe_view.default
)  # no view: what comes after may change it in place


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
            if early.is_shorter(input, weight, scale, spec):
                stats = rows.input_stats(input, bias is not None, spec.centered)
                return early.forward(input, weight, bias, spec, keep, stats)
            return rows.forward(input, weight, bias, scale, spec, keep)
        if convs.serves(input, weight, spec):
            return convs.forward(input, weight, bias, scale, spec, keep)
        if is_early(spec, weight, scale, product_dtype(input)):
            fields = boxes.fields(input, weight.shape[2:], spec, bias is not None)
            return early.forward(input, weight, bias, spec, keep, fields)
        x = input
        stats = weight_stats(weight, bias, spec.centered)
        unit = unit_weight(weight, bias, stats, spec, product_dtype(input))
        rnorm, mean = boxes.fields(x, weight.shape[2:], spec, bias is not None)
        z = product(x.to(unit.weight.dtype), unit.weight, unit.bias, spec)
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
    z = product(input.to(weight.dtype), weight, bias, spec)
    return finish(z, rnorm, mean, rnorm, unit, scale, spec, False, input.dtype)[0]


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
        x = input
        if spec.geometry is None:
            x, grad = (t.reshape(-1, t.shape[-1]) for t in (input, grad))
            if kept[0] is None:  # `early`
                dx, dw, db = early.backward(grad, x, weight, bias, kept, spec, need)
                return _shaped(dx, input), dw, db, None
            kept = [kept[0].reshape(-1, kept[0].shape[-1]), *kept[1:]]
        if rows.serves(x, weight, spec):
            done = rows.backward(grad, x, weight, bias, scale, kept, spec, need)
            return _shaped(done[0], input), *done[1:]
        if convs.serves(x, weight, spec):
            dx, dw, db, dscale = convs.backward(grad, x, weight, bias, scale, kept, spec, need)
            return laid(dx, input, weight), laid(dw, weight), db, dscale
        value, rnorm, mean, stats, v = kept
        assert value is not None and rnorm is not None and stats is not None
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
