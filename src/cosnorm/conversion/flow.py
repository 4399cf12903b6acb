"""What comes into a normalisation layer and where its output goes, in one call of a trace."""

import operator
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import fx, nn

from cosnorm.conversion.norm_kinds import is_norm
from cosnorm.conversion.tracing import IN_PLACE, Part

_SIZES = {"shape", "size", "dim", "ndim", "device", "dtype"}
_SAME_ROWS = {"contiguous", "float", "double"}  # no casts that may round off what a norm takes off


class Fact(Enum):
    """What is known where no converted layer is found."""

    OTHER = "something else"
    CHANGED = "a converted layer, but the tensor in between is changed or used elsewhere"
    UNKNOWN = "could not be established"


class Call(NamedTuple):
    """A call of a norm in a graph of a part of the model."""

    part: Part
    node: fx.Node
    planned: set[nn.Module]  # the layers that will be converted
    similar: set[nn.Module]  # these, and those that are cosine layers already


def source(call: Call) -> nn.Module | Fact:
    """The layer that a norm directly follows."""
    before = _first_input(call.node)
    layer = None if before is None else call.part.target(before)
    if before is None or layer not in call.similar or layer is None:
        return Fact.UNKNOWN if before is None or _hides(call, before) else Fact.OTHER
    disturbed = hooked(call.part, before, call.node) or _changed(call, before, [call.node])
    others = [user for user in before.users if user is not call.node and not asks_size(user)]
    if disturbed or (others and _changed(call, call.node, [])):
        return Fact.CHANGED
    return layer


def targets(call: Call, features: int) -> list[nn.Module] | Fact:
    """The converted linear layers of `features` inputs, if a norm's output goes into such only."""
    found: list[nn.Module] = []
    ends: list[fx.Node] = []
    pending = [call.node]
    while pending:
        node = pending.pop()
        for user in node.users:
            module = call.part.target(user)
            if module in call.planned and module is not None:
                if not _takes_rows(module, features) or user.all_input_nodes != [node]:
                    return Fact.OTHER
                if hooked(call.part, call.node, user):
                    return Fact.CHANGED
                found.append(module)
                ends.append(user)
            elif _keeps_rows(user, module):
                pending.append(user)
            elif not asks_size(user):
                return Fact.UNKNOWN if _hides(call, user) else Fact.OTHER
    return Fact.CHANGED if ends and _changed(call, call.node, ends) else found


def _first_input(node: fx.Node) -> fx.Node | None:
    first = next(iter([*node.args, *node.kwargs.values()]), None)
    return first if isinstance(first, fx.Node) else None


def _takes_rows(layer: nn.Module, features: int) -> bool:
    """Whether a layer is linear, torch's or transformers', and takes rows of that width."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return False
    inputs = layer.in_features if isinstance(layer, nn.Linear) else len(layer.weight)  # pyright: ignore
    return inputs == features


def _keeps_rows(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node gives the rows it gets, or some of them.

    `x[:, 0]` picks rows where it has three dimensions; of two it would leave as many features as
    the batch has rows, and no layer of fixed width could follow.
    """
    if module is not None:
        return isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0)
    if node.op == "call_method":
        return node.target in _SAME_ROWS
    if node.op != "call_function" or node.target is not operator.getitem:
        return False
    index: Any = node.args[1]
    entries = index if isinstance(index, tuple) else (index,)
    return len(entries) <= 2 and all(isinstance(entry, int | slice) for entry in entries)


def _hides(call: Call, node: fx.Node) -> bool:
    """Whether a converted layer may be behind a node, and the trace does not show it."""
    if node.op in ("output", "placeholder"):
        return call.part.name != ""
    module = call.part.target(node)
    if module is not None:
        return any(part in call.planned for part in module.modules())
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _hides(call, node.args[0])
    return node.op == "call_function" and not _is_torchs(node.target)


def _is_torchs(thing: Any) -> bool:
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    home = getattr(kind, "__module__", None) or ""
    return home.split(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "")


def asks_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _SIZES
    return node.target is getattr and node.args[1] in _SIZES


def hooked(part: Part, first: fx.Node, second: fx.Node) -> bool:
    """Whether hooks run between two calls: on the modules, or on what holds only one of them."""
    one, two = (_path(node) for node in (first, second))
    names = (set(one) ^ set(two)) | {str(first.target), str(second.target)}
    modules = [part.module.get_submodule(name) for name in names]
    return any(has_hooks(module) for module in modules)


def has_hooks(module: nn.Module) -> bool:
    """Whether a user's code runs with a module's, forward or backward."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _path(node: fx.Node) -> list[str]:
    """The names of the modules that hold a node's, outermost first."""
    words = str(node.target).split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def _changed(call: Call, first: fx.Node, ends: Iterable[fx.Node]) -> bool:
    """Whether the tensor that comes out of `first` may change before the last of `ends`, or ever.

    A norm that goes gives the tensor it got: the two are one then.
    """
    tensors: set[fx.Node | None] = {first}
    if first is call.node:
        tensors.add(_first_input(first))
    waiting = set(ends)
    later = first.next
    while later.op != "root" and not (waiting and waiting <= {later}):
        if any(_comes_from(call, victim, tensors) for victim in _victims(call, later)):
            return True
        waiting.discard(later)
        later = later.next
    return False


def _comes_from(call: Call, node: fx.Node, tensors: set[fx.Node | None]) -> bool:
    """Whether a node may be a view of one of the tensors; what a converted layer gives is new."""
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        here = pending.pop()
        if here in tensors:
            return True
        if here not in seen and call.part.target(here) not in call.planned:
            pending.extend(here.all_input_nodes)
        seen.add(here)
    return False


def _victims(call: Call, node: fx.Node) -> Iterable[fx.Node]:
    """The inputs of a node that it may change."""
    module = call.part.target(node)
    if module is not None:
        known = module in call.planned or is_norm(module) or _is_torchs(module)
        changes = getattr(module, "inplace", False) if known else True
        changes = changes and not isinstance(module, nn.Identity)
    elif node.op == "call_method":
        name = str(node.target)
        changes = name.endswith("_") and not name.endswith("__")
    elif node.op == "call_function":
        changes = _function_changes(node)
    else:
        changes = False
    return node.all_input_nodes if changes else ()


def _function_changes(node: fx.Node) -> bool:
    if not _is_torchs(node.target) or "out" in node.kwargs:
        return True
    name = getattr(node.target, "__name__", "")
    in_place = node.target in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    asked = node.kwargs.get("inplace") or (
        hasattr(F, name) and any(argument is True for argument in node.args[1:])
    )
    return bool(in_place or asked)
