"""Who computes a layer, torch, or Triton where it serves; and how, worked out once."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from torch import Tensor

from cosnorm.ops import eager
from cosnorm.ops.spec import Spec

Grads = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Backend(Protocol):
    """A layer forward and backward. What passes from one to the other is the backend's own, and so
    is the plan: what it has worked out for all calls between tensors of one kind.
    """

    def plan_for(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        spec: Spec,
        folded: bool = False,
    ) -> Any:
        """folded: for `infer`."""
        ...

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        plan: Any,
        keep: bool,
    ) -> tuple[Tensor, list[Tensor | None]]: ...

    def backward(
        self,
        grad: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        kept: Sequence[Tensor | None],
        plan: Any,
        need: Sequence[bool],
    ) -> Grads: ...

    def infer(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        total: Tensor | None,
        scale: Tensor | None,
        plan: Any,
    ) -> Tensor:
        """y alone, of weights that are units already, with their sums Σv for Pearson."""
        ...


class Way(NamedTuple):
    """How calls between tensors of one kind are served."""

    spec: Spec
    backend: Backend
    plan: Any
    era: int  # the choice of a backend under which it was found


EAGER = cast(Backend, eager)
_choice, era = "auto", 0  # era: how often the choice was made


def set_backend(name: str) -> str:
    """Choose what computes the layers: "torch", "triton", or "auto", Triton where it serves.

    Returns the choice that was in force. Whatever Triton does not serve, torch does.
    """
    global _choice, era
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f'backend must be "auto", "torch" or "triton", got {name!r}')
    previous, _choice, era = _choice, name, era + 1
    return previous


@cache
def _triton() -> Any:
    """The room of the kernels; None where triton is not installed, or of a kind they don't know."""
    try:
        return import_module("cosnorm.ops.triton")
    except (ImportError, AttributeError):
        return None


def backend_for(input: Tensor, weight: Tensor, spec: Spec) -> Backend:
    if _choice == "torch" or (_choice == "auto" and input.device.type != "cuda"):
        return EAGER
    room = _triton()
    return room if room is not None and room.serves(input, weight, spec) else EAGER


def way_for(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
    folded: bool = False,
) -> Way:
    begun = era  # asked first: a choice that is made meanwhile must not pass for this one's
    backend: Any = backend_for(input, weight, spec)
    plan = backend.plan_for(input, weight, bias, scale, spec, folded)
    if backend is not EAGER and plan.early:
        backend = backend.early  # a room of its own, with the same plans
    return Way(spec, backend, plan, begun)
