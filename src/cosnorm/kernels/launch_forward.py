"""Launches the passes of forward; see `launch`."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cosnorm.kernels import passes
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
from cosnorm.kernels.steps import Geometry, Kept, Weight, output_size

_WINDOWS = 64  # fields of a program that only sums windows


class Fields(NamedTuple):
    """Statistics over the channels of each position, and where they have been summed, of fields."""

    mean: Tensor  # Pearson only, as is the last
    square: Tensor  # Σx², or M2
    rnorm: Tensor | None = None
    centre: Tensor | None = None


def prepare(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Weight, Fields]:
    """Channel statistics of the input, and unit weights, in one launch."""
    prepared = empty_unit(weight, bias, centered, dtype)
    found = _empty_fields(input, geometry.groups, centered)
    _prepare(input, found, geometry.groups, weight, bias, prepared, centered)
    return prepared, found


def units(
    weight: Tensor, bias: Tensor | None, centered: bool, dtype: torch.dtype, norms: bool = True
) -> Weight:
    """Unit weights alone. Without `norms`, those multiplied as they are leave theirs for later."""
    prepared = empty_unit(weight, bias, centered, dtype)
    if norms or prepared.rnorm is None:
        _prepare(weight, None, 1, weight, bias, prepared, centered)
    return prepared


def fields(input: Tensor, weight: Weight, geometry: Geometry, centered: bool) -> Fields:
    """Channel statistics alone, for weights that are units already."""
    found = _empty_fields(input, geometry.groups, centered)
    _prepare(input, found, geometry.groups, None, weight.bias, weight, centered)
    return found


def empty_fields(
    input: Tensor, weight: Weight, geometry: Geometry, centered: bool, known: Fields | None
) -> Fields:
    """Where `fields_beside` is to write; known: statistics of the channels, if there are any."""
    found = known or _empty_fields(input, geometry.groups, centered)
    maps = (
        input.shape[0],
        geometry.groups,
        *output_size(input.shape[2:], weight.weight.shape[2:], geometry),
    )
    rnorm = found.square.new_empty(maps)
    return found._replace(rnorm=rnorm, centre=rnorm.new_empty(maps if centered else (0,)))


def fields_beside(
    input: Tensor, weight: Weight, found: Fields, geometry: Geometry, centered: bool, known: bool
) -> None:
    """Statistics of channels and of fields; norms of weights that are multiplied as they are."""
    raw = None if weight.rnorm is None else weight.weight
    if raw is not None or not known:
        channels = None if known else found
        _prepare(input, channels, geometry.groups, raw, weight.bias, weight, centered)
    _windows(input, found, weight, geometry, centered)


def empty_unit(weight: Tensor, bias: Tensor | None, centered: bool, dtype: torch.dtype) -> Weight:
    """Where unit weights go; cosines of weights in the dtype of the product need none."""
    w = dense_rows(weight)
    stats = w.new_empty((2, weight.shape[0]), dtype=torch.float32)
    if not centered and weight.dtype == dtype:
        return Weight(w, bias, stats, None, stats[0])
    v, vb = torch.empty_like(w, dtype=dtype), None
    if bias is not None:
        vb = torch.empty_like(bias, dtype=dtype)
    return Weight(v, vb, stats, stats.new_empty(weight.shape[0]) if centered else None)


def _empty_fields(input: Tensor, groups: int, centered: bool) -> Fields:
    maps = (input.shape[0], groups, *input.shape[2:])
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
    x, strides = flat(input)
    mean, square = (prepared.stats, prepared.stats) if found is None else found[:2]
    w = prepared.weight if weight is None else dense_rows(weight)
    launch = _plan_prepare(
        x.shape, strides, groups, found is not None, w.shape, weight is not None, bias is not None,
        prepared.rnorm is not None, centered,
    )  # fmt: skip
    launch(x, mean, square, w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total)


@plan
def _plan_prepare(
    shape: Shape,
    strides: Strides,
    groups: int,
    fields: bool,
    rows: Shape,
    units: bool,
    bias: bool,
    raw: bool,
    centered: bool,
) -> Launch:
    (space, positions), depth = space_of(shape), shape[1] // groups
    if fields:
        block = pass_tile("fields", shape, depth, strides[1])
    else:
        block = tile("small", space, depth, strides[1])
    programs = blocks(positions, block["BP"]) * groups if fields else 0
    count, size = rows[0] if units else 0, math.prod(rows[1:])
    return passes.prepare(
        programs + count, positions, space, groups, depth, *strides, count, size,
        CENTERED=centered, BIAS=bias, FIELDS=programs > 0, UNITS=count > 0, RAW=raw,
        EXACT=depth & (depth - 1) == 0, **block, **row(size, block["num_warps"]),
    )  # fmt: skip


def _windows(
    input: Tensor, found: Fields, weight: Weight, geometry: Geometry, centered: bool
) -> None:
    rnorm = found.rnorm
    assert rnorm is not None
    launch = _plan_windows(
        input.shape, rnorm.shape, weight.weight.shape, geometry, centered, weight.bias is not None
    )
    launch(found.mean, found.square, rnorm, found.centre)


@plan
def _plan_windows(
    shape: Shape, maps: Shape, kernel: Shape, geometry: Geometry, centered: bool, bias: bool
) -> Launch:
    count, outer = math.prod(maps), sizes("O", maps[2:])
    return passes.windows(
        blocks(count, _WINDOWS), count, math.prod(maps[2:]), geometry.groups,
        shape[1] // geometry.groups, **sizes("I", shape[2:]), OH=outer["OH"], OW=outer["OW"],
        **window(kernel, geometry), CENTERED=centered, BIAS=bias, BP=_WINDOWS, num_warps=4,
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
    tell: bool = False,
) -> tuple[Kept, Fields | None]:
    """One launch over the product, which becomes the output where dtypes are equal.

    tell: statistics of the output's channels as well, for the layer after it.
    """
    z, strides = flat(product)
    groups = geometry.groups
    y = z if z.dtype == input.dtype else torch.empty_like(z, dtype=input.dtype)
    cosine = torch.empty_like(y) if keep else y.new_empty(0)
    rnorm, mean = fields.rnorm, fields.centre
    ready = rnorm is not None
    if rnorm is None or mean is None:
        maps = (z.shape[0], groups, *z.shape[2:])
        rnorm = z.new_empty(maps, dtype=torch.float32)
        mean = rnorm.new_empty(maps if centered else (0,))
    launch, once = _plan_finish(
        z.shape, strides, input.shape, weight.weight.shape, geometry, scale_kind(scale),
        centered, weight.bias is not None, relu, keep, weight.rnorm is not None, ready, tell,
    )  # fmt: skip
    after = _empty_fields(y, 1, centered) if tell else None
    told = (None, None) if after is None else after[:2]
    launch(
        z, y, cosine, fields.mean, fields.square, rnorm, mean, weight.total, weight.stats, scale,
        *told, gain,
    )  # fmt: skip
    if after is not None and not once:
        _prepare(y, after, 1, None, None, weight, centered)
    unit = weight.weight if keep_unit else y.new_empty(0)
    return Kept(y, cosine, rnorm, mean, weight.stats, unit), after


@plan
def _plan_finish(
    shape: Shape,
    strides: Strides,
    inner: Shape,
    kernel: Shape,
    geometry: Geometry,
    scale: int,
    centered: bool,
    bias: bool,
    relu: bool,
    keep: bool,
    raw: bool,
    ready: bool,
    tell: bool,
) -> tuple[Launch, bool]:
    """The launch, and whether a tile holds all channels, so that it can tell of them."""
    groups = geometry.groups
    (space, positions), width = space_of(shape), shape[1] // groups
    block = tile("finish" if ready else "small", space, width, strides[1])
    once, outer = width <= block["BC"], sizes("O", shape[2:])
    launch = passes.finish(
        blocks(positions, block["BP"]) * groups,
        positions, space, groups, inner[1] // groups, width, *strides,
        **sizes("I", inner[2:]), OH=outer["OH"], OW=outer["OW"], **window(kernel, geometry),
        CENTERED=centered, BIAS=bias, RELU=relu, KEEP=keep, SCALE=scale, RAW=raw, READY=ready,
        ONCE=once, NEXT=once and tell, EXACT=width & (width - 1) == 0, **block,
    )  # fmt: skip
    return launch, once
