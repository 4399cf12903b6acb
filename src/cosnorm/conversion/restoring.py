"""A model that was converted, trained and saved: what it became is read from its state_dict.

Which norms went, which biases with them and which layers have a scale depends on the weights and
the batch of then. A new model has neither; the names in the state tell.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

State = Mapping[str, Tensor]
MOST_NAMED = 4  # keys in a message


class Saved:
    """A state_dict, asked about the modules of the model that it is for."""

    def __init__(self, state: Any, model: nn.Module, names: Mapping[str, nn.Module]) -> None:
        self.tensors: dict[str, Any] = model.state_dict(keep_vars=True)
        for key, tensor in self.tensors.items():
            if is_lazy(tensor):
                raise ValueError(
                    f"state needs a model of known shapes; {key} has none yet: run the model on a "
                    "batch first"
                )
        self.state: State = _without_prefix(_checked(state), self.tensors)
        self._names: dict[nn.Module, list[str]] = {}
        for name, module in names.items():
            self._names.setdefault(module, []).append(name)
        self._tied: dict[int, list[str]] = {}  # every name of a tensor: files may have one of them
        for key, tensor in self.tensors.items():
            self._tied.setdefault(id(tensor), []).append(key)

    def keys(self, module: nn.Module, entry: str) -> list[str]:
        """What an entry of a module is called, by each of its names, and by those it is tied to."""
        own = [f"{name}.{entry}" if name else entry for name in self._names[module]]
        tied = [self._tied.get(id(self.tensors[key]), []) for key in own if key in self.tensors]
        return list(dict.fromkeys([*own, *(key for keys in tied for key in keys)]))

    def get(self, module: nn.Module, entry: str) -> Tensor | None:
        return next((self.state[k] for k in self.keys(module, entry) if k in self.state), None)

    def has_bias(self, layer: nn.Module) -> bool:
        return self.get(layer, "bias") is not None

    def has_gone(self, norm: nn.Module) -> bool | None:
        """Whether a norm went; None for one that leaves nothing in a state."""
        own = [name for name in (*norm._parameters, *norm._buffers) if self._is_kept(norm, name)]
        return all(self.get(norm, name) is None for name in own) if own else None

    def _is_kept(self, norm: nn.Module, name: str) -> bool:
        return getattr(norm, name) is not None and name not in norm._non_persistent_buffers_set


def _checked(state: Any) -> State:
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        kind = type(state).__name__
        raise TypeError(
            f"state must be a state_dict, tensors by name; got {kind}: load the file first, as by "
            "safetensors.torch.load_file"
        )
    for key, value in state.items():
        if key.endswith("_extra_state"):
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"state must be a state_dict, tensors by name; got {type(value).__name__} for "
                f"{key!r}: pass the model's own part of a checkpoint, as torch tensors"
            )
        if value.is_meta or value.layout != torch.strided:
            raise ValueError(
                f"the tensors of state must be dense and in memory; {key!r} is not: load it so"
            )
        if key.rpartition(".")[2] == "scale" and not bool(value.isfinite().all()):
            raise ValueError(f"the scales of state must be finite; {key!r} is not: load another")
    return state


def _without_prefix(state: State, tensors: Mapping[str, Any]) -> State:
    """What a wrapper (torch.compile, parallel training) has put before every name goes."""
    for prefix in ("_orig_mod.", "module."):
        is_own = any(key.startswith(prefix) for key in tensors)
        if state and not is_own and all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def check_state(
    saved: Saved,
    patterns: Mapping[nn.Module, nn.Module],
    dropped: Iterable[nn.Module],
    scales: Mapping[nn.Module, Tensor],
) -> None:
    """Raise ValueError where the converted model and the state do not fit."""
    tensors = saved.tensors
    wanted = {key: tuple(t.shape) for key, t in tensors.items() if _counts(key, t)}
    for norm in dropped:
        for entry in (*norm._parameters, *norm._buffers):
            for key in saved.keys(norm, entry):
                wanted.pop(key, None)
    for layer, pattern in patterns.items():
        for key in saved.keys(layer, "bias") if pattern.bias is None else ():
            wanted.pop(key, None)
        own = saved.keys(layer, "scale")
        if layer in scales:
            each = getattr(pattern, "out_features", None) or pattern.out_channels
            wanted |= dict.fromkeys((key for key in own if key in saved.state), (each,))
        elif pattern.scale is not None:
            wanted |= dict.fromkeys((key for key in own if key in saved.state), (1,))
    state = saved.state
    # Of tied tensors, files may hold one name.
    held = {id(tensors[key]) for key in wanted if key in state and key in tensors}
    lacks = [k for k in wanted if k not in state and id(tensors[k]) not in held]
    beside = [key for key, t in state.items() if key not in wanted and _counts(key, t)]
    other = [
        f"{key} {tuple(state[key].shape)} instead of {shape}"
        for key, shape in wanted.items()
        if key in state and tuple(state[key].shape) != shape
    ]
    told = [
        f"{word} {_some(keys)}"
        for word, keys in (("lacks", lacks), ("has beside it", beside), ("has", other))
        if keys
    ]
    if told:
        raise ValueError(
            "state must be that of such a model, converted alike; it "
            f"{'; '.join(told)}: give the similarity, skip, depthwise, drop_norms and example of "
            "then"
        )


def _counts(key: str, value: Any) -> bool:
    return isinstance(value, Tensor) and not key.endswith("_extra_state")


def _some(keys: list[str]) -> str:
    more = len(keys) - MOST_NAMED
    return ", ".join([*keys[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])])
