"""Which modules the caller wants skipped, and how names are shown where they fit nothing."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

Skip = str | type | Callable[[str, nn.Module], Any]


def within(name: str, container: str) -> bool:
    """Whether a module's name is a container's or lies below it; every name lies below ''."""
    return not container or name == container or name.startswith(container + ".")


def skipped(names: Mapping[str, nn.Module], skip: Skip | Iterable[Skip]) -> dict[str, str]:
    """The reason for each name that the caller wants skipped; all below a skipped module goes too.

    Raises ValueError for a name or pattern that matches nothing.
    """
    if isinstance(skip, str | nn.Module) or callable(skip) or not isinstance(skip, Iterable):
        skip = [skip]
    reasons: dict[str, str] = {}
    for item in skip:
        said = f"skipped by {item!r}" if isinstance(item, str) else f"skipped by {_called(item)}"
        for container in _matches(names, item):
            for name in names:
                if within(name, container):
                    reasons.setdefault(name, said)
    return reasons


def _called(item: Any) -> str:
    return getattr(item, "__name__", type(item).__name__)


def _matches(names: Mapping[str, nn.Module], item: Skip) -> list[str]:
    if isinstance(item, str):
        if item and item in names:
            return [item]
        found = [name for name in names if name and fnmatchcase(name, item)]
        if not found:
            raise ValueError(
                f"skip must name modules of the model; got {item!r}{hint(names, item)}"
            )
        return found
    if isinstance(item, type):
        return [name for name, module in names.items() if isinstance(module, item)]
    if callable(item) and not isinstance(item, nn.Module):
        _check_predicate(item)
        return [name for name, module in names.items() if item(name, module)]
    raise TypeError(
        "skip takes names, patterns, module types and predicates (name, module) -> bool; "
        f"got {shown(names, item)}"
    )


def _check_predicate(item: Callable[..., Any]) -> None:
    try:
        inspect.signature(item).bind("", nn.Identity())
    except TypeError:
        raise TypeError(
            f"a predicate of skip takes (name, module); {_called(item)} does not: write it as "
            "lambda name, module: …"
        ) from None
    except ValueError:  # a builtin that has no signature
        return


def shown(names: Mapping[str, nn.Module], item: Any) -> str:
    """A wrong argument; for a module of the model, the name that was meant."""
    if not isinstance(item, nn.Module):
        return f"{type(item).__name__} {item!r}"
    name = next((name for name, module in names.items() if module is item), None)
    meant = f": pass its name, {name!r}" if name else ", which the model does not have"
    return f"a module, {type(item).__name__}{meant}"


def hint(names: Iterable[str], wrong: str) -> str:
    near = get_close_matches(wrong, [name for name in names if name], n=3)
    return f": did you mean {', '.join(near)}?" if near else ", which matches none"
