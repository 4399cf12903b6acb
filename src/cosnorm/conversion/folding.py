"""`fold`: unit weights baked in, so that inference does no weight work."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cosnorm.conversion.account import Account, Entry
from cosnorm.conversion.folded import FoldedConv, FoldedLinear, folded_step, folded_total
from cosnorm.conversion.layers import (
    TransposedCosineLinear,
    TransposedPearsonLinear,
    check_adapters,
    odd_weight,
)
from cosnorm.conversion.trial import Example, Trial, try_out
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
from cosnorm.ops import reference
from cosnorm.ops.spec import memory_format

_TRANSPOSED_LINEARS = (TransposedCosineLinear, TransposedPearsonLinear)
_FOLDED = (FoldedLinear, FoldedConv)
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


@torch.inference_mode(False)  # else nothing could be differentiated through what is made here
def fold(
    model: nn.Module, *, example: Example | None = None, dtype: torch.dtype | None = None
) -> Account:
    """Bake the unit weights of a model's cosine layers in, in place, for inference.

    A folded layer gives what it gave before, to rounding, and normalises no weights any more. Its
    state is the buffers `unit_weight`, `unit_bias` and `scale`. It has no `weight`, so code that
    reads it fails, and it can't be trained: fold a copy (`copy.deepcopy`) where the model is still
    to be trained. Transposed convolutions stay: the norm of their weights changes from position to
    position.

    Args:
        example: what to try a copy of the model on: the input, a tuple of arguments, or a dict of
            keyword arguments. Layers that do not run then, and those whose weight other code reads
            besides, stay as they are.
        dtype: None to keep that of the weights; torch.int8 to store them in 8 bits. A vector is
            then rounded to 255 levels and brought to unit length again, so that the layer is still
            an exact similarity, to the rounded vector. For a product it becomes floats.

    Returns:
        An `Account` with an entry for every cosine layer, and for every folded one.

    Raises:
        TypeError, ValueError: if the model is no module, not in evaluation mode or has adapters of
            PEFT, does not take the example, the dtype is another, or weights that are no finite
            numbers are to go into 8 bits, which have none for them. It is then as it was.

    Example:
        >>> model = nn.Sequential(CosineLinear(8, 4)).eval()
        >>> [entry.now for entry in fold(model)]
        ['FoldedLinear']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    check_adapters(model, "folded without adapters", "call merge_and_unload first")
    _check_dtype(dtype)
    names = dict(model.named_modules(remove_duplicate=False))
    known = (*_LINEARS, *_CONVS, *_TRANSPOSED_CONVS, *_FOLDED)
    layers = {name: module for name, module in names.items() if isinstance(module, known)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                "model must be in evaluation mode to be folded; got "
                f"{f'layer {name!r}' if name else 'the model'} in training mode: call model.eval() "
                "first"
            )
    trial = None if example is None else try_out(model, example)
    obstacles = {layer: _obstacle(layer, trial) for layer in layers.values()}
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    if dtype is not None:
        _check_finite({name: v for name, v in layers.items() if obstacles[v] is None})
    entries = [_entry(name, layer, obstacles[layer], uses) for name, layer in layers.items()]
    for layer, reason in obstacles.items():
        if reason is None:
            _bake(layer, dtype)
    return Account(entries)


def _check_dtype(dtype: Any) -> None:
    if dtype not in (None, torch.int8):
        raise ValueError(
            f"dtype must be None or torch.int8; got {dtype!r}: for another floating point dtype "
            "fold, then cast the whole model, as by model.bfloat16()"
        )


def _check_finite(layers: Mapping[str, nn.Module]) -> None:
    for name, layer in layers.items():
        for tensor in layer._parameters.values():
            if tensor is None or tensor.is_meta or bool(tensor.isfinite().all()):
                continue
            raise ValueError(
                "weights and scales must be finite numbers to be folded into 8 bits; those of "
                f"{f'layer {name!r}' if name else 'the model'} are not: it has diverged, take an "
                "earlier state of it"
            )


def _entry(name: str, layer: nn.Module, reason: str | None, uses: Mapping[int, int]) -> Entry:
    was = type(layer).__name__
    if reason is not None:
        return Entry(name, was, None, reason)
    now = "FoldedLinear" if type(layer) in _LINEARS else "FoldedConv"
    tied = uses[id(layer.weight)] > 1
    return Entry(
        name, was, now, "its weight was shared; the unit weight is its own" if tied else ""
    )


def _obstacle(layer: nn.Module, trial: Trial | None) -> str | None:
    """Why a cosine layer can't be folded; None where it can."""
    if isinstance(layer, _FOLDED):
        return "folded already"
    if type(layer) in _TRANSPOSED_CONVS:
        return "the norm of its weights changes from position to position"
    if type(layer) not in (*_LINEARS, *_CONVS):
        return "a subclass: what it computes is not known"
    if "forward" in vars(layer):
        return "its forward was replaced on the object"
    if trial is not None and (reason := trial.idle(layer)):
        return reason
    if trial is not None and layer in trial.read:
        return "other code reads its weight"
    return odd_weight(layer)


@torch.no_grad()
def _bake(layer: Any, dtype: torch.dtype | None) -> None:
    """Make a cosine layer its folded kind, the same object still."""
    weight = layer.weight.t() if isinstance(layer, _TRANSPOSED_LINEARS) else layer.weight
    held = weight.dtype if dtype is None else reference.stats_dtype(weight.dtype)
    unit = reference.unit_weight(weight, layer.bias, layer.centered, held)
    scale = layer.scale
    if isinstance(scale, float):
        scale = torch.full((1,), scale, dtype=unit.total.dtype, device=weight.device)
    elif scale is not None:
        scale = scale.detach().clone()
    v, vb = (unit.weight, unit.bias) if dtype is None else _rounded(unit.weight, unit.bias)
    # Clones: with a bias the unit's tensors are views of one that holds both.
    v = v.clone(memory_format=memory_format(weight))
    vb = None if vb is None else vb.clone(memory_format=torch.contiguous_format)
    step = None if dtype is None else folded_step(v, vb, layer.centered)
    total = folded_total(v, vb, step) if layer.centered else None
    kind: Any = FoldedLinear if isinstance(layer, _LINEARS) else FoldedConv
    layer.__class__ = kind
    layer._parameters.clear()
    vars(layer).pop("scale", None)
    for name, tensor in {"unit_weight": v, "unit_bias": vb, "scale": scale}.items():
        layer.register_buffer(name, tensor)
    for name, tensor in {"total": total, "step": step}.items():
        layer.register_buffer(name, tensor, persistent=False)


def _rounded(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The entries as int8, the largest of each vector as ±127; the bias is one of them."""
    most = weight.flatten(1).abs().amax(1)
    most = most if bias is None else torch.maximum(most, bias.abs())
    factor = torch.where(most > 0, 127 / most.float(), 0)
    q = (weight * factor.view(-1, *[1] * (weight.dim() - 1))).round().to(torch.int8)
    return q, None if bias is None else (bias * factor).round().to(torch.int8)
