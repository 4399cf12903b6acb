"""Which normalisation layers can go, and why the others can't.

Those directly behind a converted layer, whose work the similarity does; and those that make no
difference to the converted layers into which alone they go: pearson(a·x + c·1, w) = pearson(x, w)
and cos(a·x, w) = cos(x, w) for a > 0. The witness is a trace of the model; names are none.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import fx, nn

from cosnorm.conversion.flow import Call, Fact, source, targets
from cosnorm.conversion.layers import is_similar
from cosnorm.conversion.norm_kinds import effect, is_even, is_norm, is_plain, width
from cosnorm.conversion.selection import within
from cosnorm.conversion.tracing import Part, Reader


class Verdict(NamedTuple):
    """Whether a norm goes and why; in the reason {} stands for the names of `layers`."""

    goes: bool
    reason: str
    layers: tuple[nn.Module, ...] = ()
    unbiased: tuple[nn.Module, ...] = ()  # the layers whose bias, which is zero, goes with it


def judge(
    reader: Reader,
    names: Mapping[str, nn.Module],
    planned: set[nn.Module],
    centered: bool,
    ran: Iterable[nn.Module] = (),
    is_unbiased: Callable[[nn.Module], bool] | None = None,
) -> dict[nn.Module, Verdict]:
    """A verdict on each norm of a model; with several names or calls it must be free in each.

    planned: the layers that will be converted, `centered` as Pearson layers. ran: modules that are
    known to run. is_unbiased: whether a layer's bias is zero; None to look at it.
    """
    modules = set(names.values())
    norms = {module for module in modules if is_norm(module)}
    similar = planned | {module for module in modules if is_similar(module)}
    owners = Counter(id(p) for module in modules for p in module._parameters.values())
    calls: dict[nn.Module, list[Call] | None] = {}  # of each norm; None where there may be others
    for part in reader.parts if norms else ():
        known = part.called or part.module in set(ran)
        for norm, node in _norm_nodes(part, norms):
            here = all(within(n, part.name) for n, module in names.items() if module is norm)
            found = calls.setdefault(norm, [])
            if not (known and here):
                calls[norm] = None
            elif found is not None:
                found.append(Call(part, node, planned, similar))
    read = {norm for part in (reader.parts if norms else ()) for norm in _read_norms(part, norms)}
    elsewhere = Verdict(False, "a normalisation layer whose parameters are used elsewhere too")
    return {
        norm: elsewhere
        if norm in read
        else _verdict(norm, calls.get(norm), centered, is_unbiased or _is_zero, owners)
        for norm in norms
    }


def _read_norms(part: Part, norms: set[nn.Module]) -> Iterator[nn.Module]:
    """The norms of which a part takes a parameter or buffer, beside calling them."""
    for graph in part.graphs:
        for node in graph.nodes:
            if node.op == "get_attr":
                owner = part.module.get_submodule(str(node.target).rpartition(".")[0])
                if owner in norms:
                    yield owner


def _norm_nodes(part: Part, norms: set[nn.Module]) -> Iterator[tuple[nn.Module, fx.Node]]:
    for graph in part.graphs:
        for node in graph.nodes:
            target = part.target(node)
            if target is not None and target in norms:
                yield target, node


def _verdict(
    norm: nn.Module,
    calls: list[Call] | None,
    centered: bool,
    is_unbiased: Callable[[nn.Module], bool],
    owners: Mapping[int, int],
) -> Verdict:
    features = width(norm)
    about = "what it follows" if features is None else "what it follows and goes into"
    unknown = Verdict(False, f"a normalisation layer; {about} could not be established")
    if not calls:
        return unknown
    before = [source(call) for call in calls]
    layers = [found for found in before if isinstance(found, nn.Module)]
    if len(layers) == len(calls):
        return _behind(norm, layers[0])
    after = [] if features is None else [targets(call, features) for call in calls]
    lists = [found for found in after if isinstance(found, list)]
    if len(lists) == len(calls) and any(lists):
        into = tuple(dict.fromkeys(m for found in lists for m in found))
        return _before(norm, into, centered, is_unbiased, owners)
    facts = {*before, *(found for found in after if isinstance(found, Fact))}
    if Fact.CHANGED in facts:
        between = "between it and a converted layer the tensor is changed or used elsewhere"
        return Verdict(False, f"a normalisation layer; {between}")
    if Fact.UNKNOWN in facts:
        return unknown
    nor = "" if features is None else ", nor goes only into converted linear layers"
    follows = "a normalisation layer that does not directly follow a converted layer"
    return Verdict(False, follows + nor)


def _behind(norm: nn.Module, layer: nn.Module) -> Verdict:
    """The verdict on a norm that directly follows `layer`."""
    if not is_plain(norm):
        return Verdict(False, "directly follows {}, but what else it does is not known", (layer,))
    rest = ", ".join(name for name, _ in norm.named_children())
    return Verdict(True, "directly follows {}" + (f"; {rest} stay" if rest else ""), (layer,))


def _before(
    norm: nn.Module,
    layers: tuple[nn.Module, ...],
    centered: bool,
    is_unbiased: Callable[[nn.Module], bool],
    owners: Mapping[int, int],
) -> Verdict:
    """The verdict on a norm whose output goes only into `layers`."""
    into = "goes only into {}, but"
    if not is_even(norm):
        return Verdict(False, f"{into} its gain or shift differs from feature to feature", layers)
    does = effect(norm)
    if does is None:
        return Verdict(False, f"{into} what it does to a row is not known", layers)
    if not centered and does != "scales":
        return Verdict(False, f"{into} it takes off the mean, which the cosine sees", layers)
    biased = [layer for layer in layers if layer._parameters.get("bias") is not None]
    if any(owners[id(layer._parameters["bias"])] > 1 for layer in biased):
        return Verdict(False, f"{into} beside a bias that other modules have too", layers)
    if not all(is_unbiased(layer) for layer in biased):
        return Verdict(False, f"{into} beside a bias, not zero, the length of a row counts", layers)
    same = "makes no difference to {}, into which alone it goes"
    if biased:  # a similarity of n entries instead of n + 1, one of which was zero
        same = "goes only into {}, to which it makes no difference without their zero bias"
    return Verdict(True, same, layers, (*biased,))


def _is_zero(layer: nn.Module) -> bool:
    bias = layer._parameters["bias"]
    return bias is not None and not bias.is_meta and not bias.any()
