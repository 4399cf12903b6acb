"""Which layers the caller meant: those to skip, and the head."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

Skip = str | type | Callable[[str, nn.Module], Any]
Head = str | Iterable[str] | Mapping[str, float] | None

_HEAD_NAMES = re.compile(r"fc|classifier|heads?|head_dist|lm_head|score|logits|qa_outputs")
_HEAD_ENDINGS = re.compile(r".+_(classifier|head|logits)")
_NO_HEAD = re.compile(r".*(proj|projection|pooler|dense|embeddings?)")
_AFTER_LOGITS = (
    nn.Dropout,
    nn.Flatten,
    nn.Identity,
    nn.LogSigmoid,
    nn.LogSoftmax,
    nn.Sigmoid,
    nn.Softmax,
    nn.Unflatten,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AvgPoolNd,
)


def within(name: str, container: str) -> bool:
    """Whether a module's name is a container's or lies below it; every name lies below ''."""
    return not container or name == container or name.startswith(container + ".")


def skipped(names: Mapping[str, nn.Module], skip: Skip | Iterable[Skip]) -> dict[str, str]:
    """The reason for each name that the caller wants skipped; all below a skipped module goes too.

    Raises ValueError for a name or pattern that matches nothing.
    """
    if isinstance(skip, str) or callable(skip) or not isinstance(skip, Iterable):
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
                f"skip must name modules of the model; got {item!r}{_hint(names, item)}"
            )
        return found
    if isinstance(item, type):
        return [name for name, module in names.items() if isinstance(module, item)]
    if callable(item):
        return [name for name, module in names.items() if item(name, module)]
    raise TypeError(
        "skip takes names, patterns, module types and predicates (name, module) -> bool; "
        f"got {type(item).__name__} {item!r}"
    )


def _hint(names: Iterable[str], wrong: str) -> str:
    near = get_close_matches(wrong, [name for name in names if name], n=3)
    return f": did you mean {', '.join(near)}?" if near else ", which matches none"


def chosen_heads(
    model: nn.Module, head: Head, layers: Mapping[str, nn.Module], start: float
) -> dict[nn.Module, float]:
    """The layers that get a learned scale, each with the value where it starts.

    `layers`: the layers that will be converted, by name. Raises ValueError for a name that is not
    among them.
    """
    if head is None:
        return {}
    if isinstance(head, str) and head == "auto":
        planned = set(layers.values())
        return dict.fromkeys(_output_embeddings(model, planned) or _heads(model, planned), start)
    named = {head: start} if isinstance(head, str) else head
    if not isinstance(named, Mapping):
        named = dict.fromkeys(named, start)
    for name, value in named.items():
        if name not in layers:
            raise ValueError(
                f"head must name layers that are converted; got {name!r}{_hint(layers, name)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"a head's scale must start at a number; got {value!r} for {name!r}")
    return {layers[name]: float(value) for name, value in named.items()}


def _output_embeddings(model: nn.Module, planned: set[nn.Module]) -> list[nn.Module]:
    """The layer that a transformers model itself calls its output."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    try:
        found = model.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError):
        return []
    return [found] if found in planned else []


def _heads(module: nn.Module, planned: set[nn.Module], named: bool = False) -> list[nn.Module]:
    """The layers of a module that make logits, as far as names and order tell; else none."""
    if module in planned:
        return [module] if named or _looks_at_one_place(module) else []
    children = dict(module.named_children())
    if len(children) == 1 and not _in_order(module):
        return _heads(next(iter(children.values())), planned, named)
    for pattern in (_HEAD_NAMES, _HEAD_ENDINGS):
        found = [
            layer
            for name, child in children.items()
            if pattern.fullmatch(name.lower())
            for layer in _heads(child, planned, named=True)
        ]
        if found:
            return found
    return _last(children, planned, _in_order(module), named)


def _last(
    children: dict[str, nn.Module], planned: set[nn.Module], ordered: bool, named: bool
) -> list[nn.Module]:
    """The last of the children that holds parameters, if it is a layer that can make logits."""
    for name, child in reversed(children.items()):
        if next(child.parameters(), None) is not None:
            layer = child in planned and not _NO_HEAD.fullmatch(name.lower())
            return _heads(child, planned, named) if layer or _in_order(child) else []
        if ordered and not named and not isinstance(child, _AFTER_LOGITS):
            return []
    return []


def _in_order(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential)


def _looks_at_one_place(layer: nn.Module) -> bool:
    sizes = getattr(layer, "kernel_size", (1,))
    return all(size == 1 for size in sizes)
