"""numpy's files, .npy and .npz, of which nothing is unpickled and no size believed."""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np

from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.memory import ask_memory

ALONE = ""  # the name of the array of an .npy file, which has none


class Header(NamedTuple):
    """What an array says of itself before it is read."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


Headers = dict[str, Header]


def stored_bytes(headers: Headers) -> int:
    """The memory for arrays that are used as they are stored."""
    return sum(header.nbytes for header in headers.values())


def read_arrays(
    path: Path,
    choose: Callable[[list[str]], list[str]],
    remedy: str,
    needed: Callable[[Headers], int] = stored_bytes,
) -> dict[str, np.ndarray]:
    """The arrays of an .npz that `choose` takes from their names; of an .npy the one, as `ALONE`.

    What the arrays say of their sizes is held against the file, and the bytes `needed` to read and
    use them against the memory, before any is expanded. All that can go wrong is a `DataError`
    with the remedy.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(2)  # numpy would take any other beginning for a pickle
            stream.seek(0)
            if start == b"\x93N":
                _ask(path, {ALONE: _header(stream, path.stat().st_size)}, needed)
                stream.seek(0)
                return {ALONE: np.lib.format.read_array(stream, allow_pickle=False)}
            if start != b"PK":
                raise damaged(path, "it is no .npy or .npz file", remedy)
            return _members(path, stream, choose, needed)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except Exception as error:  # a damaged zip can go wrong in nearly any way
        raise damaged(path, f"its arrays cannot be read ({_fault(error)})", remedy) from error


def _members(
    path: Path,
    stream: BinaryIO,
    choose: Callable[[list[str]], list[str]],
    needed: Callable[[Headers], int],
) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(stream) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers: Headers = {}
        for name in choose(list(members)):
            with archive.open(members[name]) as content:
                headers[name] = _header(content, members[name].file_size)
        _ask(path, headers, needed)
        arrays = {}
        for name in headers:
            with archive.open(members[name]) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
                content.read(1)  # at the end, where zip compares its own sum
        return arrays


def _ask(path: Path, headers: Headers, needed: Callable[[Headers], int]) -> None:
    ask_memory(path, needed(headers), "its arrays", "give fewer rows, or images as uint8")


def _header(stream: IO[bytes], size: int) -> Header:
    """The header of an array; one that promises more than its `size` bytes hold is refused."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    header = Header(*read(stream))
    if not header.dtype.hasobject and header.nbytes > size:
        raise ValueError(
            f"{header.dtype} of shape {header.shape} is more than its {size:,} bytes can hold"
        )
    return header


def _fault(error: Exception) -> str:
    """What numpy says of arrays that it cannot read, less its advice to unpickle them."""
    told = str(error) or type(error).__name__
    return "it holds Python objects, which are never loaded" if "pickle" in told else told
