"""What a conversion is going to do, settled before anything is changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from cosnorm.conversion.account import Entry
from cosnorm.conversion.fusing import Link, fusions
from cosnorm.conversion.heads import Head, chosen_heads
from cosnorm.conversion.layers import (
    can_never_learn,
    is_depthwise,
    is_quantised,
    obstacle,
    small_depthwise,
    template,
    torch_layer,
)
from cosnorm.conversion.norm_kinds import is_norm
from cosnorm.conversion.redundant_norms import Verdict, judge
from cosnorm.conversion.restoring import Saved
from cosnorm.conversion.selection import Skip, skipped, within
from cosnorm.conversion.tracing import Reader
from cosnorm.conversion.trial import Trial

MOST_NAMED = 8  # parameters in a note
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
    norms: dict[nn.Module, Verdict]
    fresh: set[nn.Module]  # to be initialised anew
    fast_paths: list[nn.Module]
    looked_for_head: bool
    scales: dict[nn.Module, Tensor] = field(default_factory=dict)  # from a batch of data, or saved
    has_state: bool = False
    fused: dict[nn.Module, list[Link]] | None = None  # None: was not asked for

    @property
    def dropped(self) -> list[nn.Module]:
        return [norm for norm, verdict in self.norms.items() if verdict.goes]

    @property
    def taken_over(self) -> dict[nn.Module, list[nn.Module]]:
        """The activations that go into layers, and these."""
        found: dict[nn.Module, dict[nn.Module, None]] = {}
        for layer, links in (self.fused or {}).items():
            for link in links:
                found.setdefault(link.activation, {})[layer] = None
        return {activation: list(layers) for activation, layers in found.items()}

    def entries(self) -> list[Entry]:
        first = {module: name for name, module in reversed(self.names.items())}
        taken_over = self.taken_over
        return [
            self._entry(name, module, first, taken_over.get(module))
            for name, module in self.names.items()
            if module in taken_over or _is_layer(name, module)
        ]

    def _entry(
        self,
        name: str,
        module: nn.Module,
        first: Mapping[nn.Module, str],
        into: Iterable[nn.Module] | None,
    ) -> Entry:
        """into: the layers that fuse an activation."""
        was = type(module).__name__
        if into is not None:
            layers = ", ".join(_seen_from(name, first[layer]) for layer in into)
            now, reason = "Identity", f"fused into {layers}"
        elif module in self.norms:
            verdict = self.norms[module]
            layers = ", ".join(_seen_from(name, first[layer]) for layer in verdict.layers)
            rest = "Sequential" if module._modules else "Identity"
            now, reason = rest if verdict.goes else None, verdict.reason.format(layers)
        elif module in self.patterns:
            now, reason = type(self.patterns[module]).__name__, self._about(name, module, first)
        else:
            return Entry(name, was, None, self.left[name])
        if now is not None and name != first[module]:
            reason = f"the same object as {first[module]}"
        return Entry(name, was, now, reason)

    def _about(self, name: str, layer: nn.Module, first: Mapping[nn.Module, str]) -> str:
        """What a layer that is converted has beside its new class."""
        about = []
        if layer in self.heads:
            measured = self.scales.get(layer)
            start = f"{self.heads[layer]:g}" if measured is None else f"{float(measured):.3g}"
            about.append(f"head: learned scale from {start}")
        elif layer in self.scales:
            low, high = (float(end) for end in self.scales[layer].aminmax())
            about.append(f"learned scales from {low:.3g} to {high:.3g}")
        elif self.scales and not self.has_state:
            about.append(
                "not calibrated: the batch does not run it, or gives it similarities of zero (rows "
                "of zeros, of one number, out of range), or it begins anew"
            )
        norm = next((norm for norm, v in self.norms.items() if layer in v.unbiased), None)
        if norm is not None:
            about.append(f"its bias, which was zero, went with {_seen_from(name, first[norm])}")
        if layer in self.fresh:
            about.append("initialised anew: its weights had no direction and would never learn")
        return "; ".join(about)

    def notes(self) -> list[str]:
        notes = []
        scaled = dict.fromkeys((*self.heads, *self.scales))
        new = [f"{name}.scale" if name else "scale" for name in self._first_names(scaled)]
        if len(new) > MOST_NAMED:
            new = [*new[: MOST_NAMED - 1], f"{len(new) - MOST_NAMED + 1} more"]
        if new:
            notes.append(f"New parameters, unknown to an optimiser made before: {', '.join(new)}.")
        if self.looked_for_head and self.patterns and not self.heads:
            scale = "" if scaled else ", so no layer has a learned scale"
            notes.append(
                f"No head was found{scale}: if a layer makes logits, give its name as head."
            )
        if self.has_state and not scaled:
            notes.append(
                "The state has no scale: if it is that of a model before its conversion, load it "
                "first and convert then."
            )
        if self.fused == {}:
            notes.append(
                "No activation was taken over: none is sure to get all that layers without one "
                "give, and nothing else."
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
    depthwise: bool | None,
    trial: Trial | None,
    state: Any = None,
    fuse_activations: bool = False,
) -> Plan:
    """Settle what happens to every module; raises for arguments that fit nothing.

    state: of a model that was converted so before; what depends on weights and data is as there.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    untouched = _untouched(names, skipped(names, skip))
    centered = similarity == "pearson"
    left = _left(names, untouched, centered, depthwise, trial)
    planned = {name: module for name, module in names.items() if name not in left}
    layers = dict.fromkeys(planned.values())
    reader = Reader(model, {*layers, *(module for module in names.values() if is_norm(module))})
    heads = chosen_heads(model, head, planned, reader)
    saved = None if state is None else Saved(state, model, names)
    norms: dict[nn.Module, Verdict] = {}
    untouchable = {names[name] for name in untouched}
    ran = trial.ran if trial else ()
    if drop_norms:
        is_unbiased = None if saved is None else lambda layer: not saved.has_bias(layer)
        norms = judge(reader, names, set(layers), centered, ran, is_unbiased)
        norms = {norm: verdict for norm, verdict in norms.items() if norm not in untouchable}
    plan = Plan(names, left, {}, heads, norms, set(), [], False)
    if saved is None:
        plan = _anew(plan, similarity, layers, isinstance(head, str) and head == "auto")
    else:
        plan = _as_saved(plan, similarity, saved)
    if fuse_activations:
        plan.fused = fusions(reader, names, plan.patterns, plan.dropped, untouchable, ran)
        for layer, links in plan.fused.items():
            plan.patterns[layer].activation = links[0].name  # pyright: ignore
    return plan


def _anew(plan: Plan, similarity: str, layers: Iterable[nn.Module], looked_for_head: bool) -> Plan:
    """The plan with the templates of the layers."""
    unbiased = {layer for verdict in plan.norms.values() for layer in verdict.unbiased}
    patterns = {
        layer: template(layer, similarity, plan.heads.get(layer), layer not in unbiased)
        for layer in layers
    }
    fresh = {layer for layer in layers if can_never_learn(layer, similarity == "pearson")}
    return replace(
        plan,
        patterns=patterns,
        fresh=fresh,
        fast_paths=_fast_paths(plan.names, set(patterns)),
        looked_for_head=looked_for_head,
    )


def _as_saved(plan: Plan, similarity: str, saved: Saved) -> Plan:
    """The plan with the scales, biases and norms that the state has.

    A norm can have gone only where it may go, and a bias only with such a norm.
    """
    kept = Verdict(False, "a normalisation layer, in the state")
    norms = {norm: kept if saved.has_gone(norm) is False else v for norm, v in plan.norms.items()}
    unbiased = {layer for v in norms.values() if v.goes for layer in v.unbiased}
    heads, patterns, scales = {}, {}, {}
    for layer in dict.fromkeys(m for name, m in plan.names.items() if name not in plan.left):
        scale, weight = saved.get(layer, "scale"), layer._parameters["weight"]
        pattern = template(layer, similarity, None, layer not in unbiased)
        units = getattr(pattern, "out_features", None) or pattern.out_channels
        if scale is not None and scale.numel() == 1 and (units != 1 or layer in plan.heads):
            heads[layer] = float(scale.detach())
            pattern = template(layer, similarity, heads[layer], layer not in unbiased)
        elif scale is not None and weight is not None:
            scales[layer] = scale.detach().to(weight.device, copy=True)
        patterns[layer] = pattern
    fast_paths = _fast_paths(plan.names, set(patterns))
    changed = {"norms": norms, "heads": heads, "patterns": patterns, "scales": scales}
    return replace(plan, **changed, fast_paths=fast_paths, has_state=True)


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
    names: Mapping[str, nn.Module],
    untouched: Mapping[str, str],
    centered: bool,
    depthwise: bool | None,
    trial: Trial | None,
) -> dict[str, str]:
    """The reason for each name that stays as it is; an object with one such name stays too."""
    left = dict(untouched)
    for name, module in names.items():
        if name not in left:
            reason = "a normalisation layer" if is_norm(module) else obstacle(module, centered)
            reason = reason or _left_depthwise(module, depthwise)
            reason = reason or (None if trial is None else trial.idle(module))
            if reason:
                left[name] = reason
    staying = {names[name]: name for name in left}
    for name, module in names.items():
        if name not in left and module in staying:
            left[name] = f"the same object as {staying[module]}, which stays"
    return left


def _left_depthwise(module: nn.Module, depthwise: bool | None) -> str | None:
    if depthwise is None:
        return small_depthwise(module)
    return None if depthwise or not is_depthwise(module) else "depthwise, and depthwise=False"


def _fast_paths(names: Mapping[str, nn.Module], planned: set[nn.Module]) -> list[nn.Module]:
    """Torch's transformer layers that would read the weights of converted layers directly."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
    modules = dict.fromkeys(module for module in names.values() if isinstance(module, kinds))
    return [module for module in modules if planned.intersection(module.modules())]


def _seen_from(name: str, other: str) -> str:
    """The other's name, without the container of the first if that holds it too."""
    container = name.rpartition(".")[0]
    return other.removeprefix(f"{container}.") if container else other


def _is_layer(name: str, module: nn.Module) -> bool:
    """Whether a module has something of its own to account for: state, or a layer's class."""
    if "parametrizations" in name.split("."):  # the insides of the layer above
        return False
    state = [*module._parameters.values(), *module._buffers.values()]
    known = is_quantised(module) or is_norm(module) or torch_layer(module) is not None
    return known or any(tensor is not None for tensor in state)
