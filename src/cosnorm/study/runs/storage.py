"""Where run folders live, behind one small interface.

A run needs these things of its storage, and nothing of file systems beyond them. `write` must be
all or nothing as seen by a later reader; nothing else may be assumed, neither an atomic rename nor
a lock, so that object stores can serve too. Whatever must be trusted after a crash (a checkpoint)
carries its own checksum.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.local import LocalStorage


class Storage(Protocol):
    """Named byte strings under one root; names use `/`.

    label: the place in words, as users give it and as `storage_at` takes it.
    key: the place again, the same however it was named.
    """

    label: str

    @property
    def key(self) -> str: ...

    def read(self, name: str) -> bytes | None:
        """The content of `name`; None where there is none."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes `name` has; None where there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put `content` under `name`, replacing what was there: all of it or none of it."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Add `content` at the end of `name`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove `name`; no error where there is none."""
        ...

    def claim(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here, as far as the storage can."""
        ...

    def at(self, name: str) -> "Storage":
        """What is under `name`/, as a storage of its own."""
        ...

    def folders(self) -> Iterator[tuple[str, list[str]]]:
        """This place ("") and every folder under it, parents first, with the names right in it."""
        ...


def storage_at(place: "str | Path | Storage") -> Storage:
    """The storage at a place that a user names; a storage is taken as it is.

    place: a folder, or s3://BUCKET/PREFIX as text.
    """
    if not isinstance(place, str | Path):
        return place
    if str(place).startswith("s3://"):
        from cosnorm.study.runs.object_storage import ObjectStorage

        return ObjectStorage.named(str(place))
    if scheme := re.match("([A-Za-z][A-Za-z0-9+.-]+):/", str(place)):
        raise ConfigError(
            f"a place is a folder, or s3://BUCKET/PREFIX as text; got {str(place)!r}, and nothing "
            f"is known of {scheme[1]}:/"
        )
    return LocalStorage(place)


class Nowhere:
    """Keeps nothing: what all ranks but the first write to."""

    label = key = "nowhere"

    def read(self, name: str) -> bytes | None:
        return None

    def size(self, name: str) -> int | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        pass

    def append(self, name: str, content: bytes) -> None:
        pass

    def names(self, prefix: str) -> list[str]:
        return []

    def delete(self, name: str) -> None:
        pass

    def claim(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at(self, name: str) -> "Nowhere":
        return self

    def folders(self) -> Iterator[tuple[str, list[str]]]:
        yield "", []
