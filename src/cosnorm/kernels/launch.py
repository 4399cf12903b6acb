"""Launches the Triton passes: the same steps as `plain`, under the same names.

A small layer takes one launch a step. Of a large one (`apart`), passes that don't wait for a
product run `beside` it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosnorm.kernels import fused as _fused
from cosnorm.kernels.layout import blocks, dense_rows, flat, row, sizes, tile, window
from cosnorm.kernels.plain import like_scale
from cosnorm.kernels.steps import Geometry, Grad, Kept, Weight, output_size
from cosnorm.kernels.streams import beside as beside
from cosnorm.reference import keeps_cosine

fused: Any = _fused  # its functions take launch options that their signatures don't name

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_TAPS = 128
_WINDOWS = 64  # fields of a program that only sums windows
_LARGE = 1 << 21  # elements from which a pass has tiles of its own
_WORTH = 1 << 33  # multiplications of a layer from which a second stream pays for its launches
_WIDE = 1 << 24  # elements of an output from which it does, however few the multiplications


class Fields(NamedTuple):
    """Statistics over the channels of each position, and where they have been summed, of fields."""

    mean: Tensor  # Pearson only, as is the last
    square: Tensor  # Σx², or M2
    rnorm: Tensor | None = None
    centre: Tensor | None = None


def serves(input: Tensor, weight: Tensor) -> bool:
    """float64, very large windows, over 2³¹ positions and empty tensors are left to torch."""
    return (
        input.numel() > 0
        and input.dtype in _DTYPES
        and weight.dtype in _DTYPES
        and weight[0, 0].numel() <= _MOST_TAPS
        and input.numel() // input.shape[1] < 1 << 30
        and weight.numel() > 0
    )


def apart(input: Tensor, weight: Tensor) -> bool:
    """Whether a layer is large enough for passes beside its products."""
    if input.device.type != "cuda":
        return False
    positions = input.numel() // input.shape[1]
    return positions * weight.numel() >= _WORTH or positions * weight.shape[0] >= _WIDE


def _tile(x: Tensor, space: int, depth: int, channel_stride: int) -> dict[str, int]:
    return tile("fields" if x.numel() >= _LARGE else "small", space, depth, channel_stride)


def _space(x: Tensor) -> tuple[int, int]:
    """Positions of an image, and of all of them."""
    space = x.shape[2:].numel()
    return space, x.shape[0] * space


def _scale_kind(scale: Tensor | None) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


def prepare(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Weight, Fields]:
    """Channel statistics of the input, and unit weights, in one launch."""
    prepared = _empty_unit(weight, bias, centered, dtype)
    found = _empty_fields(input, geometry, centered)
    _prepare(input, found, geometry.groups, weight, bias, prepared, centered)
    return prepared, found


def units(weight: Tensor, bias: Tensor | None, centered: bool, dtype: torch.dtype) -> Weight:
    """Unit weights alone. Those to be multiplied as they are leave their norms to `fields`."""
    prepared = _empty_unit(weight, bias, centered, dtype)
    if prepared.rnorm is None:
        _prepare(weight, None, 1, weight, bias, prepared, centered)
    return prepared


def fields(input: Tensor, weight: Weight, geometry: Geometry, centered: bool) -> Fields:
    """Channel statistics alone, for weights that are units already."""
    found = _empty_fields(input, geometry, centered)
    _prepare(input, found, geometry.groups, None, weight.bias, weight, centered)
    return found


def empty_fields(input: Tensor, weight: Weight, geometry: Geometry, centered: bool) -> Fields:
    """Where `fields_beside` is to write."""
    found = _empty_fields(input, geometry, centered)
    maps = (input.shape[0], geometry.groups, *output_size(input, weight.weight, geometry))
    rnorm = found.square.new_empty(maps)
    return found._replace(rnorm=rnorm, centre=rnorm.new_empty(maps if centered else (0,)))


def fields_beside(
    input: Tensor, weight: Weight, found: Fields, geometry: Geometry, centered: bool
) -> None:
    """Statistics of channels and of fields; norms of weights that are multiplied as they are."""
    raw = None if weight.rnorm is None else weight.weight
    _prepare(input, found, geometry.groups, raw, weight.bias, weight, centered)
    _windows(input, found, weight, geometry, centered)


def _empty_unit(weight: Tensor, bias: Tensor | None, centered: bool, dtype: torch.dtype) -> Weight:
    """Where unit weights go; cosines of weights in the dtype of the product need none."""
    w = dense_rows(weight)
    stats = w.new_empty((2, weight.shape[0]), dtype=torch.float32)
    if not centered and weight.dtype == dtype:
        return Weight(w, bias, stats, None, stats[0])
    v, vb = torch.empty_like(w, dtype=dtype), None
    if bias is not None:
        vb = torch.empty_like(bias, dtype=dtype)
    return Weight(v, vb, stats, stats.new_empty(weight.shape[0]) if centered else None)


def _empty_fields(input: Tensor, geometry: Geometry, centered: bool) -> Fields:
    maps = (input.shape[0], geometry.groups, *input.shape[2:])
    square = input.new_empty(maps, dtype=torch.float32)
    return Fields(square.new_empty(maps if centered else (0,)), square)


def _prepare(
    input: Tensor,
    found: Fields | None,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    prepared: Weight,
    centered: bool,
) -> None:
    """One launch over fields, if they are to be found, and units, if there are weights."""
    x, (sn, sc, sp) = flat(input)
    space, positions = _space(x)
    depth = x.shape[1] // groups
    mean, square = (prepared.stats, prepared.stats) if found is None else found[:2]
    w = prepared.weight if weight is None else dense_rows(weight)
    count = 0 if weight is None else w.shape[0]
    block = tile("small", space, depth, sc) if found is None else _tile(x, space, depth, sc)
    programs = 0 if found is None else blocks(positions, block["BP"]) * groups
    fused.prepare[(programs + count,)](
        x, mean, square, w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        positions, space, groups, depth, sn, sc, sp, count, w[0].numel(),
        CENTERED=centered, BIAS=bias is not None, FIELDS=programs > 0, UNITS=count > 0,
        RAW=prepared.rnorm is not None, EXACT=depth & (depth - 1) == 0,
        **block, **row(w, block["num_warps"]),
    )  # fmt: skip


def _windows(
    input: Tensor, found: Fields, weight: Weight, geometry: Geometry, centered: bool
) -> None:
    rnorm, groups = found.rnorm, geometry.groups
    assert rnorm is not None
    outer = sizes("O", rnorm.shape[2:])
    fused.windows[(blocks(rnorm.numel(), _WINDOWS),)](
        found.mean, found.square, rnorm, found.centre, rnorm.numel(), _space(rnorm)[0], groups,
        input.shape[1] // groups, **sizes("I", input.shape[2:]), OH=outer["OH"], OW=outer["OW"],
        **window(weight.weight, geometry), CENTERED=centered, BIAS=weight.bias is not None,
        BP=_WINDOWS, num_warps=4,
    )  # fmt: skip


def finish(
    product: Tensor,
    input: Tensor,
    fields: Fields,
    weight: Weight,
    geometry: Geometry,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
    keep: bool,
    keep_unit: bool,
) -> Kept:
    """One launch over the product, which becomes the output where dtypes are equal."""
    z, (sn, sc, sp) = flat(product)
    groups = geometry.groups
    (space, positions), width = _space(z), z.shape[1] // groups
    y = z if z.dtype == input.dtype else torch.empty_like(z, dtype=input.dtype)
    cosine = torch.empty_like(y) if keep else y.new_empty(0)
    rnorm, mean = fields.rnorm, fields.centre
    ready = rnorm is not None
    if rnorm is None or mean is None:
        maps = (z.shape[0], groups, *z.shape[2:])
        rnorm = z.new_empty(maps, dtype=torch.float32)
        mean = rnorm.new_empty(maps if centered else (0,))
    block = tile("finish" if ready else "small", space, width, sc)
    outer = sizes("O", z.shape[2:])
    fused.finish[(blocks(positions, block["BP"]) * groups,)](
        z, y, cosine, fields.mean, fields.square, rnorm, mean, weight.total, weight.stats, scale,
        gain, positions, space, groups, input.shape[1] // groups, width, sn, sc, sp,
        **sizes("I", input.shape[2:]), OH=outer["OH"], OW=outer["OW"],
        **window(weight.weight, geometry), CENTERED=centered, BIAS=weight.bias is not None,
        RELU=relu, KEEP=keep, SCALE=_scale_kind(scale), RAW=weight.rnorm is not None,
        READY=ready, ONCE=width <= block["BC"], **block,
    )  # fmt: skip
    unit = weight.weight if keep_unit else y.new_empty(0)
    return Kept(y, cosine, rnorm, mean, weight.stats, unit)


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
    (space, positions), width = _space(y), y.shape[1] // groups
    g = torch.empty_like(y, dtype=dtype)
    field = torch.empty_like(kept.rnorm)
    w = dense_rows(weight)
    if kept.unit.numel():
        prepared = Weight(kept.unit, None, kept.weight_stats, None)
    else:
        prepared = _empty_unit(weight, bias, centered, dtype)._replace(stats=kept.weight_stats)
    raw = prepared.rnorm is not None
    units = 0 if raw or kept.unit.numel() else w.shape[0]
    block = _tile(y, space, width, sc)
    programs = blocks(positions, block["BP"])
    partial = y.new_empty((programs, w.shape[0]) if need_scale else (0,), dtype=torch.float32)
    fused.start_grad[(programs * groups + units,)](
        dy, y, kept.rnorm, scale, g, field, partial,
        w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp, units, w[0].numel(),
        CENTERED=centered, BIAS=bias is not None, RELU=relu, COSINE=cosine, RAW=raw,
        SCALE=_scale_kind(scale), DSCALE=need_scale, UNITS=units > 0,
        **block, **row(w, block["num_warps"]),
    )  # fmt: skip
    dscale = like_scale(partial.sum(0), scale) if need_scale else None
    return prepared, Grad(g, field, None, dscale)


def end_grad(
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Kept,
    prepared: Weight,
    step: Grad,
    geometry: Geometry,
    centered: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The correction of dx and the projection of the weights' gradient, in one launch."""
    if dx is None and dw is None:
        return None, None, None
    out = empty_grads(dx, input, None if dw is None else weight, bias)
    rest = (input, weight, bias, kept, prepared, step, geometry, centered)
    _end_grad(dx, dw, db, out, *rest)
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
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Kept,
    prepared: Weight,
    step: Grad,
    geometry: Geometry,
    centered: bool,
) -> Tensor | None:
    """The correction of dx alone."""
    out = empty_grads(dx, input, None, None)
    rest = (input, weight, bias, kept, prepared, step, geometry, centered)
    _end_grad(dx, None, None, out, *rest)
    return out[0]


def project(
    dw: Tensor,
    db: Tensor | None,
    out: tuple[Tensor | None, Tensor | None, Tensor | None],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Kept,
    prepared: Weight,
    step: Grad,
    geometry: Geometry,
    centered: bool,
) -> None:
    """The projection of the weights' gradient alone, into `out`."""
    rest = (input, weight, bias, kept, prepared, step, geometry, centered)
    _end_grad(None, dw, db, out, *rest)


def _end_grad(
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    out: tuple[Tensor | None, Tensor | None, Tensor | None],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Kept,
    prepared: Weight,
    step: Grad,
    geometry: Geometry,
    centered: bool,
) -> None:
    """One launch over the positions of dx and over the units of dw, as far as they are wanted."""
    groups = geometry.groups
    x, (sn, sc, sp) = flat(input)
    (space, positions), depth = _space(x), x.shape[1] // groups
    dx0, (gn, gc, gp) = (x, (sn, sc, sp)) if dx is None else flat(dx)
    w = dense_rows(weight)
    dv = w if dw is None else _like(dw, w)
    units = 0 if dw is None else w.shape[0]
    block = tile("small", space, depth, gc) if dx is None else _tile(x, space, depth, gc)
    programs = 0 if dx is None else blocks(positions, block["BP"]) * groups
    inner = sizes("I", x.shape[2:])
    new_x, new_w, new_b = out
    fused.end_grad[(programs + units,)](
        dx0, x, new_x, step.field, kept.mean, dv, db, w, bias, new_w, new_b, prepared.stats,
        positions, space, groups, depth, sn, sc, sp, gn, gc, gp, units, w[0].numel(),
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
