"""Unpacking a tar archive that is not trusted.

Only plain files and folders are written, and only below the target: a member whose name climbs
out, or that is a link, a device or a pipe, condemns the whole archive.
"""

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from cosnorm.data.errors import DataError, damaged

MOST_BYTES = 4 << 30
MOST_MEMBERS = 100_000


def unpack(archive: Path, target: Path, most_bytes: int = MOST_BYTES) -> None:
    """Unpack a .tar.gz into the empty folder `target`.

    Raises DataError at the first member that is not a plain file or folder below `target`, when
    the content exceeds `most_bytes`, or when the archive is damaged; the caller then drops
    `target`, which must not be in use under its final name.
    """
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                _unpack_members(tar, archive, target, most_bytes)
            while stream.read(1 << 20):  # to the end, where gzip keeps its own sum
                pass
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise damaged(archive, f"not a whole .tar.gz archive ({error})") from error


def _unpack_members(tar: tarfile.TarFile, archive: Path, target: Path, most_bytes: int) -> None:
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
    return damaged(
        archive, f"its member {name!r} is {why}", "nothing was unpacked; do not trust this archive"
    )


def _make(archive: Path, name: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refused(archive, name, "both a file and a folder") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None
    try:
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
    except (FileExistsError, IsADirectoryError) as error:
        raise _refused(archive, member.name, "there twice") from error
