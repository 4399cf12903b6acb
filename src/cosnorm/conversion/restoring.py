"""A model that was converted, trained and saved: what it became is read from its state_dict.

Which norms went, which biases with them and which layers have a scale depends on the weights and
the batch of then. A new model has neither; the names in the state tell.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

State = Mapping[str, Tensor]
MOST_NAMED = 4  # keys in a message


class Saved:
    """A state_dict, asked about the modules of the model that it is for."""

    def __init__(self, state: Any, names: Mapping[str, nn.Module]) -> None:
        if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
            kind = type(state).__name__
            raise TypeError(
                f"state must be a state_dict, tensors by name; got {kind}: load the file first, as "
                "by safetensors.torch.load_file"
            )
        self.state: State = state
        self._names: dict[nn.Module, list[str]] = {}
        for name, module in names.items():
            self._names.setdefault(module, []).append(name)

    def keys(self, module: nn.Module, entry: str) -> list[str]:
        """What an entry of a module is called, by each of its names."""
        return [f"{name}.{entry}" if name else entry for name in self._names[module]]

    def get(self, module: nn.Module, entry: str) -> Tensor | None:
        return next((self.state[k] for k in self.keys(module, entry) if k in self.state), None)

    def has_bias(self, layer: nn.Module) -> bool:
        return self.get(layer, "bias") is not None

    def has_gone(self, norm: nn.Module) -> bool | None:
        """Whether a norm went; None for one that leaves nothing in a state."""
        own = [name for name, _ in norm.named_parameters(recurse=False)]
        own += [name for name in norm._buffers if name not in norm._non_persistent_buffers_set]
        own = [name for name in own if getattr(norm, name) is not None]
        return all(self.get(norm, name) is None for name in own) if own else None


def check_state(
    model: nn.Module,
    saved: Saved,
    patterns: Mapping[nn.Module, nn.Module],
    dropped: Iterable[nn.Module],
    scales: Mapping[nn.Module, Tensor],
) -> None:
    """Raise ValueError where the converted model and the state do not fit."""
    tensors = model.state_dict(keep_vars=True)
    wanted = {key: tuple(t.shape) for key, t in tensors.items() if isinstance(t, Tensor)}
    for norm in dropped:
        for entry in (*norm._parameters, *norm._buffers):
            for key in saved.keys(norm, entry):
                wanted.pop(key, None)
    for layer, pattern in patterns.items():
        for key in saved.keys(layer, "bias"):
            if pattern.bias is None:
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
    beside = [key for key in state if key not in wanted and isinstance(state[key], Tensor)]
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
            "state must be that of such a model, converted with the same similarity, skip, "
            f"depthwise and drop_norms; it {'; '.join(told)}"
        )


def _some(keys: list[str]) -> str:
    more = len(keys) - MOST_NAMED
    return ", ".join([*keys[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])])
