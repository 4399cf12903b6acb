"""Launches the passes of backward; see `launch`."""

import math

import torch
from torch import Tensor

from cosnorm.kernels import passes
from cosnorm.kernels.launch_forward import empty_unit, units
from cosnorm.kernels.layout import (
    Shape,
    Strides,
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
from cosnorm.kernels.passes import Launch, plan
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
    y, strides = flat(kept.cosine if cosine else kept.output)
    dy, grad_strides = flat(grad)
    g = torch.empty_like(y, dtype=dtype)
    field = torch.empty_like(kept.rnorm)
    w = dense_rows(weight)
    if kept.unit.numel():
        prepared = Weight(kept.unit, None, kept.weight_stats, None)
    else:
        prepared = empty_unit(weight, bias, centered, dtype)._replace(stats=kept.weight_stats)
    raw = prepared.rnorm is not None
    units = 0 if raw or kept.unit.numel() else w.shape[0]
    launch, programs = _plan_start(
        y.shape, strides, grad_strides, kept.rnorm.shape[1], w.shape, units,
        scale_kind(scale), centered, bias is not None, relu, cosine, raw, need_scale,
    )  # fmt: skip
    partial = y.new_empty((programs, w.shape[0]) if need_scale else (0,), dtype=torch.float32)
    launch(
        dy, y, kept.rnorm, scale, g, field, partial,
        w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        gain,
    )  # fmt: skip
    dscale = like_scale(partial.sum(0), scale) if need_scale else None
    return prepared, Grad(g, field, None, dscale)


@plan
def _plan_start(
    shape: Shape,
    strides: Strides,
    grad_strides: Strides,
    groups: int,
    rows: Shape,
    units: int,
    scale: int,
    centered: bool,
    bias: bool,
    relu: bool,
    cosine: bool,
    raw: bool,
    need_scale: bool,
) -> tuple[Launch, int]:
    """The launch, and how many blocks of positions each leave a share of the scale's gradient."""
    (space, positions), width = space_of(shape), shape[1] // groups
    block, size = pass_tile("grads", shape, width, strides[1]), math.prod(rows[1:])
    programs = blocks(positions, block["BP"])
    launch = passes.start_grad(
        programs * groups + units,
        positions, space, groups, width, *strides, *grad_strides, units, size,
        CENTERED=centered, BIAS=bias, RELU=relu, COSINE=cosine, RAW=raw, SCALE=scale,
        DSCALE=need_scale, UNITS=units > 0, **block, **row(size, block["num_warps"]),
    )  # fmt: skip
    return launch, programs


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
    y, strides = flat(kept.output)
    dx0, grad_strides = flat(dx)
    g, field = torch.empty_like(y, dtype=dtype), torch.empty_like(kept.rnorm)
    prepared = _units_again(weight, bias, kept, centered, dtype)
    launch = _plan_link(
        y.shape, strides, grad_strides, step.field.shape, window_after.shape, geometry_after,
        centered, prepared.rnorm is not None,
    )  # fmt: skip
    launch(dx0, y, kept.rnorm, prepared.stats, g, field, step.field, after.mean, gain)
    return prepared, Grad(g, field, None, None)


@plan
def _plan_link(
    shape: Shape,
    strides: Strides,
    grad_strides: Strides,
    maps: Shape,
    kernel: Shape,
    geometry: Geometry,
    centered: bool,
    raw: bool,
) -> Launch:
    (space, positions), width = space_of(shape), shape[1]
    block, inner = pass_tile("grads", shape, width, strides[1]), sizes("I", shape[2:])
    return passes.link_grad(
        blocks(positions, block["BP"]),
        positions, space, width, *strides, *grad_strides, IH=inner["IH"], IW=inner["IW"],
        **sizes("O", maps[2:]), **window(kernel, geometry), CENTERED=centered, RAW=raw, **block,
    )  # fmt: skip


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
    x, strides = flat(input)
    dx0, grad_strides = (x, strides) if dx is None else flat(dx)
    w = dense_rows(weight)
    dv = w if dw is None else _like(dw, w)
    launch = _plan_end(
        x.shape, strides, grad_strides, dx is not None, step.field.shape, w.shape, dw is not None,
        geometry, centered, bias is not None, prepared.rnorm is not None,
    )  # fmt: skip
    new_x, new_w, new_b = out
    launch(dx0, x, new_x, step.field, kept.mean, dv, db, w, bias, new_w, new_b, prepared.stats)


@plan
def _plan_end(
    shape: Shape,
    strides: Strides,
    grad_strides: Strides,
    fields: bool,
    maps: Shape,
    rows: Shape,
    units: bool,
    geometry: Geometry,
    centered: bool,
    bias: bool,
    raw: bool,
) -> Launch:
    groups = geometry.groups
    (space, positions), depth = space_of(shape), shape[1] // groups
    if fields:
        block = pass_tile("grads", shape, depth, grad_strides[1])
    else:
        block = tile("small", space, depth, grad_strides[1])
    programs = blocks(positions, block["BP"]) * groups if fields else 0
    count, size = rows[0] if units else 0, math.prod(rows[1:])
    inner = sizes("I", shape[2:])
    return passes.end_grad(
        programs + count,
        positions, space, groups, depth, *strides, *grad_strides, count, size,
        IH=inner["IH"], IW=inner["IW"], **sizes("O", maps[2:]), **window(rows, geometry),
        CENTERED=centered, BIAS=bias, FIELDS=programs > 0, UNITS=count > 0, RAW=raw,
        **block, **row(size, block["num_warps"]),
    )  # fmt: skip


def _like(x: Tensor, reference: Tensor) -> Tensor:
    """x in the memory order of `reference`, whose rows are dense."""
    return (
        x
        if x.stride() == reference.stride()
        else torch.empty_like(reference, dtype=x.dtype).copy_(x)
    )
