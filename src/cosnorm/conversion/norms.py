"""Which normalisation layers stand directly behind a converted layer, where that is certain.

Two witnesses count: the order inside an `nn.Sequential`, and a symbolic trace (`torch.fx`) of the
largest traceable part of the model around the norm. Names are no witness.
"""

import copy
import inspect
import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from cosnorm.conversion.selection import within
from cosnorm.nn import Sequential

NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
# What a norm follows: the layers in question, by object; None stands for anything else.
Before = dict[nn.Module, list[nn.Module | None]]


def followed(
    model: nn.Module, names: Mapping[str, nn.Module], planned: set[nn.Module]
) -> dict[nn.Module, nn.Module | None]:
    """The planned layer that each norm directly follows, or None where it follows something else.

    A norm with several names or calls must follow a planned layer every time. A norm of which
    nothing is certain is missing.
    """
    before = _in_sequences(names, planned)
    norms: set[nn.Module] = {module for module in names.values() if isinstance(module, NORMS)}
    before |= _in_traces(model, "", names, planned, norms - set(before))
    return {
        norm: None if None in layers else layers[0] for norm, layers in before.items() if layers
    }


def _in_sequences(names: Mapping[str, nn.Module], planned: set[nn.Module]) -> Before:
    """Norms every name of which is a place in an `nn.Sequential` behind a planned layer."""
    before: Before = {}
    for name, norm in names.items():
        if isinstance(norm, NORMS):
            before.setdefault(norm, []).append(_neighbour(name, names, planned))
    return {norm: layers for norm, layers in before.items() if None not in layers}


def _neighbour(
    name: str, names: Mapping[str, nn.Module], planned: set[nn.Module]
) -> nn.Module | None:
    path, _, own = name.rpartition(".")
    parent = names[path]
    if not name or type(parent).forward not in (nn.Sequential.forward, Sequential.forward):
        return None
    children = list(parent._modules)
    index = children.index(own)
    previous = parent._modules[children[index - 1]] if index else None
    return previous if previous in planned else None


def _in_traces(
    root: nn.Module,
    name: str,
    names: Mapping[str, nn.Module],
    planned: set[nn.Module],
    norms: set[nn.Module],
) -> Before:
    """Trace a part of the model; where that fails, its children, each for the norms inside it."""
    outside = {module for other, module in names.items() if not within(other, name)}
    inside = {module for module in root.modules() if module in norms} - outside
    if not inside or root in norms:
        return {}
    before = _traced(root, planned, inside)
    if before is not None:
        return before
    found: Before = {}
    for child_name, child in root.named_children():
        path = f"{name}.{child_name}" if name else child_name
        found |= _in_traces(child, path, names, planned, inside)
    return found


def _traced(root: nn.Module, planned: set[nn.Module], norms: set[nn.Module]) -> Before | None:
    """What each norm follows in every way the root can run; None where that can't be told."""
    parameters = inspect.signature(root.forward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    before: Before = {norm: [] for norm in norms}
    given = [{}, defaults] if defaults else [{}]
    for training, concrete in itertools.product((True, False), given):
        try:
            graph = _graph(root, planned | norms, training, concrete)
        except Exception:  # a model's own code ran on symbols: whatever it raises, it can't be read
            return None
        for node in graph.nodes:
            if node.op == "call_module" and root.get_submodule(node.target) in norms:
                norm = root.get_submodule(node.target)
                before[norm].append(_producer(node, root, planned))
    return before


def _producer(node: fx.Node, root: nn.Module, planned: set[nn.Module]) -> nn.Module | None:
    source = next(iter([*node.args, *node.kwargs.values()]), None)
    if not isinstance(source, fx.Node) or source.op != "call_module":
        return None
    layer = root.get_submodule(str(source.target))
    return layer if layer in planned else None


def _graph(
    root: nn.Module, leaves: set[nn.Module], training: bool, concrete: dict[str, Any]
) -> fx.Graph:
    """The root's graph, traced on a copy (the parameters shared), so that nothing of it changes."""
    twin = copy.deepcopy(root, {id(tensor): tensor for tensor in root.parameters()})
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    twin.train(training)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        return _Tracer(root, leaves).trace(twin, concrete_args=dict(concrete) or None)


class _Tracer(fx.Tracer):
    """Stops at the layers in question, as at torch's own."""

    def __init__(self, original: nn.Module, leaves: set[nn.Module]) -> None:
        super().__init__()
        self.original = original
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self.original.get_submodule(module_qualified_name) in self.leaves:
            return True
        return super().is_leaf_module(m, module_qualified_name)
