"""How many kernels Triton compiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import knobs


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the kernels compiled inside, also of those that were found on disk."""
    names: list[str] = []
    before = knobs.compilation.listener

    def listen(**told: Any) -> None:
        names.append(told["src"].name)
        if before is not None:
            before(**told)

    knobs.compilation.listener = listen
    try:
        yield names
    finally:
        knobs.compilation.listener = before
