"""One look per method, in print and on the page: a colour, and dashes since paper may be grey.

Methods bring their own (`cosnorm.methods`); what has none, or is not known here, gets a spare one.
"""

from cosnorm.methods import METHODS, Look

_SPARE = (
    Look("#11827F", "#56D6D2", (8, 2, 3, 2)),
    Look("#8C1C3A", "#FF8FA8", (2, 2, 6, 2)),
    Look("#2F4B7C", "#8FB3F0", (12, 2, 2, 2)),
    Look("#4D5B00", "#C3D65A", (3, 3)),
)

_VARIANT_DASHES = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (3, 1.5), (10, 2))


def looks(methods: list[str]) -> dict[str, Look]:
    """A look for every method named; those without one of their own take spares in their order."""
    own = {name: entry.look for name, entry in METHODS.items() if entry.look is not None}
    others = [method for method in methods if method not in own]
    spare = {method: _SPARE[i % len(_SPARE)] for i, method in enumerate(others)}
    return {method: own.get(method) or spare[method] for method in methods}


def variant_look(look: Look, position: int) -> Look:
    """The look of a method's second, third … choice of settings: its colour, other dashes."""
    if position == 0:
        return look
    others = [dashes for dashes in _VARIANT_DASHES if dashes != look.dashes]
    return Look(look.light, look.dark, others[(position - 1) % len(others)])
