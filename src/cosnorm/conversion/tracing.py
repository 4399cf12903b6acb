"""What a module does with its tensors: symbolic traces (`torch.fx`) of every way it can run.

A branch on a symbol is taken both ways, one trace each, so what holds in all traces holds for every
input. A module that can't be read so is read in parts: its children, and what it does with them.
"""

import copy
import gc
import inspect
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import isfunction
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.fx.proxy import Attribute, TraceError

IN_PLACE = {
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow",
                 "iand", "ior", "ixor", "ilshift", "irshift", "setitem")
}  # fmt: skip
# Beyond these a module is read in parts, which is quicker than to follow every way through it.
_MOST_BRANCHES = 32
_MOST_NODES = 3000


class Part(NamedTuple):
    """A module, its name in the model, and a graph of each way it can run."""

    name: str
    module: nn.Module
    graphs: list[fx.Graph]
    called: bool = True  # False: nothing shows that it runs as a whole, see `_seen`

    def target(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls."""
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None


class Reader:
    """Reads a model, in which `leaves` are called and not looked into."""

    def __init__(self, model: nn.Module, leaves: set[nn.Module]) -> None:
        self.model = model
        self.leaves = leaves
        # All modules that hold a leaf or are one; none else is looked into.
        self.above = {m for m in model.modules() if any(part in leaves for part in m.modules())}

    @cached_property
    def whole(self) -> Part | None:
        """The model as one part; None where it can't be read so."""
        graphs = self._graphs(self.model, set())[0]
        return Part("", self.model, graphs) if graphs else None

    @cached_property
    def parts(self) -> list[Part]:
        """The largest parts of the model that can be read."""
        return [self.whole] if self.whole else self._in_parts(self.model, "")

    def _read(self, module: nn.Module, name: str) -> tuple[list[Part], bool]:
        """The readable parts, and whether the module is one and runs in one way only."""
        if isinstance(module, nn.ModuleList | nn.ModuleDict):  # they are never called
            return self._in_parts(module, name), False
        graphs, ways = self._graphs(module, set())
        if graphs:
            return [Part(name, module, graphs)], ways == 1
        return self._in_parts(module, name), False

    def _in_parts(self, module: nn.Module, name: str) -> list[Part]:
        """What the children do, and what the module does with those that it can't be read with."""
        plain: list[Part] = []
        others: list[Part] = []
        closed: set[nn.Module] = set()
        for child_name, child in module.named_children():
            if child in self.leaves or child not in self.above:
                continue
            parts, inline = self._read(child, f"{name}.{child_name}" if name else child_name)
            (plain if inline else others).extend(parts)
            closed |= set() if inline else {child}
        around = Part(name, module, self._graphs(module, closed)[0] if closed else [])
        if not around.graphs:
            return [_seen(part, module, set()) for part in [*plain, *others]]
        targets = {around.target(node) for graph in around.graphs for node in graph.nodes}
        return [around, *(_seen(part, module, targets) for part in others)]

    def _graphs(self, module: nn.Module, closed: set[nn.Module]) -> tuple[list[fx.Graph], int]:
        """A graph of each way the module can run, none if it can't be read, and the most ways that
        one choice of mode and arguments leaves open.
        """
        inside = (self.above - self.leaves) - closed
        for helpers in ((), _helpers(module, inside)):
            graphs: list[fx.Graph] = []
            most = 0
            for training, given in itertools.product((True, False), _arguments(module)):
                found = _every_way(_Way(module, inside, helpers, training, given))
                if found is None:
                    break
                graphs, most = graphs + found, max(most, len(found))
            else:
                return graphs, most
        return [], 0


def _seen(part: Part, parent: nn.Module, targets: set[nn.Module | None]) -> Part:
    """A sequence may serve its parent as a mere list, unless that is seen to call it."""
    child = any(part.module is child for child in parent.children())
    lone = child and isinstance(part.module, nn.Sequential) and part.module not in targets
    return part._replace(called=False) if lone else part


def _arguments(module: nn.Module) -> list[dict[str, Any]]:
    """The arguments to fix: none, and all that have a default."""
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return [{}, defaults] if defaults else [{}]


def _helpers(module: nn.Module, inside: set[nn.Module]) -> tuple[Callable[..., Any], ...]:
    """The functions that the code of a module and of what is inside it may call by their names."""
    functions: dict[int, Callable[..., Any]] = {}
    for part in module.modules():
        if part in inside:
            scope = getattr(inspect.unwrap(type(part).forward), "__globals__", {})
            functions |= {id(value): value for value in scope.values() if isfunction(value)}
    return tuple(functions.values())


class _Way(NamedTuple):
    """How to run a module on symbols; its branches are left open."""

    module: nn.Module
    inside: set[nn.Module]  # the modules that are looked into
    helpers: tuple[Callable[..., Any], ...]  # the functions that are not
    training: bool
    given: dict[str, Any]


def _every_way(way: _Way) -> list[fx.Graph] | None:
    """The graph of each way that the branches leave; None if there are too many or one fails."""
    graphs: list[fx.Graph] = []
    pending: list[list[bool]] = [[]]
    while pending:
        tracer = _Tracer(way, pending.pop())
        try:
            graphs.append(tracer.graph_of())
        except Exception as error:  # a model's own code ran on symbols: it may raise anything
            if not _refuses(error):
                return None
        pending += tracer.turnings()
        size = max((len(graph.nodes) for graph in graphs), default=1)
        if pending and size * (len(graphs) + len(pending)) > _MOST_NODES:
            return None
    return graphs


def _refuses(error: Exception) -> bool:
    """Whether a model does not take such input; else its code can't be read."""
    if isinstance(error, TypeError | AttributeError):
        return "NoneType" in str(error)  # an argument without which it can't run
    refusal = isinstance(error, ValueError | AssertionError | NotImplementedError)
    return refusal and not isinstance(error, TraceError) and "unpack" not in str(error)


@contextmanager
def _all_young() -> Iterator[None]:
    """What is made inside stays in the youngest generation, which is quick to collect."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Tracer(fx.Tracer):
    """Takes the branches in order as `turns` says, and any further one as false."""

    def __init__(self, way: _Way, turns: list[bool]) -> None:
        super().__init__(autowrap_functions=way.helpers)
        self.way = way
        self.turns = turns
        self.taken: list[bool] = []
        self.symbols: weakref.WeakSet[fx.Proxy] = weakref.WeakSet()

    def graph_of(self) -> fx.Graph:
        twin = twin_of(self.way.module)
        for part in twin.modules():
            part._forward_hooks.clear()
            part._forward_pre_hooks.clear()
        twin.train(self.way.training)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _all_young():
            warnings.simplefilter("ignore")
            graph = self.trace(twin, concrete_args=dict(self.way.given) or None)
            gc.collect(0)  # frames of the trace hold symbols in cycles
        self._show_stored(graph)
        return graph

    def _show_stored(self, graph: fx.Graph) -> None:
        """A tensor that the model's code has stored (in an attribute, a list, a global) is used by
        what no trace shows: a call of `id` stands for that. Nothing else keeps a symbol alive.
        """
        with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
            for node in {symbol.node for symbol in self.symbols}:
                graph.call_function(id, (node,))

    def turnings(self) -> list[list[bool]]:
        """The ways that branch off from the new part of this one."""
        new = range(len(self.turns), len(self.taken))
        return [[*self.taken[:index], not self.taken[index]] for index in new]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.way.module.get_submodule(module_qualified_name) not in self.way.inside

    def to_bool(self, obj: fx.Proxy) -> bool:
        index = len(self.taken)
        if index == _MOST_BRANCHES:
            raise TraceError("a loop that symbols control")
        self.taken.append(self.turns[index] if index < len(self.turns) else False)
        return self.taken[index]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        symbol = _Symbol(node, self)
        self.symbols.add(symbol)
        return symbol

    def iter(self, obj: Any) -> Iterator[Any]:
        """Sizes are unpacked as two, though their number is unknown: they are only numbers."""
        return iter([obj[0], obj[1]]) if _is_size(obj.node) else super().iter(obj)

    def keys(self, obj: fx.Proxy) -> Any:
        """Nothing is passed as `**kwargs`."""
        return iter(()) if str(obj.node.target).startswith("**") else super().keys(obj)


class _Unsized:
    """`(*sizes, -1)` asks for a hint of the length, and takes a TypeError as none."""

    def __len__(self) -> int:
        raise TypeError("a symbol has no length")


class _Symbol(_Unsized, fx.Proxy):
    def __getattr__(self, name: str) -> "_Attribute":
        return _Attribute(self, name)


class _Attribute(_Unsized, Attribute):
    pass


def _recorded(function: Callable[..., Any]) -> Callable[..., fx.Proxy]:
    return lambda self, *arguments: self.tracer.create_proxy(
        "call_function", function, (self, *arguments), {}
    )


# Left to itself, torch.fx takes `y += x` for `y = y + x`, and refuses `y[0] = x`.
for _function in IN_PLACE:
    setattr(_Symbol, f"__{_function.__name__}__", _recorded(_function))


def _is_size(node: fx.Node) -> bool:
    """Whether a node is the shape of a tensor, or a slice of that."""
    if node.op == "call_method" and node.target == "size":
        return len(node.args) == 1
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    source = node.args[0] if node.args else None
    sliced = getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], slice)
    return sliced and isinstance(source, fx.Node) and _is_size(source)


def twin_of(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters: what runs on it leaves no trace on the module."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in module.parameters()})
