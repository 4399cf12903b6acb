"""Unpacking a tar archive that is not trusted.

Only plain files and folders are written, and only below the target: a member whose name climbs
out, or that is a link, a device or a pipe, condemns the whole archive. What a header says of its
own length is bounded before it is believed: a few packed megabytes can unfold to gigabytes.
"""

import errno
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from cosnorm.study.data.errors import DataError, damaged

MOST_BYTES = 4 << 30
MOST_MEMBERS = 100_000
MOST_HEADER = 1 << 16  # bytes of a long name or a record of further fields
MOST_HEADERS = 64 << 20  # bytes of all headers together


def unpack(archive: Path, target: Path, most_bytes: int = MOST_BYTES) -> None:
    """Unpack a .tar.gz into the empty folder `target`.

    Raises DataError at the first member that is not a plain file or folder below `target`, when
    the content exceeds `most_bytes`, or when the archive is damaged; the caller then drops
    `target`, which must not be in use under its final name.
    """
    try:
        with gzip.open(archive) as stream:
            bounded = _Bounded(stream, most_bytes)
            with tarfile.open(fileobj=bounded, mode="r:") as tar:
                _unpack_members(tar, bounded, archive, target, most_bytes)
            while bounded.read(MOST_HEADER):  # to the end, where gzip keeps its own sum
                pass
    except (DataError, _DiskError):
        raise
    except Exception as error:  # a damaged archive can go wrong in nearly any way
        raise damaged(archive, f"not a whole .tar.gz archive ({error})") from error


class _DiskError(OSError):
    """What the disk answered, not the archive."""


class _Bounded(io.BufferedIOBase):
    """A stream that refuses to hand out more than a tar archive of this size can need."""

    def __init__(self, stream: gzip.GzipFile, most_bytes: int) -> None:
        self._stream, self._left = stream, most_bytes + MOST_HEADERS
        self._headers = MOST_HEADERS
        self._is_content = False

    @contextmanager
    def content(self) -> Iterator[None]:
        """While a member's content is read, which is bounded by itself."""
        self._is_content = True
        yield
        self._is_content = False

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else size
        if not self._is_content:
            if not 0 <= size <= MOST_HEADER:
                raise ValueError(f"a header claims {size:,} bytes, {MOST_HEADER:,} is the most")
            self._headers -= size
        self._take(size)
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset > self.tell():
            self._take(offset - self.tell())
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0 or self._headers < 0:
            raise ValueError("it unfolds to more than an archive of its kind holds")


def _unpack_members(
    tar: tarfile.TarFile, stream: _Bounded, archive: Path, target: Path, most_bytes: int
) -> None:
    left = most_bytes
    for number, member in enumerate(tar):
        if number >= MOST_MEMBERS:
            raise _refused(archive, member.name, f"one of more than {MOST_MEMBERS:,} members")
        path = target / safe_member(archive, member)
        if member.isdir():
            _make(archive, member.name, path)
            continue
        left -= member.size
        if left < 0:
            raise _refused(archive, member.name, f"more than {most_bytes:,} bytes in all")
        _make(archive, member.name, path.parent)
        with stream.content():
            _write(tar, member, archive, path)


def safe_member(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    """The member's path below the target, or DataError if it is not a plain one."""
    path = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _refused(archive, member.name, "not a plain file or folder (a link or a device)")
    if path.is_absolute() or ".." in path.parts:
        raise _refused(archive, member.name, "a path that leaves the target folder")
    if any(sign in member.name for sign in "\\:\0"):
        raise _refused(archive, member.name, "a name with a sign that means a path elsewhere")
    return path


def _refused(archive: Path, name: str, why: str) -> DataError:
    shown = name if len(name) <= 100 else f"{name[:99]}…"
    return damaged(
        archive, f"its member {shown!r} is {why}", "nothing was unpacked; do not trust this archive"
    )


def _answer(archive: Path, name: str, error: OSError) -> Exception:
    """What the disk answers to a member: its name is one that no file can have, or no room."""
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
        return _refused(archive, name, "of a name that no file can have here")
    return _DiskError(error.errno, error.strerror)


def _make(archive: Path, name: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refused(archive, name, "both a file and a folder") from error
    except OSError as error:
        raise _answer(archive, name, error) from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None
    try:
        file = path.open("xb")
    except (FileExistsError, IsADirectoryError) as error:
        raise _refused(archive, member.name, "there twice") from error
    except OSError as error:
        raise _answer(archive, member.name, error) from error
    with content, file:
        while block := content.read(1 << 20):
            try:
                file.write(block)
            except OSError as error:
                raise _answer(archive, member.name, error) from error
        file.flush()
        os.fsync(file.fileno())
