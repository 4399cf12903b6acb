"""Asking for memory before it is taken: the system would end the program without a word."""

import os
from collections.abc import Iterator
from pathlib import Path

from cosnorm.study.data.errors import DataError

_FREE = Path("/proc/meminfo")  # on Linux; not there elsewhere
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container on Linux
_TAKEN = Path("/sys/fs/cgroup/memory.stat")


def memory_here() -> int | None:
    """The bytes of memory that this process can still have; None where the system does not say.

    Files that the system keeps in memory count as free: it drops them where memory is wanted.
    """
    return min(_bounds(), default=None)


def _bounds() -> Iterator[int]:
    if hasattr(os, "sysconf"):  # not on Windows
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _entry(_FREE, "MemAvailable:")
    if free is not None:
        yield 1024 * free
    try:
        yield int(_LIMIT.read_text()) - (_entry(_TAKEN, "anon") or 0)
    except (OSError, ValueError):  # no file, or no limit in it
        return


def _entry(path: Path, name: str) -> int | None:
    """The number behind `name` in a file of lines `NAME NUMBER …`."""
    try:
        lines = map(str.split, path.read_text().splitlines())
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


def ask_memory(path: Path, needed: int, what: str, remedy: str) -> None:
    """Refuse with `PATH: WHAT need … GB of memory and … are free; REMEDY`, where it is so.

    Where it is not known how much is free, nothing is refused.
    """
    free = memory_here()
    if free is not None and needed > free:
        raise DataError(
            f"{path}: {what} need {needed / 1e9:,.1f} GB of memory and {max(free, 0) / 1e9:,.1f} "
            f"are free; {remedy}"
        )
