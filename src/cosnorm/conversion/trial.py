"""A trial call: which modules of a model run, and which layers' weights other code reads."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cosnorm.conversion.tracing import twin_of

Example = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


class Trial(NamedTuple):
    """What a call showed."""

    ran: set[nn.Module]
    read: set[nn.Module]  # `weight` or `bias` was asked for outside of the layer's own forward

    def idle(self, layer: nn.Module) -> str | None:
        """Why a layer that did not run has to stay; None for one that ran."""
        if layer in self.ran:
            return None
        reader = ": other code reads its weight" if layer in self.read else ""
        return f"does not run on the example{reader}"


@torch.no_grad()
def try_out(model: nn.Module, example: Example) -> Trial:
    """Call a copy of the model, in evaluation mode and without gradients.

    example: the input, a tuple or list of arguments, or a mapping of keyword arguments.
    Raises TypeError for anything else, ValueError if the model does not take it.
    """
    arguments, options = arguments_of(example, "example")
    twin = copy_of(model, twin_of, "example").eval()
    trial = Trial(set(), set())
    for original, copied in zip(model.modules(), twin.modules(), strict=True):
        leave_fast_path(copied)
        _watch(original, copied, trial)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            twin(*arguments, **options)
    except Exception as error:
        raise ValueError(
            f"example must be an input that the model takes; it raised {type(error).__name__}: "
            f"{error}; pass the input, a tuple of arguments or a dict of keyword arguments"
        ) from error
    return trial


def copy_of(model: nn.Module, how: Callable[[nn.Module], nn.Module], name: str) -> nn.Module:
    """A copy of the model; ValueError, which names the argument, for one that can't be copied."""
    try:
        return how(model)
    except Exception as error:  # whatever an attribute does
        raise ValueError(
            f"{name} works on a copy of the model, which copy.deepcopy must make; it raised "
            f"{type(error).__name__}: {error}; leave {name} out, or take off what can't be copied"
        ) from error


def check_in_memory(model: nn.Module, name: str) -> None:
    """Raise ValueError, which names the argument, where a tensor of the model has no values."""
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ValueError(
                f"{name} needs a model whose weights are in memory; {key} is on the meta device: "
                f"call model.to_empty(device=...) or load them first, or leave {name} out"
            )


def arguments_of(example: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What to call a model with; TypeError, which names the argument, for what says nothing."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    raise TypeError(
        f"{name} must be a tensor, a tuple of arguments or a dict of keyword arguments; got "
        f"{type(example).__name__}"
    )


def _watch(original: nn.Module, copied: nn.Module, trial: Trial) -> None:
    """Note when a module runs, however it is called, and when its weight is read otherwise."""
    kind: Any = type(copied)
    inside = [0]

    class Watched(kind):
        def forward(self, *arguments: Any, **options: Any) -> Any:
            trial.ran.add(original)
            inside[0] += 1
            try:
                return super().forward(*arguments, **options)
            finally:
                inside[0] -= 1

        def __getattribute__(self, name: str) -> Any:
            if name in ("weight", "bias") and not inside[0]:
                trial.read.add(original)
            return super().__getattribute__(name)

    if not isinstance(copied, torch.jit.ScriptModule) and "forward" not in vars(copied):
        # Libraries look classes up by their full names.
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(Watched, name, getattr(kind, name))
        copied.__class__ = Watched


def leave_fast_path(module: nn.Module) -> None:
    """Make torch's transformer call its layers in inference too, not only read their weights."""
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # what the layer itself sets where it has no fast path
