"""How tensors lie in memory, and the tiles and launch arguments that follow from it.

Tensors are taken as (batch, channels, positions) by three strides, whatever their layout; a tile
is wide in the dimension that is dense in memory.
"""

import math
from collections.abc import Iterable
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


@lru_cache(maxsize=4096)
def _strides_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Strides of batch, channels and flattened positions; None where positions do not flatten."""
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


def flat(x: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
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
def _has_dense_rows(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for stride, length in sorted(
        (s, n) for s, n in zip(strides[1:], shape[1:], strict=True) if n > 1
    ):
        if stride != expected:
            return False
        expected *= length
    return strides[0] == expected or shape[0] == 1


@lru_cache(maxsize=1024)
def _tile(size: int, warps: int, dense: bool, depth: int) -> dict[str, int]:
    if dense:
        channels = min(power(depth), size)
        return {"BP": max(1, min(64, size // channels)), "BC": channels, "num_warps": warps}
    channels = max(1, min(power(depth), size // 128))
    return {"BP": 128, "BC": channels, "num_warps": warps}


def tile(name: str, space: int, depth: int, channel_stride: int) -> dict[str, int]:
    """Positions, channels and warps of a tile, wide where memory is dense."""
    return _tile(*_TILES[name], channel_stride == 1 or space == 1, depth)


def pass_tile(name: str, x: Tensor, depth: int, channel_stride: int) -> dict[str, int]:
    """The tile of a pass over x."""
    space = x.shape[2:].numel()
    return tile(name if x.numel() >= _LARGE else "small", space, depth, channel_stride)


def space_of(x: Tensor) -> tuple[int, int]:
    """Positions of an image, and of all of them."""
    space = x.shape[2:].numel()
    return space, x.shape[0] * space


def scale_kind(scale: Tensor | None) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


def row(weight: Tensor, warps: int = 4) -> dict[str, int]:
    """The block of a weight vector: whole if it fits, so that it is read once."""
    size = power(weight.shape[1:].numel())
    most = MOST_ROW if warps > 1 else MOST_ROW // 8
    return {"WHOLE": size <= most, "BW": min(size, most)}


def blocks(count: int, size: int) -> int:
    """How many blocks of a size it takes."""
    return -(-count // size)


def power(count: int) -> int:
    """The power of two that is not less. (Triton's own takes longer than a launch should.)"""
    return 1 << (count - 1).bit_length()


def three(values: Iterable[int], fill: int) -> list[int]:
    values = list(values)
    return [fill] * (3 - len(values)) + values


@lru_cache(maxsize=1024)
def sizes(name: str, values: tuple[int, ...]) -> dict[str, int]:
    """Spatial sizes as the kernels name them: D, H and W of `name`."""
    return {name + axis: v for axis, v in zip("DHW", three(values, 1), strict=True)}


def window(weight: Tensor, geometry: Geometry) -> dict[str, int]:
    """The taps of a field, and where they lie."""
    stride, padding, dilation, _ = geometry
    return _window(weight.shape[2:], tuple(stride), tuple(padding), tuple(dilation))


@lru_cache(maxsize=1024)
def _window(
    taps: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> dict[str, int]:
    return {
        **sizes("K", taps),
        **sizes("S", stride),
        **sizes("D", dilation),
        **dict(zip(("PD", "PH", "PW"), three(padding, 0), strict=True)),
        "TAPS": power(math.prod(taps)),
    }
