"""Which activations converted layers can take over: y = act(scale · c) in the pass that writes y.

An activation is taken over where the trace of the model shows that all outputs of its layers go
into it and into nothing else, and that it gets nothing else. What is an identity, or will be one
since it is a norm that goes, does not stand between them.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from cosnorm.conversion.flow import asks_size, has_hooks, hooked
from cosnorm.conversion.selection import within
from cosnorm.conversion.tracing import Part, Reader
from cosnorm.ops.activations import ACTIVATIONS

# Numbers of every size: thresholds, caps, small slopes and approximations show.
_SIZES = (*(10.0**k for k in range(-30, 31)), *(k / 8 for k in range(65)))
_POINTS = (*(-size for size in _SIZES), *_SIZES)


class Link(NamedTuple):
    """A call of a layer and the call of the activation behind it."""

    layer: nn.Module
    activation: nn.Module
    name: str
    node: fx.Node  # that runs the activation


def name_of(module: nn.Module) -> str | None:
    """The fused activation that a module is, whatever its class: tried on numbers."""
    if any(module.children()) or module._parameters or module._buffers:
        return None
    if isinstance(module, nn.Identity) or "forward" in vars(module):
        return None
    x = torch.tensor(_POINTS, dtype=torch.float64, device="cpu")
    points = [x, x.view(2, -1), x.float().view(1, -1, 2, 1)]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        tried = [_tried(module, x, mode) for x in points for mode in (True, False)]
    for name in ACTIVATIONS:
        if name is not None and all(_is(name, x, found) for x, found in tried):
            return name
    return None


def _tried(
    module: nn.Module, x: Tensor, training: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """x, and what a copy of a module makes of it, value and derivative; None where it fails, or
    keeps something of it.
    """
    twin, leaf = copy.deepcopy(module).train(training), x.clone().requires_grad_()
    before = dict(vars(twin))
    try:
        y = twin(leaf.clone())
        (slope,) = torch.autograd.grad(y.sum(), leaf)
    except Exception:  # whatever it is, it does not take such a tensor
        return x, None
    changed = vars(twin).keys() != before.keys() or any(
        vars(twin)[k] is not before[k] for k in before
    )
    return x, None if changed else (y.detach(), slope)


def _is(name: str, x: Tensor, found: tuple[Tensor, Tensor] | None) -> bool:
    if found is None or any(t.shape != x.shape or t.dtype != x.dtype for t in found):
        return False
    y, slope = found
    alike = ((y - ACTIVATIONS[name].value(x)).abs() <= 1e-6 * x.abs()).all()
    return bool(alike and ((slope - ACTIVATIONS[name].slope(x)).abs() <= 1e-5).all())


def fusions(
    reader: Reader,
    names: Mapping[str, nn.Module],
    planned: Iterable[nn.Module],
    gone: Iterable[nn.Module],
    untouched: Iterable[nn.Module],
    ran: Iterable[nn.Module] = (),
) -> dict[nn.Module, list[Link]]:
    """The layers that take over the activation behind them, each with a link for every call.

    planned: the layers that will be converted. gone: the norms that will not be there. untouched:
    modules that are to stay as they are. ran: modules that are known to run.
    """
    find = _Finder(names, set(planned), set(gone), set(untouched))
    for part in reader.parts:
        find.read(part, part.called or part.module in set(ran))
    return find.agreed()


class _Finder:
    def __init__(
        self,
        names: Mapping[str, nn.Module],
        planned: set[nn.Module],
        gone: set[nn.Module],
        untouched: set[nn.Module],
    ) -> None:
        self.names, self.planned, self.gone, self.untouched = names, planned, gone, untouched
        self.known: dict[nn.Module, str | None] = {}
        self.links: dict[nn.Module, list[Link | None]] = {}  # None: a call that has none
        self.calls: dict[nn.Module, set[fx.Node]] = {}  # that run a module, or what holds it

    def read(self, part: Part, runs: bool) -> None:
        for graph in part.graphs:
            for node in graph.nodes:
                module = part.target(node)
                if module is None:
                    continue
                for inner in module.modules():
                    self.calls.setdefault(inner, set()).add(node)
                if module in self.planned:
                    known = runs and self._lies_in(part, module)
                    link = self._link(part, module, node) if known else None
                    self.links.setdefault(module, []).append(link)

    def _link(self, part: Part, layer: nn.Module, node: fx.Node) -> Link | None:
        """The call of an activation that alone gets what a call of a layer gives."""
        here = node
        while True:
            users = [user for user in here.users if not asks_size(user)]
            if len(users) != 1 or users[0].all_input_nodes != [here]:
                return None
            here = users[0]
            module = part.target(here)
            if module is None or hooked(part, node, here):
                return None
            if isinstance(module, nn.Identity) or (module in self.gone and not module._modules):
                continue
            last = self._last(module) if module in self.gone else module
            name = None if last is None or last in self.untouched else self._name(last)
            if last is None or name is None or not self._lies_in(part, last):
                return None
            return Link(layer, last, name, here)

    def _last(self, norm: nn.Module) -> nn.Module | None:
        """The activation that a norm holds, where nothing else in it does anything."""
        *others, last = norm.children()
        plain = all(isinstance(other, nn.Identity) for other in others)
        return last if plain and not any(map(has_hooks, norm.children())) else None

    def _name(self, module: nn.Module) -> str | None:
        if module not in self.known:
            self.known[module] = name_of(module)
        return self.known[module]

    def _lies_in(self, part: Part, module: nn.Module) -> bool:
        """Whether a module has no name outside a part, where others may call it."""
        return all(within(name, part.name) for name, m in self.names.items() if m is module)

    def agreed(self) -> dict[nn.Module, list[Link]]:
        """The layers of which every call has a link, of one kind, to activations that no other
        call runs.
        """
        found = {
            layer: [link for link in links if link is not None]
            for layer, links in self.links.items()
            if all(links) and len({link.name for link in links if link is not None}) == 1
        }
        while True:
            reached: dict[nn.Module, set[fx.Node]] = {}
            for link in (link for links in found.values() for link in links):
                reached.setdefault(link.activation, set()).add(link.node)
            free = {module for module, nodes in reached.items() if nodes == self.calls[module]}
            kept = {
                layer: links
                for layer, links in found.items()
                if all(link.activation in free for link in links)
            }
            if len(kept) == len(found):
                return kept
            found = kept


def give_way(activation: nn.Module) -> None:
    """Make an activation an identity; the same object still."""
    activation.__class__ = nn.Identity
