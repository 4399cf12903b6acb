"""Every constant that was measured, and what a layer's sizes mean for its tiles.

Measured on an H200. Tiles are few on purpose: a kernel is compiled for each.
"""

from typing import NamedTuple

ELEMENTS = {
    "prepare": 4096, "finish": 2048, "start_grad": 2048, "spread": 2048, "end_grad": 2048,
    "end_lean": 1024, "normalise": 2048, "renormalise": 4096, "end_early": 2048,
}  # of a tile  # fmt: skip
WARPS = 4
ROW = 2048  # entries of a weight vector that are read at once
POSITIONS = 128  # of a tile whose positions are dense in memory
WINDOW = 4096  # positions times taps of a tile whose third dimension is the window; with more,
# registers spill, and the compiler takes minutes
FEW = 32  # channels of a group below which a tile takes many groups
SHARED = 64  # channels, at most, of a tile that leaves shares of what is summed over positions


class Tile(NamedTuple):
    BP: int
    BC: int


def power(count: int) -> int:
    """The power of two that is not less."""
    return 1 << max(count - 1, 0).bit_length()


def tile(name: str, last: bool, lanes: bool, groups: int, width: int) -> Tile:
    """Positions and channels of a pass over groups of `width` channels."""
    size = ELEMENTS[name]
    if lanes:
        columns = min(power(groups), 64)
        return Tile(size // columns, columns)
    if not last:
        positions = POSITIONS if width > 1 else size // 2
        return Tile(positions, min(power(width), size // positions))
    columns = 4 if width <= 4 else 16 if width <= 16 else 64 if width <= 128 else 256
    return Tile(size // columns if columns > 4 else 256, columns)


def sharing(tile: Tile) -> Tile:
    """A tile of as many elements with more positions: one share for each channel of a tile."""
    columns = min(tile.BC, SHARED)
    return Tile(tile.BP * tile.BC // columns, columns)
