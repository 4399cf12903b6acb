"""Sums over the windows of small maps: statistics of receptive fields, and their transpose.

Window by window and dimension by dimension, as a sum of shifted copies: torch.compile fuses it with
what comes before and after.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.reference.numerics import centred_norm, inverse_norm, moments, stats_dtype
from cosnorm.ops.spec import Geometry, Spec


def fields(
    input: Tensor, kernel: Sequence[int], spec: Spec, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """(1/|x|, μx) of each row or receptive field, (N, groups, …); μx for Pearson only."""
    x = input.to(stats_dtype(input.dtype)).unflatten(1, (spec.groups, -1))
    if not spec.centered:
        return lengths(x.square().sum(2), kernel, spec, bias), None
    return centred(*moments(x, 2), x.shape[2], kernel, spec, bias)


def lengths(square: Tensor, kernel: Sequence[int], spec: Spec, bias: bool) -> Tensor:
    """1/|x| of each field; square: Σx² over the channels at each position, (N, groups, …)."""
    geometry = spec.geometry
    if geometry is not None:
        size = geometry.output_size(square.shape[2:], kernel)
        square = _padded(square, geometry)
        for axis, taps in enumerate(kernel):
            square = sum_of(taps_of(square, axis, taps, size[axis], geometry))
    return inverse_norm(square + 1.0 if bias else square)


def centred(
    mean: Tensor, m2: Tensor, count: int, kernel: Sequence[int], spec: Spec, bias: bool
) -> tuple[Tensor, Tensor]:
    """(1/|x-μ|, μ) of each field; mean, m2: μ, Σ(x-μ)² over `count` channels at each position."""
    geometry = spec.geometry
    if geometry is not None:
        size = geometry.output_size(mean.shape[2:], kernel)
        mean, m2 = _padded(mean, geometry), _padded(m2, geometry)
        for axis, taps in enumerate(kernel):
            means = taps_of(mean, axis, taps, size[axis], geometry)
            mean = sum_of(means) / taps
            spread = sum_of([(m - mean).square() for m in means])
            m2 = sum_of(taps_of(m2, axis, taps, size[axis], geometry)) + count * spread
            count *= taps
    return centred_norm(count, mean, m2, bias)


def sum_of(maps: Sequence[Tensor]) -> Tensor:
    total = maps[0]
    for map in maps[1:]:
        total = total + map
    return total


def _padded(map: Tensor, geometry: Geometry) -> Tensor:
    if not any(geometry.padding):
        return map
    return F.pad(map, [p for size in reversed(geometry.padding) for p in (size, size)])


def taps_of(map: Tensor, axis: int, taps: int, size: int, geometry: Geometry) -> list[Tensor]:
    """What each tap of a window sees along an axis, for `size` windows."""
    step, spread = geometry.stride[axis], geometry.dilation[axis]
    if taps == 1 and step == 1:
        return [map]
    return [_every(map.narrow(2 + axis, i * spread, step * (size - 1) + 1), axis, step)
            for i in range(taps)]  # fmt: skip


def _every(map: Tensor, axis: int, step: int) -> Tensor:
    """Each entry of `step` along an axis, from the first."""
    if step == 1:
        return map
    index: list[slice] = [slice(None)] * (2 + axis)
    return map[(*index, slice(None, None, step))]


def scatter(
    map: Tensor, size: Sequence[int], kernel: Sequence[int], geometry: Geometry | None
) -> Tensor:
    """boxᵀ: at each input position the sum of a map over the fields that contain it."""
    if geometry is None:
        return map
    for axis, length in enumerate(size):
        step, spread = geometry.stride[axis], geometry.dilation[axis]
        taps, padding = kernel[axis], geometry.padding[axis]
        if taps == 1 and step == 1 and padding == 0:
            continue
        reach = spread * (taps - 1)
        line = _between(map, axis, step) if step > 1 else map
        # Input position i meets the field of tap t that begins at i + padding - t·spread.
        after = length + padding - line.shape[2 + axis]
        pad = [0, 0] * (map.dim() - 3 - axis) + [reach - padding, after]
        line = F.pad(line, pad)
        map = sum_of([line.narrow(2 + axis, reach - t * spread, length) for t in range(taps)])
    return map


def _between(map: Tensor, axis: int, step: int) -> Tensor:
    """step - 1 zeros after each entry along an axis."""
    apart = map.unsqueeze(3 + axis)
    apart = F.pad(apart, [0, 0] * (map.dim() - 3 - axis) + [0, step - 1])
    return apart.flatten(2 + axis, 3 + axis)
