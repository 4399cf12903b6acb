"""Launches the passes of backward; see `launch`."""

import torch
from torch import Tensor

from cosnorm.kernels import passes
from cosnorm.kernels.launch_forward import empty_unit, units
from cosnorm.kernels.layout import (
    blocks,
    dense_rows,
    flat,
    pass_tile,
    row,
    scale_kind,
    sizes,
    space_of,
    tile,
    window,
)
from cosnorm.kernels.plain import like_scale
from cosnorm.kernels.steps import Geometry, Grad, Kept, Place, Weight
from cosnorm.reference import keeps_cosine


def start_grad(
    grad: Tensor,
    kept: Kept,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
    dtype: torch.dtype,
    need_scale: bool,
) -> tuple[Weight, Grad]:
    """One launch: g and s from dy, and the unit weights again where they were not kept."""
    cosine = keeps_cosine(scale, relu)
    y, (sn, sc, sp) = flat(kept.cosine if cosine else kept.output)
    dy, (gn, gc, gp) = flat(grad)
    groups = kept.rnorm.shape[1]
    (space, positions), width = space_of(y), y.shape[1] // groups
    g = torch.empty_like(y, dtype=dtype)
    field = torch.empty_like(kept.rnorm)
    w = dense_rows(weight)
    if kept.unit.numel():
        prepared = Weight(kept.unit, None, kept.weight_stats, None)
    else:
        prepared = empty_unit(weight, bias, centered, dtype)._replace(stats=kept.weight_stats)
    raw = prepared.rnorm is not None
    units = 0 if raw or kept.unit.numel() else w.shape[0]
    block = pass_tile("grads", y, width, sc)
    programs = blocks(positions, block["BP"])
    partial = y.new_empty((programs, w.shape[0]) if need_scale else (0,), dtype=torch.float32)
    passes.start_grad(
        programs * groups + units,
        dy, y, kept.rnorm, scale, g, field, partial,
        w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp, units, w.shape[1:].numel(),
        CENTERED=centered, BIAS=bias is not None, RELU=relu, COSINE=cosine, RAW=raw,
        SCALE=scale_kind(scale), DSCALE=need_scale, UNITS=units > 0,
        **block, **row(w, block["num_warps"]),
    )  # fmt: skip
    dscale = like_scale(partial.sum(0), scale) if need_scale else None
    return prepared, Grad(g, field, None, dscale)


def link_grad(
    dx: Tensor,
    after: Kept,
    step: Grad,
    window_after: Tensor,
    geometry_after: Geometry,
    kept: Kept,
    weight: Tensor,
    bias: Tensor | None,
    gain: float,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Weight, Grad]:
    """`end_grad` for the input of the layer after and `start_grad` of this one, in one pass.

    Of the layer after: dx (uncorrected), what it kept, its step and its window. Both have one
    group; this one has ReLU and no scale.
    """
    y, (sn, sc, sp) = flat(kept.output)
    dx0, (gn, gc, gp) = flat(dx)
    (space, positions), width = space_of(y), y.shape[1]
    g, field = torch.empty_like(y, dtype=dtype), torch.empty_like(kept.rnorm)
    prepared = _units_again(weight, bias, kept, centered, dtype)
    block = pass_tile("grads", y, width, sc)
    inner = sizes("I", y.shape[2:])
    passes.link_grad(
        blocks(positions, block["BP"]),
        dx0, y, kept.rnorm, prepared.stats, g, field, step.field, after.mean,
        gain, positions, space, width, sn, sc, sp, gn, gc, gp,
        IH=inner["IH"], IW=inner["IW"], **sizes("O", step.field.shape[2:]),
        **window(window_after, geometry_after), CENTERED=centered,
        RAW=prepared.rnorm is not None, **block,
    )  # fmt: skip
    return prepared, Grad(g, field, None, None)


def _units_again(
    weight: Tensor, bias: Tensor | None, kept: Kept, centered: bool, dtype: torch.dtype
) -> Weight:
    """Weights as they were multiplied, in a launch of their own where they were not kept."""
    if kept.unit.numel():
        return Weight(kept.unit, None, kept.weight_stats, None)
    prepared = units(weight, bias, centered, dtype, norms=False)
    return prepared._replace(stats=kept.weight_stats)


def end_grad(
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    place: Place,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The correction of dx and the projection of the weights' gradient, in one launch."""
    if dx is None and dw is None:
        return None, None, None
    out = empty_grads(dx, place.input, None if dw is None else place.weight, place.bias)
    _end_grad(dx, dw, db, out, place)
    return out


def empty_grads(
    dx: Tensor | None, input: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Where gradients go, of the input in the place of what is to be corrected if it fits."""
    new_x = None if dx is None else flat(dx)[0]
    if new_x is not None and new_x.dtype != input.dtype:
        new_x = torch.empty_like(new_x, dtype=input.dtype)
    if weight is None:
        return new_x, None, None
    new_b = None if bias is None else torch.empty_like(bias)
    return new_x, torch.empty_like(dense_rows(weight)), new_b


def correct(
    dx: Tensor,
    place: Place,
) -> Tensor | None:
    """The correction of dx alone."""
    out = empty_grads(dx, place.input, None, None)
    _end_grad(dx, None, None, out, place)
    return out[0]


def project(
    dw: Tensor,
    db: Tensor | None,
    out: tuple[Tensor | None, Tensor | None, Tensor | None],
    place: Place,
) -> None:
    """The projection of the weights' gradient alone, into `out`."""
    _end_grad(None, dw, db, out, place)


def _end_grad(
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    out: tuple[Tensor | None, Tensor | None, Tensor | None],
    place: Place,
) -> None:
    """One launch over the positions of dx and over the units of dw, as far as they are wanted."""
    input, weight, bias, kept, prepared, step, geometry, centered = place
    groups = geometry.groups
    x, (sn, sc, sp) = flat(input)
    (space, positions), depth = space_of(x), x.shape[1] // groups
    dx0, (gn, gc, gp) = (x, (sn, sc, sp)) if dx is None else flat(dx)
    w = dense_rows(weight)
    dv = w if dw is None else _like(dw, w)
    units = 0 if dw is None else w.shape[0]
    block = tile("small", space, depth, gc) if dx is None else pass_tile("grads", x, depth, gc)
    programs = 0 if dx is None else blocks(positions, block["BP"]) * groups
    inner = sizes("I", x.shape[2:])
    new_x, new_w, new_b = out
    passes.end_grad(
        programs + units,
        dx0, x, new_x, step.field, kept.mean, dv, db, w, bias, new_w, new_b, prepared.stats,
        positions, space, groups, depth, sn, sc, sp, gn, gc, gp, units, w.shape[1:].numel(),
        IH=inner["IH"], IW=inner["IW"], **sizes("O", step.field.shape[2:]),
        **window(weight, geometry), CENTERED=centered, BIAS=bias is not None,
        FIELDS=programs > 0, UNITS=units > 0, RAW=prepared.rnorm is not None,
        **block, **row(w, block["num_warps"]),
    )  # fmt: skip


def _like(x: Tensor, reference: Tensor) -> Tensor:
    """x in the memory order of `reference`, whose rows are dense."""
    return (
        x
        if x.stride() == reference.stride()
        else torch.empty_like(reference, dtype=x.dtype).copy_(x)
    )
