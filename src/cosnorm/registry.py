"""Things of one kind under their names, to which anybody may add. Loads no torch.

An entry names its code as "module:attribute", which is imported when it is used and not before: a
table can be read, and help printed, without what the entries need.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeVar

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Mapping[str, T]):
    """Entries by name, in the order in which they were added.

    kind: what an entry is, for messages.
    """

    def __init__(self, kind: str, entries: Iterable[T] = ()) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: T) -> T:
        """Add an entry under its name, which must be new; returns it.

        Names are parts of flags, of lists with commas and of folder names.
        """
        if not _NAME.fullmatch(entry.name):
            raise ValueError(
                f"the name of a {self.kind} is made of letters, digits, '_', '-' and '.', and "
                f"begins with a letter or digit; got {entry.name!r}"
            )
        if entry.name in self._entries:
            raise ValueError(f"there is a {self.kind} {entry.name!r} already: choose another name")
        self._entries[entry.name] = entry
        return entry

    def named(self, name: str) -> T:
        """The entry of that name, or a `ValueError` that lists those there are."""
        if name not in self._entries:
            raise ValueError(f"{self.kind} must be one of {', '.join(self)}; got {name!r}")
        return self._entries[name]

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def resolve(code: Any) -> Any:
    """What "module:attribute" stands for; anything but text stands for itself.

    >>> resolve("math:sqrt")(9.0)
    3.0
    """
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    return getattr(import_module(module), attribute)
