"""What a conversion did to each layer, and why it left the others."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload


class Entry(NamedTuple):
    """One layer: its name in the model, its class before and after, and the reason.

    `now` is None for a layer that was left.
    """

    name: str
    was: str
    now: str | None
    reason: str


class Account(Sequence[Entry]):
    """The layers of a model in the order of their names, each with what became of it.

    Printed, it is a table; iterated, it gives `(name, was, now, reason)`. Every module that holds
    parameters or buffers of its own has an entry.
    """

    def __init__(self, entries: Iterable[Entry], notes: Iterable[str] = ()) -> None:
        self._entries = tuple(entries)
        self.notes = tuple(notes)

    @property
    def changed(self) -> tuple[Entry, ...]:
        """The layers that are something else now."""
        return tuple(entry for entry in self if entry.now is not None)

    @property
    def left(self) -> tuple[Entry, ...]:
        """The layers that are as they were."""
        return tuple(entry for entry in self if entry.now is None)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __repr__(self) -> str:
        return f"<Account: {len(self.changed)} changed, {len(self.left)} left>"

    def __str__(self) -> str:
        rows = [("layer", "was", "now", "why")]
        rows += [(e.name or "(the model)", e.was, e.now or "left", e.reason) for e in self]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), why])
            for *row, why in rows
        ]
        summary = f"{len(self.changed)} changed, {len(self.left)} left."
        return "\n".join([*(line.rstrip() for line in lines), "", summary, *self.notes])
