"""Sums over the windows of small maps: statistics of receptive fields, and their transpose.

Dimension by dimension. A compiler gets a sum of shifted copies, which it fuses with what comes
before and after. Otherwise every copy is a pass, and windows grow by doubling: of two taps from
those of one, of four from those of two, so that seven taps take four passes and not six.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
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
    return centred(Moments(*moments(x, 2), x.shape[2]), kernel, spec, bias)


def lengths(square: Tensor, kernel: Sequence[int], spec: Spec, bias: bool) -> Tensor:
    """1/|x| of each field; square: Σx² over the channels at each position, (N, groups, …)."""
    geometry = spec.geometry
    if geometry is not None:
        size = geometry.output_size(square.shape[2:], kernel)
        square = _padded(square, geometry)
        for axis, taps in enumerate(kernel):
            square = _sums(square, axis, taps, size[axis], geometry)
    return inverse_norm(square + 1.0 if bias else square)


class Moments(NamedTuple):
    """Of windows: μ, Σ(x-μ)² (None: of single entries, 0), and how many entries each has."""

    mean: Tensor
    m2: Tensor | None
    entries: int

    def narrow(self, dim: int, start: int, length: int) -> "Moments":
        m2 = None if self.m2 is None else self.m2.narrow(dim, start, length)
        return Moments(self.mean.narrow(dim, start, length), m2, self.entries)


def centred(
    moments: Moments, kernel: Sequence[int], spec: Spec, bias: bool
) -> tuple[Tensor, Tensor]:
    """(1/|x-μ|, μ) of each field; moments: over the channels at each position."""
    geometry = spec.geometry
    if geometry is not None:
        mean, m2, count = moments
        size = geometry.output_size(mean.shape[2:], kernel)
        m2 = None if m2 is None else _padded(m2, geometry)
        moments = Moments(_padded(mean, geometry), m2, count)
        for axis, taps in enumerate(kernel):
            moments = _merged(moments, axis, taps, size[axis], geometry)
    mean, m2, count = moments
    return centred_norm(count, mean, torch.zeros_like(mean) if m2 is None else m2, bias)


def _merged(moments: Moments, axis: int, taps: int, size: int, geometry: Geometry) -> Moments:
    """The moments of all entries in each window along an axis."""
    if _doubles(axis, geometry):
        return _doubled(moments, 2 + axis, taps, size, geometry.dilation[axis], _joined)
    mean, m2, count = moments
    means = taps_of(mean, axis, taps, size, geometry)
    mean = sum_of(means) / taps
    spread = count * sum_of([(m - mean).square() for m in means])
    if m2 is not None:
        spread = sum_of(taps_of(m2, axis, taps, size, geometry)) + spread
    return Moments(mean, spread, count * taps)


def _joined(one: Moments, other: Moments) -> Moments:
    """The moments of two windows' entries together."""
    count = one.entries + other.entries
    apart = other.mean - one.mean
    mean = torch.add(one.mean, apart, alpha=other.entries / count)
    share = one.entries * other.entries / count
    if one.m2 is None and other.m2 is None:
        return Moments(mean, apart.square_().mul_(share), count)
    m2 = one.m2 if other.m2 is None else other.m2 if one.m2 is None else one.m2 + other.m2
    assert m2 is not None
    return Moments(mean, torch.addcmul(m2, apart, apart, value=share), count)


def _sums(map: Tensor, axis: int, taps: int, size: int, geometry: Geometry) -> Tensor:
    """The sum of what the taps of each window see along an axis."""
    if _doubles(axis, geometry):
        return _doubled(map, 2 + axis, taps, size, geometry.dilation[axis], torch.add)
    return sum_of(taps_of(map, axis, taps, size, geometry))


def _doubles(axis: int, geometry: Geometry) -> bool:
    """Whether windows grow by doubling: where they overlap, and no compiler looks on."""
    return geometry.stride[axis] == 1 and not torch.compiler.is_compiling()


Windows = TypeVar("Windows", Tensor, Moments)


def _doubled(
    one: Windows,
    dim: int,
    taps: int,
    size: int,
    spread: int,
    join: Callable[[Windows, Windows], Windows],
) -> Windows:
    """What is known of `size` windows of `taps` entries, `spread` apart, from that of single ones.

    Taps are counted in binary: `part` is of 1, 2, 4, … of them, `whole` of those met so far, which
    the next part stands behind.
    """
    length = size + spread * (taps - 1)
    part, width, whole, met = one, 1, None, 0
    while True:
        if taps & width:
            left = length - spread * (met + width - 1)
            behind = part.narrow(dim, spread * met, left)
            whole = behind if whole is None else join(whole.narrow(dim, 0, left), behind)
            met += width
            if met == taps:
                return whole
        left = length - spread * (2 * width - 1)
        part = join(part.narrow(dim, 0, left), part.narrow(dim, spread * width, left))
        width *= 2


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
        if torch.compiler.is_compiling():
            map = sum_of([line.narrow(2 + axis, reach - t * spread, length) for t in range(taps)])
        else:
            map = _doubled(line, 2 + axis, taps, length, spread, torch.add)
    return map


def _between(map: Tensor, axis: int, step: int) -> Tensor:
    """step - 1 zeros after each entry along an axis."""
    apart = map.unsqueeze(3 + axis)
    apart = F.pad(apart, [0, 0] * (map.dim() - 3 - axis) + [0, step - 1])
    return apart.flatten(2 + axis, 3 + axis)
