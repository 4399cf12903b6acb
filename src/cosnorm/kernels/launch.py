"""Launches the Triton passes: the same steps as `plain`, under the same names.

Tensors are taken as (batch, channels, positions) by three strides, whatever their layout; a tile
is wide in the dimension that is dense in memory.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from cosnorm.kernels import fused as _fused
from cosnorm.kernels.plain import like_scale
from cosnorm.kernels.steps import Geometry, Grad, Kept, Weight
from cosnorm.reference import keeps_cosine

fused: Any = _fused  # its functions take launch options that their signatures don't name
Fields = tuple[Tensor, Tensor]  # mean (Pearson only) and Σx² or M2 over the channels

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_TAPS = 128
_WINDOWS = 64  # fields of a program that only sums windows
_MOST_ROW = 8192
_SPLIT = 1 << 24  # elements of a layer from which fields and units have a launch each
_TILES = {  # elements of a tile and warps of a program, by pass, as measured on an H200
    "prepare": (1024, 1),
    "finish": (2048, 2),
    "start_grad": (1024, 1),
    "end_grad": (1024, 1),
    "units": (0, 4),
    "small": (4096, 4),  # fields and units, or windows and tiles, in one launch
}


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


def _strides(x: Tensor) -> tuple[int, int, int] | None:
    """Strides of batch, channels and flattened positions; None where positions do not flatten."""
    step = reach = 0
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size == 1:
            continue
        if step and stride != step * reach:
            return None
        if not step:
            step, reach = stride, 1
        reach *= size
    return x.stride(0), x.stride(1), step


def _flat(x: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    strides = _strides(x)
    if strides is None:
        x = x.contiguous()
        strides = _strides(x)
    assert strides is not None
    return x, strides


def _dense_rows(weight: Tensor) -> Tensor:
    """Weights whose rows are dense one after another, in whatever order inside a row."""
    size = weight[0].numel()
    order = sorted(
        (s, n) for s, n in zip(weight.stride()[1:], weight.shape[1:], strict=True) if n > 1
    )
    expected = 1
    for stride, length in order:
        if stride != expected:
            return weight.contiguous()
        expected *= length
    return weight if weight.stride(0) == size or weight.shape[0] == 1 else weight.contiguous()


def _like(x: Tensor, reference: Tensor) -> Tensor:
    """x in the memory order of `reference`, whose rows are dense."""
    return (
        x
        if x.stride() == reference.stride()
        else torch.empty_like(reference, dtype=x.dtype).copy_(x)
    )


def _pass(name: str, elements: int) -> str:
    return name if elements >= _SPLIT else "small"


def _tile(name: str, space: int, depth: int, channel_stride: int) -> tuple[int, int]:
    """(positions, channels) of a tile, wide where memory is dense."""
    size = _TILES[name][0]
    if channel_stride == 1 or space == 1:
        channels = min(triton.next_power_of_2(depth), size)
        return max(1, min(64, size // channels)), channels
    return 128, max(1, min(triton.next_power_of_2(depth), size // 128))


def _launch(kernel: Any, name: str, fields: int, units: int, *args: Any, **options: Any) -> None:
    """Programs over fields and units: in one launch if small, else in two."""
    parts = [(fields, units)] if name == "small" else [(fields, 0), (0, units)]
    for here, there in parts:
        if here + there:
            warps = _TILES[name if here else "units"][1]
            kernel[(here + there,)](
                *args, FIELDS=here > 0, UNITS=there > 0, num_warps=warps, **options
            )


def _row(weight: Tensor) -> dict[str, int]:
    """The block of a weight vector: whole if it fits, so that it is read once."""
    size = triton.next_power_of_2(weight[0].numel())
    return {"WHOLE": size <= _MOST_ROW, "BW": min(size, _MOST_ROW)}


def _three(values, fill: int) -> list[int]:
    values = list(values)
    return [fill] * (3 - len(values)) + values


def _shape(weight: Tensor, geometry: Geometry) -> dict[str, int]:
    names = {
        "K": _three(weight.shape[2:], 1),
        "S": _three(geometry.stride, 1),
        "P": _three(geometry.padding, 0),
        "D": _three(geometry.dilation, 1),
    }
    return {n + axis: v for n, sizes in names.items() for axis, v in zip("DHW", sizes, strict=True)}


def _taps(weight: Tensor) -> int:
    return triton.next_power_of_2(weight[0, 0].numel())


def prepare(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Weight, Fields]:
    """Channel statistics of the input, and unit weights."""
    prepared = _empty_unit(weight, bias, centered, dtype)
    return prepared, _prepare(input, weight, bias, prepared, geometry, centered, weight.shape[0])


def fields(input: Tensor, weight: Weight, geometry: Geometry, centered: bool) -> Fields:
    """Channel statistics alone, for weights that are units already."""
    return _prepare(input, weight.weight, weight.bias, weight, geometry, centered, 0)


def _prepare(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prepared: Weight,
    geometry: Geometry,
    centered: bool,
    units: int,
) -> Fields:
    x, (sn, sc, sp) = _flat(input)
    groups = geometry.groups
    space, depth = x[0, 0].numel(), x.shape[1] // groups
    maps = (x.shape[0], groups, *x.shape[2:])
    square = x.new_empty(maps, dtype=torch.float32)
    mean = x.new_empty(maps if centered else (0,), dtype=torch.float32)
    w = _dense_rows(weight)
    name = _pass("prepare", x.numel())
    bp, bc = _tile(name, space, depth, sc)
    positions = x.shape[0] * space
    _launch(
        fused.prepare, name, triton.cdiv(positions, bp) * groups, units,
        x, mean, square, w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        positions, space, groups, depth, sn, sc, sp, units, w[0].numel(),
        CENTERED=centered, BIAS=bias is not None, EXACT=depth & (depth - 1) == 0,
        BP=bp, BC=bc, **_row(w),
    )  # fmt: skip
    return mean, square


def _empty_unit(
    weight: Tensor,
    bias: Tensor | None,
    centered: bool,
    dtype: torch.dtype,
    stats: Tensor | None = None,
) -> Weight:
    w, units = _dense_rows(weight), weight.shape[0]
    return Weight(
        torch.empty_like(w, dtype=dtype),
        None if bias is None else torch.empty_like(bias, dtype=dtype),
        w.new_empty((2, units), dtype=torch.float32) if stats is None else stats,
        w.new_empty(units, dtype=torch.float32) if centered else None,
    )


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
) -> Kept:
    """One launch over the product, which becomes the output where dtypes are equal."""
    z, (sn, sc, sp) = _flat(product)
    groups = geometry.groups
    space, width = z[0, 0].numel(), z.shape[1] // groups
    y = z if z.dtype == input.dtype else torch.empty_like(z, dtype=input.dtype)
    cosine = torch.empty_like(y) if keep else y.new_empty(0)
    maps = (z.shape[0], groups, *z.shape[2:])
    rnorm = z.new_empty(maps, dtype=torch.float32)
    mean = z.new_empty(maps if centered else (0,), dtype=torch.float32)
    mean_map, square_map = fields
    name = _pass("finish", z.numel())
    bp, bc = _tile(name, space, width, sc)
    positions = z.shape[0] * space
    inner = dict(zip(("ID", "IH", "IW"), _three(input.shape[2:], 1), strict=True))
    outer = dict(zip(("OH", "OW"), _three(z.shape[2:], 1)[1:], strict=True))
    places = {**inner, **outer, **_shape(weight.weight, geometry), "TAPS": _taps(weight.weight)}
    flags = {"CENTERED": centered, "BIAS": weight.bias is not None}
    ready = name != "small"
    if ready:
        fused.windows[(triton.cdiv(rnorm.numel(), _WINDOWS),)](
            mean_map, square_map, rnorm, mean, rnorm.numel(), space, groups,
            input.shape[1] // groups, **places, **flags, BP=_WINDOWS, num_warps=4,
        )  # fmt: skip
    fused.finish[(triton.cdiv(positions, bp) * groups,)](
        z, y, cosine, mean_map, square_map, rnorm, mean, weight.total, scale,
        gain, positions, space, groups, input.shape[1] // groups, width, sn, sc, sp,
        **places, **flags, RELU=relu, KEEP=keep, SCALE=_scale_kind(scale), READY=ready,
        BP=bp, BC=bc, num_warps=_TILES[name][1],
    )  # fmt: skip
    return Kept(y, cosine, rnorm, mean, weight.stats)


def _scale_kind(scale: Tensor | None) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


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
    """One launch: g and s from dy, and the unit weights again."""
    cosine = keeps_cosine(scale, relu)
    y, (sn, sc, sp) = _flat(kept.cosine if cosine else kept.output)
    dy, (gn, gc, gp) = _flat(grad)
    groups, units = kept.rnorm.shape[1], weight.shape[0]
    space, width = y[0, 0].numel(), y.shape[1] // groups
    g = torch.empty_like(y, dtype=dtype)
    field = torch.empty_like(kept.rnorm)
    prepared = _empty_unit(weight, bias, centered, dtype, kept.weight_stats)
    w = _dense_rows(weight)
    name = _pass("start_grad", y.numel())
    bp, bc = _tile(name, space, width, sc)
    positions = y.shape[0] * space
    blocks = triton.cdiv(positions, bp)
    partial = y.new_empty((blocks, units) if need_scale else (0,), dtype=torch.float32)
    _launch(
        fused.start_grad, name, blocks * groups, units,
        dy, y, kept.rnorm, scale, g, field, partial,
        w, bias, prepared.weight, prepared.bias, prepared.stats, prepared.total,
        gain, positions, space, groups, width, sn, sc, sp, gn, gc, gp, units, w[0].numel(),
        CENTERED=centered, BIAS=bias is not None, RELU=relu, COSINE=cosine,
        SCALE=_scale_kind(scale), DSCALE=need_scale, BP=bp, BC=bc, **_row(w),
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
    """One launch: the correction of dx and the projection of the weights' gradient."""
    if dx is None and dw is None:
        return None, None, None
    groups = geometry.groups
    x, (sn, sc, sp) = _flat(input)
    space, depth = x[0, 0].numel(), x.shape[1] // groups
    dx0, (gn, gc, gp) = (x, (sn, sc, sp)) if dx is None else _flat(dx)
    out = dx0 if dx is None or dx.dtype == input.dtype else torch.empty_like(dx0, dtype=x.dtype)
    w = _dense_rows(weight)
    units = 0 if dw is None else weight.shape[0]
    dv = w if dw is None else _like(dw, w)
    new_w = w if dw is None else torch.empty_like(w)
    new_b = None if bias is None or dw is None else torch.empty_like(bias)
    name = _pass("end_grad", x.numel())
    bp, bc = _tile(name, space, depth, gc)
    positions = 0 if dx is None else x.shape[0] * space
    fields = _three(step.field.shape[2:], 1)
    inner = dict(zip(("IH", "IW"), _three(x.shape[2:], 1)[1:], strict=True))
    outer = dict(zip(("OD", "OH", "OW"), fields, strict=True))
    _launch(
        fused.end_grad, name, triton.cdiv(positions, bp) * groups, units,
        dx0, x, out, step.field, kept.mean,
        dv, db, w, bias, new_w, new_b, prepared.stats,
        positions, space, groups, depth, sn, sc, sp, gn, gc, gp, units, w[0].numel(),
        **inner, **outer, **_shape(weight, geometry),
        CENTERED=centered, BIAS=bias is not None, TAPS=_taps(weight), BP=bp, BC=bc, **_row(w),
    )  # fmt: skip
    return None if dx is None else out, None if dw is None else new_w, new_b
