"""The head: the layers whose outputs are logits, found where that is sure, and their scale."""

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torch import fx, nn

from cosnorm.conversion.selection import hint, shown
from cosnorm.conversion.tracing import Part, Reader

HEAD_SCALE = 10.0
"""Where the learned scale of a converted head starts at the least; logits then lie within ±10."""

Head = str | Iterable[str] | Mapping[str, float | None] | None

_HEAD_NAMES = {  # in order, and whether whatever layer has the name is a head
    re.compile(r"classifier|heads?|head_dist|lm_head|score|logits|logits_proj|qa_outputs"): True,
    re.compile(r"(?!pre_).+_(classifier|head|logits)"): True,
    re.compile(r"out|output"): False,
    re.compile(r"fc"): True,
}
_NO_HEAD = re.compile(r".*(proj|projection|pooler|dense|embeddings?|quant_conv)")
_HEAD_RULE = "head takes 'auto', None, a layer's name, several, or a mapping from names to starts"
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


def chosen_heads(
    model: nn.Module, head: Head, layers: Mapping[str, nn.Module], reader: Reader
) -> dict[nn.Module, float]:
    """The layers that get a learned scale, each with the value where it starts.

    `layers`: the layers that will be converted, by name. Raises ValueError for a name that is not
    among them.
    """
    if head is None:
        return {}
    if isinstance(head, str) and head == "auto":
        search = _Search(set(layers.values()), reader)
        found = _output_embeddings(model, search.planned) or search.heads(model)
        return {layer: head_scale(layer) for layer in found}
    named = {head: None} if isinstance(head, str) else head
    if isinstance(named, nn.Module) or not isinstance(named, Iterable):
        raise TypeError(f"{_HEAD_RULE}; got {shown(layers, named)}")
    if not isinstance(named, Mapping):
        named = dict.fromkeys(named)
    starts = {name: _start(layers, name, value) for name, value in named.items()}
    return {layers[name]: start for name, start in starts.items()}


def _start(layers: Mapping[str, nn.Module], name: Any, value: Any) -> float:
    """Where the scale of the layer of that name starts, after every check."""
    if not isinstance(name, str):
        raise TypeError(f"{_HEAD_RULE}; got {shown(layers, name)}")
    if name not in layers:
        raise ValueError(
            f"head must name layers that are converted; got {name!r}{hint(layers, name)}"
        )
    if value is None:
        return head_scale(layers[name])
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise TypeError(f"a head's scale must start at a number; got {value!r} for {name!r}")
    return float(value)


def _output_embeddings(model: nn.Module, planned: set[nn.Module]) -> list[nn.Module]:
    """The layer that a transformers model itself calls its output."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    try:
        found = model.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError):
        return []
    return [found] if found in planned else []


class _Search:
    """For the layers that make logits, as far as names, order and a trace tell."""

    def __init__(self, planned: set[nn.Module], reader: Reader) -> None:
        self.planned = planned
        self.reader = reader

    def heads(self, module: nn.Module, named: bool = False) -> list[nn.Module]:
        """The heads inside a module; `named`: it has the name of one."""
        if module in self.planned:
            sure = (named or _looks_at_one_place(module)) and self._may_end(module)
            return [module] if sure else []
        children = dict(module.named_children())
        if len(children) == 1 and not _in_order(module):
            return self.heads(next(iter(children.values())), named)
        for pattern, telling in _HEAD_NAMES.items():
            found = [
                layer
                for name, child in children.items()
                if pattern.fullmatch(name.lower())
                for layer in self.heads(child, named or telling)
            ]
            if found:
                return found
        return self._last(children, _in_order(module), named)

    def _last(self, children: dict[str, nn.Module], ordered: bool, named: bool) -> list[nn.Module]:
        """The last of the children that holds parameters, if it is a layer that can make logits."""
        for name, child in reversed(children.items()):
            if next(child.parameters(), None) is not None:
                layer = child in self.planned and (named or not _NO_HEAD.fullmatch(name.lower()))
                return self.heads(child, named) if layer or _in_order(child) else []
            if ordered and not named and not isinstance(child, _AFTER_LOGITS):
                return []
        return []

    def _may_end(self, layer: nn.Module) -> bool:
        """Whether the model's output comes from a layer, or no trace can tell."""
        whole = None if layer is self.reader.model else self.reader.whole
        return whole is None or _ends(whole, layer)


def _in_order(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential)


def _looks_at_one_place(layer: nn.Module) -> bool:
    sizes = getattr(layer, "kernel_size", (1,))
    return all(size == 1 for size in sizes)


def _ends(whole: Part, layer: nn.Module) -> bool:
    """Whether something of the output comes from a layer, with no parameters on the way."""
    nodes = [node for graph in whole.graphs for node in graph.nodes]
    pending: list[fx.Node] = [node for node in nodes if whole.target(node) is layer]
    seen: set[fx.Node] = set()
    while pending:
        for user in pending.pop().users:
            if user.op == "output":
                return True
            module = whole.target(user)
            if user not in seen and (module is None or not any(True for _ in module.parameters())):
                pending.append(user)
            seen.add(user)
    return False


def head_scale(layer: nn.Module) -> float:
    """Where the scale of a head starts: 10, or √2·log(C − 1) where C classes ask for more.

    With scale s, the likeliest of C classes gets a probability of about eˢ / (eˢ + C − 1) at most.
    """
    kinds = ("out_features", "out_channels", "nf")  # the last is transformers' Conv1D's
    classes: Any = next(getattr(layer, name) for name in kinds if hasattr(layer, name))
    return max(HEAD_SCALE, round(math.sqrt(2) * math.log(max(2, classes - 1)), 1))
