"""How tensors lie in memory, and the tiles and launch arguments that follow from it.

Tensors are taken as (batch, channels, positions) by three strides, whatever their layout; a tile
is wide in the dimension that is dense in memory.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from cosnorm.kernels.steps import Geometry

MOST_ROW = 8192  # entries of a weight vector that are held at once
_LARGE = 1 << 21  # elements from which a pass has tiles of its own
_TILES = {  # elements of a tile, and warps of a program, as measured on an H200
    "small": (4096, 4),  # a launch serves fields and units, or windows and tiles
    "fields": (2048, 1),
    "grads": (1024, 1),
    "finish": (2048, 2),
}

Shape = tuple[int, ...]
Strides = tuple[int, int, int]  # of batch, channels and positions


@lru_cache(maxsize=4096)
def _strides_of(shape: Shape, strides: Shape) -> Strides | None:
    """None where positions do not flatten."""
    step, reach = None, 1
    for size, stride in zip(reversed(shape[2:]), reversed(strides[2:]), strict=True):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * reach:
            return None
        reach *= size
    return strides[0], strides[1], step or 0


def flat(x: Tensor) -> tuple[Tensor, Strides]:
    """x, a copy of it where its positions do not flatten, and its three strides."""
    strides = _strides_of(x.shape, x.stride())
    if strides is None:
        x = x.contiguous()
        strides = _strides_of(x.shape, x.stride())
    assert strides is not None
    return x, strides


def dense_rows(weight: Tensor) -> Tensor:
    """Weights whose rows are dense one after another, in whatever order inside a row."""
    return weight if _has_dense_rows(weight.shape, weight.stride()) else weight.contiguous()


@lru_cache(maxsize=4096)
def _has_dense_rows(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for stride, length in sorted(
        (s, n) for s, n in zip(strides[1:], shape[1:], strict=True) if n > 1
    ):
        if stride != expected:
            return False
        expected *= length
    return strides[0] == expected or shape[0] == 1


def tile(name: str, space: int, depth: int, channel_stride: int) -> dict[str, int]:
    """Positions, channels and warps of a tile, wide where memory is dense."""
    size, warps = _TILES[name]
    if channel_stride == 1 or space == 1:
        channels = min(power(depth), size)
        return {"BP": max(1, min(64, size // channels)), "BC": channels, "num_warps": warps}
    channels = max(1, min(power(depth), size // 128))
    return {"BP": 128, "BC": channels, "num_warps": warps}


def pass_tile(name: str, shape: Shape, depth: int, channel_stride: int) -> dict[str, int]:
    """The tile of a pass over a tensor."""
    large = math.prod(shape) >= _LARGE
    return tile(name if large else "small", math.prod(shape[2:]), depth, channel_stride)


def space_of(shape: Shape) -> tuple[int, int]:
    """Positions of an image, and of all of them."""
    space = math.prod(shape[2:])
    return space, shape[0] * space


def scale_kind(scale: Tensor | None) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


def row(size: int, warps: int) -> dict[str, int]:
    """The block of a weight vector: whole if it fits, so that it is read once."""
    most = MOST_ROW if warps > 1 else MOST_ROW // 8
    return {"WHOLE": power(size) <= most, "BW": min(power(size), most)}


def blocks(count: int, size: int) -> int:
    """How many blocks of a size it takes."""
    return -(-count // size)


def power(count: int) -> int:
    """The power of two that is not less."""
    return 1 << (count - 1).bit_length()


def _three(values: Sequence[int], fill: int) -> list[int]:
    return [fill] * (3 - len(values)) + list(values)


def sizes(name: str, values: Sequence[int]) -> dict[str, int]:
    """Spatial sizes as the kernels name them: D, H and W of `name`."""
    return {name + axis: v for axis, v in zip("DHW", _three(values, 1), strict=True)}


def window(kernel: Shape, geometry: Geometry) -> dict[str, int]:
    """The taps of a field, and where they lie; kernel: the shape of the weights."""
    stride, padding, dilation, _ = geometry
    return {
        **sizes("K", kernel[2:]),
        **sizes("S", stride),
        **sizes("D", dilation),
        **dict(zip(("PD", "PH", "PW"), _three(padding, 0), strict=True)),
        "TAPS": power(math.prod(kernel[2:])),
    }
