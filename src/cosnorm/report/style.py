"""One look per method, in print and on the page: colours that colour-blind readers can tell apart
(Okabe and Ito's set) and a line style of its own, since paper may be grey.
"""

from dataclasses import dataclass

from cosnorm.experiments.config import METHODS


@dataclass(frozen=True)
class Look:
    """Colour on white, colour on black, and the dashes (on, off, …) in points; () is solid."""

    light: str
    dark: str
    dashes: tuple[float, ...]


_KNOWN: dict[str, Look] = dict(
    zip(
        METHODS,
        (
            Look("#0072B2", "#4DB1EE", ()),
            Look("#D55E00", "#FF8A3D", (6, 2)),
            Look("#009E73", "#2FCF9F", (1.5, 1.5)),
            Look("#B5568D", "#E69AC6", (6, 2, 1.5, 2)),
            Look("#B98200", "#F2C14E", (3, 1.5)),
            Look("#5F6670", "#A9B1BC", (6, 2, 1.5, 2, 1.5, 2)),
        ),
        strict=True,
    )
)

_SPARE = (
    Look("#3B3FA8", "#9AA0FF", (10, 2)),
    Look("#7A4B1E", "#D2A679", (4, 1.5, 1.5, 1.5)),
    Look("#11827F", "#56D6D2", (8, 2, 3, 2)),
    Look("#8C1C3A", "#FF8FA8", (2, 2, 6, 2)),
)

_VARIANT_DASHES = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (3, 1.5), (10, 2))


def looks(methods: list[str]) -> dict[str, Look]:
    """A look for every method named; unknown ones take spare looks in the order given."""
    unknown = [method for method in methods if method not in _KNOWN]
    spare = {method: _SPARE[i % len(_SPARE)] for i, method in enumerate(unknown)}
    return {method: _KNOWN.get(method) or spare[method] for method in methods}


def variant_look(look: Look, position: int) -> Look:
    """The look of a method's second, third … choice of settings: its colour, other dashes."""
    if position == 0:
        return look
    others = [dashes for dashes in _VARIANT_DASHES if dashes != look.dashes]
    return Look(look.light, look.dark, others[(position - 1) % len(others)])
