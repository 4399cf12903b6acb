"""How tensors lie in memory, and the tiles and launch arguments that follow from it.

Tensors are taken as (batch, channels, positions) by three strides, whatever their layout; a tile
is wide in the dimension that is dense in memory.
"""

from collections.abc import Iterable

import triton
from torch import Tensor

from cosnorm.kernels.steps import Geometry

MOST_ROW = 8192  # entries of a weight vector that are held at once
_TILES = {  # elements of a tile, and warps of a program, as measured on an H200
    "small": (4096, 4),  # a launch serves fields and units, or windows and tiles
    "fields": (1024, 1),
    "finish": (2048, 2),
}


def strides_of(x: Tensor) -> tuple[int, int, int] | None:
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


def flat(x: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """x, a copy of it where its positions do not flatten, and its three strides."""
    strides = strides_of(x)
    if strides is None:
        x = x.contiguous()
        strides = strides_of(x)
    assert strides is not None
    return x, strides


def dense_rows(weight: Tensor) -> Tensor:
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


def tile(name: str, space: int, depth: int, channel_stride: int) -> dict[str, int]:
    """Positions, channels and warps of a tile, wide where memory is dense."""
    size, warps = _TILES[name]
    if channel_stride == 1 or space == 1:
        channels = min(triton.next_power_of_2(depth), size)
        return {"BP": max(1, min(64, size // channels)), "BC": channels, "num_warps": warps}
    channels = max(1, min(triton.next_power_of_2(depth), size // 128))
    return {"BP": 128, "BC": channels, "num_warps": warps}


def row(weight: Tensor, warps: int = 4) -> dict[str, int]:
    """The block of a weight vector: whole if it fits, so that it is read once."""
    size = triton.next_power_of_2(weight[0].numel())
    most = MOST_ROW if warps > 1 else MOST_ROW // 8
    return {"WHOLE": size <= most, "BW": min(size, most)}


def three(values: Iterable[int], fill: int) -> list[int]:
    values = list(values)
    return [fill] * (3 - len(values)) + values


def sizes(name: str, values: Iterable[int]) -> dict[str, int]:
    """Spatial sizes as the kernels name them: D, H and W of `name`."""
    return {name + axis: v for axis, v in zip("DHW", three(values, 1), strict=True)}


def window(weight: Tensor, geometry: Geometry) -> dict[str, int]:
    """The taps of a field, and where they lie."""
    padding = dict(zip(("PD", "PH", "PW"), three(geometry.padding, 0), strict=True))
    return {
        **sizes("K", weight.shape[2:]),
        **sizes("S", geometry.stride),
        **sizes("D", geometry.dilation),
        **padding,
        "TAPS": triton.next_power_of_2(weight[0, 0].numel()),
    }
