"""What a conversion is going to do, settled before anything is changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from cosnorm.conversion.account import Entry
from cosnorm.conversion.layers import is_quantised, obstacle, template, torch_layer
from cosnorm.conversion.norms import NORMS, followed
from cosnorm.conversion.selection import Head, Skip, chosen_heads, skipped, within

HEAD_SCALE = 10.0
"""Where the learned scale of a converted head starts: its logits then lie within ±10."""

# Nothing below these is touched.
_OPAQUE = {
    nn.MultiheadAttention: "uses the weights of its layers without calling them",
    nn.AdaptiveLogSoftmaxWithLoss: "makes one softmax of several layers",
    torch.jit.ScriptModule: "scripted: its code is fixed",
}


@dataclass
class Plan:
    """The layers to convert with their templates, the norms to drop, and the reasons for the rest.

    `names` holds every name of every module; a module with two names is there twice.
    """

    names: dict[str, nn.Module]
    left: dict[str, str]
    patterns: dict[nn.Module, nn.Module]
    heads: dict[nn.Module, float]
    dropped: dict[nn.Module, str]
    fast_paths: list[nn.Module]
    looked_for_head: bool

    def entries(self) -> list[Entry]:
        first = {module: name for name, module in reversed(self.names.items())}
        return [
            self._entry(name, module, first[module])
            for name, module in self.names.items()
            if _is_layer(name, module)
        ]

    def _entry(self, name: str, module: nn.Module, first: str) -> Entry:
        was = type(module).__name__
        if module in self.dropped:
            now, reason = "Identity", f"directly follows {_seen_from(name, self.dropped[module])}"
        elif module in self.patterns:
            now, reason = type(self.patterns[module]).__name__, ""
        else:
            return Entry(name, was, None, self.left[name])
        if module in self.heads:
            reason = f"head: learned scale from {self.heads[module]:g}"
        if name != first:
            reason = f"the same object as {first}"
        return Entry(name, was, now, reason)

    def notes(self) -> list[str]:
        notes = []
        new = [f"{name}.scale" if name else "scale" for name in self._first_names(self.heads)]
        if new:
            notes.append(f"New parameters, unknown to an optimiser made before: {', '.join(new)}.")
        if self.looked_for_head and self.patterns and not self.heads:
            notes.append(
                "No head was found, so no layer has a learned scale: if one makes logits, "
                "give its name as head."
            )
        if self.fast_paths:
            notes.append("The fused inference path of nn.TransformerEncoderLayer is off.")
        return notes

    def _first_names(self, modules: Iterable[nn.Module]) -> list[str]:
        return [next(n for n, m in self.names.items() if m is module) for module in modules]


def make_plan(
    model: nn.Module,
    similarity: str,
    skip: Skip | Iterable[Skip],
    head: Head,
    drop_norms: bool,
) -> Plan:
    """Settle what happens to every module; raises for arguments that fit nothing."""
    names = dict(model.named_modules(remove_duplicate=False))
    untouched = _untouched(names, skipped(names, skip))
    left = _left(names, untouched, centered=similarity == "pearson")
    planned = {name: module for name, module in names.items() if name not in left}
    heads = chosen_heads(model, head, planned, HEAD_SCALE)
    patterns = {m: template(m, similarity, heads.get(m)) for m in planned.values()}
    dropped: dict[nn.Module, str] = {}
    if drop_norms:
        untouchable = {names[name] for name in untouched}
        verdicts = followed(model, names, set(patterns))
        first = {module: name for name, module in reversed(planned.items())}
        for norm, layer in verdicts.items():
            if layer is not None and norm not in untouchable:
                dropped[norm] = first[layer]
        left |= _kept_norms(names, untouched, verdicts)
    fast_paths = _fast_paths(names, set(patterns))
    return Plan(names, left, patterns, heads, dropped, fast_paths, head == "auto")


def _untouched(names: Mapping[str, nn.Module], skips: Mapping[str, str]) -> dict[str, str]:
    """The reason for each name that was skipped or lies below an opaque module."""
    untouched = dict(skips)
    for name, module in names.items():
        why = next((why for kind, why in _OPAQUE.items() if isinstance(module, kind)), None)
        if why is not None:
            untouched.setdefault(name, why)
            part = f"part of {name or 'the model'} ({type(module).__name__})"
            for below in names:
                if within(below, name):
                    untouched.setdefault(below, part)
    return untouched


def _left(
    names: Mapping[str, nn.Module], untouched: Mapping[str, str], centered: bool
) -> dict[str, str]:
    """The reason for each name that stays as it is; an object with one such name stays too."""
    left = dict(untouched)
    for name, module in names.items():
        if name not in left:
            norm = isinstance(module, NORMS)
            reason = "a normalisation layer" if norm else obstacle(module, centered)
            if reason:
                left[name] = reason
    staying = {names[name]: name for name in left}
    for name, module in names.items():
        if name not in left and module in staying:
            left[name] = f"the same object as {staying[module]}, which stays"
    return left


def _kept_norms(
    names: Mapping[str, nn.Module],
    untouched: Mapping[str, str],
    verdicts: Mapping[nn.Module, nn.Module | None],
) -> dict[str, str]:
    follows_another = "a normalisation layer that does not directly follow a converted layer"
    unknown = "a normalisation layer; what it follows could not be established"
    return {
        name: follows_another if module in verdicts else unknown
        for name, module in names.items()
        if isinstance(module, NORMS) and name not in untouched
    }


def _fast_paths(names: Mapping[str, nn.Module], planned: set[nn.Module]) -> list[nn.Module]:
    """Torch's transformer layers that would read the weights of converted layers directly."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
    modules = dict.fromkeys(module for module in names.values() if isinstance(module, kinds))
    return [module for module in modules if planned.intersection(module.modules())]


def _seen_from(name: str, other: str) -> str:
    """The other's name, without the container that it shares with the first."""
    container, _, last = other.rpartition(".")
    return last if container == name.rpartition(".")[0] else other


def _is_layer(name: str, module: nn.Module) -> bool:
    """Whether a module has something of its own to account for: state, or a layer's class."""
    if "parametrizations" in name.split("."):  # the insides of the layer above
        return False
    state = [*module._parameters.values(), *module._buffers.values()]
    return (
        is_quantised(module) or torch_layer(module) is not None or any(t is not None for t in state)
    )
