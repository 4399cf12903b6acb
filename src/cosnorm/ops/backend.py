"""Who computes a layer: torch, or Triton where it serves."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from torch import Tensor

from cosnorm.ops import eager
from cosnorm.ops.spec import Spec

Grads = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Backend(Protocol):
    """A layer forward and backward. What passes from one to the other is the backend's own."""

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        spec: Spec,
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
        spec: Spec,
        need: Sequence[bool],
    ) -> Grads: ...

    def infer(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        total: Tensor | None,
        scale: Tensor | None,
        spec: Spec,
    ) -> Tensor:
        """y alone, of weights that are units already, with their sums Σv for Pearson."""
        ...


EAGER = cast(Backend, eager)
_choice = "auto"


def set_backend(name: str) -> str:
    """Choose what computes the layers: "torch", "triton", or "auto", Triton where it serves.

    Returns the choice that was in force. Whatever Triton does not serve, torch does.
    """
    global _choice
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f'backend must be "auto", "torch" or "triton", got {name!r}')
    previous, _choice = _choice, name
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
