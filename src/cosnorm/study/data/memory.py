"""Asking for memory before it is taken: the system would end the program without a word."""

import os
from pathlib import Path

from cosnorm.study.data.errors import DataError

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container on Linux; not there elsewhere


def memory_here() -> int:
    """The bytes of memory that this process can have at most."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(there, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # no file, or no limit in it
        return there


def ask_memory(path: Path, needed: int, what: str, remedy: str) -> None:
    """Refuse with `PATH: WHAT need … GB of memory and there are …; REMEDY`, where it is so."""
    there = memory_here()
    if needed > there:
        raise DataError(
            f"{path}: {what} need {needed / 1e9:,.1f} GB of memory and there are "
            f"{there / 1e9:,.1f}; {remedy}"
        )
