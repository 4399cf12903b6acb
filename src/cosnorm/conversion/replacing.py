"""`convert`: an existing model in, a cosine model out."""

from collections.abc import Iterable
from typing import Literal

from torch import nn

from cosnorm.conversion.account import Account
from cosnorm.conversion.layers import graft
from cosnorm.conversion.planning import make_plan
from cosnorm.conversion.selection import Head, Skip

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


def convert(
    model: nn.Module,
    similarity: Literal["pearson", "cosine"] = "pearson",
    *,
    skip: Skip | Iterable[Skip] = (),
    head: Head = "auto",
    drop_norms: bool = False,
) -> Account:
    """Make the linear and convolution layers of a model cosine layers, in place.

    `Linear`, `Conv1d/2d/3d`, `ConvTranspose1d/2d/3d` and transformers' `Conv1D` change their class
    and remain the same objects: parameters, tied weights, hooks, dtype, device, mode and the keys
    of the state_dict stay. A bias becomes the extra entry of the weight vectors.

    Args:
        similarity: `"pearson"` (centred) or `"cosine"`.
        skip: names, patterns such as `"encoder.*.proj"`, module types or predicates
            `(name, module) -> bool`, one or several. Everything below a skipped module is skipped.
        head: the layers whose outputs are logits. They get one learned scale each, a parameter
            `scale` that starts at `HEAD_SCALE`. `"auto"` finds them by name and order, where that
            is sure; None for no scale; else a name, several, or a mapping from names to starts.
        drop_norms: replace by `nn.Identity` every normalisation layer that is sure to follow a
            converted layer directly.

    Returns:
        An `Account` with an entry for every layer. Print it.

    Raises:
        ValueError, TypeError: for an unknown similarity, a skip or head name that matches nothing,
            or a model that is not a module or already wrapped for parallel training. The model is
            then as it was.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> [entry.now for entry in convert(model)]
        ['PearsonLinear', 'PearsonLinear']
    """
    model = _checked(model, similarity, drop_norms)
    plan = make_plan(model, similarity, skip, head, drop_norms)
    account = Account(plan.entries(), plan.notes())
    for module, pattern in plan.patterns.items():
        graft(module, pattern)
    for norm in plan.dropped:
        _vanish(norm)
    for module in plan.fast_paths:
        _leave_fast_path(module)
    return account


def _checked(model: nn.Module, similarity: str, drop_norms: bool) -> nn.Module:
    """The model, out of a torch.compile wrapper; raises for what can't be converted."""
    if similarity not in ("pearson", "cosine"):
        raise ValueError(f"similarity must be 'pearson' or 'cosine'; got {similarity!r}")
    if not isinstance(drop_norms, bool):
        raise TypeError(f"drop_norms must be True or False; got {drop_norms!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    for module in model.modules():
        if type(module).__name__ in _WRAPPERS:
            raise ValueError(
                f"model must be converted before it is wrapped; got a {type(module).__name__}: "
                "convert the module inside, then wrap it"
            )
    return getattr(model, "_orig_mod", model)


def _vanish(norm: nn.Module) -> None:
    """Make a normalisation layer an identity, the same object still."""
    norm.__class__ = nn.Identity
    norm._parameters.clear()
    norm._buffers.clear()


def _leave_fast_path(module: nn.Module) -> None:
    """Make torch's transformer call its layers in inference too, not only read their weights."""
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # what the layer itself sets where it has no fast path
