"""MATLAB 5 files, read in order and in small blocks, so that memory holds the result and no more.

A file is 128 bytes of header and then elements: a type, a size in bytes, the content. A matrix
element holds sub-elements: flags, dimensions, name, and the values in column-major order; it may
lie inside an element that is a zlib stream. (scipy reads such a file too, but holds the inflated
stream and its transposed copy at once: three times the size of the images.)
"""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cosnorm.study.data.errors import damaged

MATRIX, COMPRESSED = 14, 15
STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
NUMERIC_CLASSES = range(6, 16)  # double, single and the integer classes
BLOCK = 1 << 20
MOST_INFLATION = 1032  # deflate cannot expand further


@dataclass
class Variable:
    """A numeric array about to be read: its name, its shape and the type of its stored values."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    _source: "_Source"
    _nbytes: int

    @property
    def size(self) -> int:
        """How many values there are."""
        return self._nbytes // self.dtype.itemsize

    def blocks(self, values: int) -> Iterator[np.ndarray]:
        """The values in file order (first axis fastest), `values` at a time; once only."""
        left = self._nbytes
        while left:
            size = min(left, values * self.dtype.itemsize)
            yield np.frombuffer(self._source.read(size), self.dtype)
            left -= size


def variables(path: Path) -> Iterator[Variable]:
    """Each numeric array of the file, in order; read its blocks before asking for the next."""
    try:
        with path.open("rb") as file:
            order = _file_header(file, path)
            while head := file.read(8):
                yield from _element(file, head, order, path)
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error


def _file_header(file: BinaryIO, path: Path) -> str:
    header = file.read(128)
    if len(header) < 128 or header[126:128] not in (b"IM", b"MI"):
        raise damaged(path, "not a MATLAB 5 file (bytes 126 and 127 are not its mark)")
    return "<" if header[126:128] == b"IM" else ">"


def _element(file: BinaryIO, head: bytes, order: str, path: Path) -> Iterator[Variable]:
    if len(head) < 8:
        raise damaged(path, "truncated between two variables")
    kind, size = struct.unpack(f"{order}II", head)
    end = file.tell() + size
    if end > path.stat().st_size:
        raise damaged(path, f"truncated: a variable should end at byte {end:,}")
    if kind == COMPRESSED:
        inflated = _Inflated(file, size, path)
        kind, _ = struct.unpack(f"{order}II", inflated.read(8))
        if kind == MATRIX:
            yield from _matrix(inflated, order, path, room=MOST_INFLATION * size)
    elif kind == MATRIX:
        yield from _matrix(_Plain(file, size, path), order, path, room=size)
    file.seek(end)


def _matrix(source: "_Source", order: str, path: Path, room: int) -> Iterator[Variable]:
    flags = _small(source, order, path)
    array_class = struct.unpack(f"{order}I", flags[:4])[0] & 0xFF if len(flags) >= 4 else 0
    if array_class not in NUMERIC_CLASSES:
        source.skip_rest()
        return
    raw_shape = _small(source, order, path)
    if len(raw_shape) % 4:
        raise damaged(path, f"a shape of {len(raw_shape)} bytes is not a row of 32-bit numbers")
    shape = struct.unpack(f"{order}{len(raw_shape) // 4}i", raw_shape)
    name = _small(source, order, path).decode("latin-1")
    kind, nbytes, rest = _tag(source, order, path)
    dtype = np.dtype(f"{order}{STORED[kind]}") if kind in STORED else None
    if dtype is None or min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != nbytes:
        raise damaged(path, f"variable {name!r} of shape {shape} does not fit its {nbytes:,} bytes")
    if nbytes > room:
        raise damaged(
            path, f"variable {name!r} promises {nbytes:,} bytes, more than the file holds"
        )
    values = _Held(rest[:nbytes]) if rest else source
    yield Variable(name, shape, dtype, values, nbytes)
    source.skip_rest()


def _tag(source: "_Source", order: str, path: Path) -> tuple[int, int, bytes]:
    """Type and size of a sub-element; content of up to four bytes sits inside the tag itself."""
    head = source.read(8)
    word, size = struct.unpack(f"{order}II", head)
    if word >> 16:
        if word >> 16 > 4:
            raise damaged(path, "a short element claims more than four bytes")
        return word & 0xFFFF, word >> 16, head[4:]
    return word, size, b""


def _small(source: "_Source", order: str, path: Path) -> bytes:
    """A short sub-element, such as the name, with the padding to eight bytes taken off."""
    _, size, held = _tag(source, order, path)
    if held:
        return held[:size]
    if size > 4096:
        raise damaged(path, f"a name or shape of {size:,} bytes is not plausible")
    return source.read(-size % 8 + size)[:size]


class _Source:
    """Bytes in order; asking for more than there are is a truncated file."""

    def read(self, size: int) -> bytes:
        raise NotImplementedError

    def skip_rest(self) -> None:
        """Pass over what this variable has left, where that has to be checked."""


class _Held(_Source):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        taken, self._content = self._content[:size], self._content[size:]
        return taken


class _Plain(_Source):
    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self._file, self._left, self._path = file, size, path

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise damaged(self._path, "a variable is longer than its element")
        self._left -= size
        return self._file.read(size)


class _Inflated(_Source):
    """The zlib stream of one compressed element, inflated as it is asked for."""

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self._file, self._left, self._path = file, size, path
        self._inflate = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        parts, wanted = [], size
        while wanted:
            part = self._more(wanted)
            if not part and self._inflate.eof:
                raise damaged(self._path, "its compressed data ends too early")
            parts.append(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _more(self, most: int) -> bytes:
        packed = self._inflate.unconsumed_tail
        if not packed:
            packed = self._file.read(min(BLOCK, self._left))
            self._left -= len(packed)
            if not packed and not self._inflate.eof:
                # Output may still be waiting inside the decompressor after the last input byte.
                if rest := self._inflate.decompress(b"", most):
                    return rest
                raise damaged(self._path, "its compressed data ends too early")
        try:
            return self._inflate.decompress(packed, most)
        except zlib.error as error:
            raise damaged(self._path, f"its compressed data is broken ({error})") from error

    def skip_rest(self) -> None:
        """Inflate to the end, so that zlib checks its own sum over everything that was read."""
        while not self._inflate.eof:
            self._more(BLOCK)
