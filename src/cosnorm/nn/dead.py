"""Layers that can't learn: weight vectors without a direction get no gradient, now and for ever."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

_MODES = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # tracers are such modes


def is_dead(rows: Tensor, bias: Tensor | None, centered: bool) -> bool:
    """Whether every weight vector, its bias included, is zero, or for Pearson constant.

    rows: (out, entries), as `weight_rows` gives them. Values that can't be read count as alive.
    """
    if rows.is_meta or not rows.numel():
        return False
    first = rows[:, :1] if centered else rows.new_zeros(())
    dead = (rows == first).all()
    if bias is not None:
        dead = dead & (bias.unsqueeze(1) == first).all()
    return bool(dead)


def weight_rows(layer: Any) -> Tensor:
    """The weight vectors of a linear layer or convolution, plain or transposed, as rows."""
    weight: Tensor = layer.weight.detach()
    if not getattr(layer, "transposed", False):
        return weight.flatten(1)
    if weight.dim() == 2:
        return weight.t()
    return weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1).flatten(1)


def warn_if_dead(layer: Any) -> None:
    """Say once that a layer in training can't learn; sets `layer.looked_at`, so ask that first.

    Looking waits for the GPU, so a layer does it in its first training step only, and never while
    the step is being compiled, traced or captured.
    """
    weight = layer.weight
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]  # documented
    if torch.compiler.is_compiling() or tracing or _MODES():
        return
    if type(weight) is not nn.Parameter or not weight.requires_grad:
        return
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    layer.looked_at = True
    bias = None if layer.bias is None else layer.bias.detach()
    if is_dead(weight_rows(layer), bias, layer.centered):
        vectors = "constant" if layer.centered else "zero"
        warnings.warn(
            f"{type(layer).__name__}: all weight vectors are {vectors}, so the layer gives 0, gets "
            "no gradient and will never learn; call reset_parameters(), or initialise the weight "
            "otherwise",
            stacklevel=3,
        )
