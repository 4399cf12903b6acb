"""`fold`: unit weights baked in, so that inference does no weight work."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cosnorm import reference
from cosnorm.conversion.account import Account, Entry
from cosnorm.conversion.folded import FoldedConv, FoldedLinear
from cosnorm.conversion.layers import (
    TransposedCosineLinear,
    TransposedPearsonLinear,
    computed,
)
from cosnorm.kernels.steps import memory_format
from cosnorm.nn import (
    CosineConv1d,
    CosineConv2d,
    CosineConv3d,
    CosineConvTranspose1d,
    CosineConvTranspose2d,
    CosineConvTranspose3d,
    CosineLinear,
    PearsonConv1d,
    PearsonConv2d,
    PearsonConv3d,
    PearsonConvTranspose1d,
    PearsonConvTranspose2d,
    PearsonConvTranspose3d,
    PearsonLinear,
)

_TRANSPOSED_LINEARS = (TransposedCosineLinear, TransposedPearsonLinear)
_LINEARS = (CosineLinear, PearsonLinear, *_TRANSPOSED_LINEARS)
_CONVS = (CosineConv1d, CosineConv2d, CosineConv3d, PearsonConv1d, PearsonConv2d, PearsonConv3d)
_TRANSPOSED_CONVS = (
    CosineConvTranspose1d,
    CosineConvTranspose2d,
    CosineConvTranspose3d,
    PearsonConvTranspose1d,
    PearsonConvTranspose2d,
    PearsonConvTranspose3d,
)


def fold(model: nn.Module) -> Account:
    """Bake the unit weights of a model's cosine layers in, in place, for inference.

    A folded layer gives what it gave before, to rounding, and normalises no weights any more. Its
    state is the buffers `unit_weight`, `unit_bias`, `total` and `scale`; it can't be trained. Fold
    a copy (`copy.deepcopy`) where the model is still to be trained. Transposed convolutions stay:
    the norm of their weights changes from position to position.

    Returns:
        An `Account` with an entry for every cosine layer.

    Raises:
        TypeError, ValueError: if the model is no module or not in evaluation mode. It is then as it
            was.

    Example:
        >>> model = nn.Sequential(CosineLinear(8, 4)).eval()
        >>> [entry.now for entry in fold(model)]
        ['FoldedLinear']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    names = dict(model.named_modules(remove_duplicate=False))
    known = (*_LINEARS, *_CONVS, *_TRANSPOSED_CONVS)
    layers = {name: module for name, module in names.items() if isinstance(module, known)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                f"model must be in evaluation mode to be folded; got {name or 'a layer'} in "
                "training mode: call model.eval() first"
            )
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    entries = [_entry(name, layer, uses) for name, layer in layers.items()]
    for layer in dict.fromkeys(layers.values()):
        if _obstacle(layer) is None:
            _bake(layer)
    return Account(entries)


def _entry(name: str, layer: nn.Module, uses: Mapping[int, int]) -> Entry:
    was = type(layer).__name__
    if reason := _obstacle(layer):
        return Entry(name, was, None, reason)
    now = "FoldedLinear" if type(layer) in _LINEARS else "FoldedConv"
    tied = uses[id(layer.weight)] > 1
    return Entry(
        name, was, now, "its weight was shared; the unit weight is its own" if tied else ""
    )


def _obstacle(layer: nn.Module) -> str | None:
    """Why a cosine layer can't be folded; None where it can."""
    if type(layer) in _TRANSPOSED_CONVS:
        return "the norm of its weights changes from position to position"
    if type(layer) not in (*_LINEARS, *_CONVS):
        return "a subclass: what it computes is not known"
    if "forward" in vars(layer):
        return "its forward was replaced on the object"
    return computed(layer)


@torch.no_grad()
def _bake(layer: Any) -> None:
    """Make a cosine layer its folded kind, the same object still."""
    weight = layer.weight.t() if isinstance(layer, _TRANSPOSED_LINEARS) else layer.weight
    dtype = reference.compute_dtype(weight)
    unit = reference.unit_weight(weight, layer.bias, layer.centered, dtype)
    scale = layer.scale
    if isinstance(scale, float):
        scale = torch.full((1,), scale, dtype=unit.total.dtype, device=weight.device)
    elif scale is not None:
        scale = scale.detach().clone()
    format = memory_format(weight)
    buffers = {
        "unit_weight": unit.weight.contiguous(memory_format=format),
        "unit_bias": unit.bias,
        "total": unit.total if layer.centered else None,
        "scale": scale,
    }
    kind: Any = FoldedLinear if isinstance(layer, _LINEARS) else FoldedConv
    layer.__class__ = kind
    layer._parameters.clear()
    vars(layer).pop("scale", None)
    for name, tensor in buffers.items():
        layer.register_buffer(name, tensor)
