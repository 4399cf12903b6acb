"""A layer, forward and backward, as the sequence of its steps; a backend supplies each step.

A linear layer is a convolution without spatial dimensions: rows are fields of one position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cosnorm.kernels import plain
from cosnorm.reference import compute_dtype

aten = torch.ops.aten


class Geometry(NamedTuple):
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


LINEAR = Geometry((), (), (), 1)


class Kept(NamedTuple):
    """What backward needs beside the arguments: y or c, and a few floats a field and a unit."""

    output: Tensor
    cosine: Tensor
    rnorm: Tensor
    mean: Tensor
    weight_stats: Tensor


def memory_format(*tensors: Tensor) -> torch.memory_format:
    """Channels last if any of them is, as torch's convolutions choose."""
    known = {4: torch.channels_last, 5: torch.channels_last_3d}
    for x in tensors:
        last = known.get(x.dim())
        if last and x.is_contiguous(memory_format=last) and not x.is_contiguous():
            return last
    return torch.contiguous_format


def _product(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
    if not geometry.stride:
        return torch.nn.functional.linear(x, w, b)
    stride, padding, dilation, groups = geometry
    out = aten.convolution(x, w, b, stride, padding, dilation, False, [0] * len(stride), groups)
    return out.contiguous(memory_format=memory_format(x, w))


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    geometry: Geometry,
    gain: float,
    centered: bool,
    relu: bool,
) -> Kept:
    """y = act(gain · scale · c) and what backward keeps; input: (N, C, …)."""
    dtype = compute_dtype(input)
    with torch.autocast(input.device.type, enabled=False):
        prepared = plain.prepare_weight(weight, bias, centered, dtype)
        rnorm, mean = plain.field_stats(
            input, weight.shape[2:], *geometry, centered, bias is not None
        )
        product = _product(input.to(dtype), prepared.weight, prepared.bias, geometry)
        output, cosine = plain.epilogue(
            product, rnorm, mean, prepared, scale, gain, relu, input.dtype
        )
    return Kept(output, cosine, rnorm, mean, prepared.stats)


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Kept,
    geometry: Geometry,
    gain: float,
    centered: bool,
    relu: bool,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight, bias and scale; `need` says which are wanted."""
    dtype = compute_dtype(input)
    need_input, need_weight, need_bias, need_scale = need
    need_weight = need_weight or need_bias
    with torch.autocast(input.device.type, enabled=False):
        prepared = plain.prepare_weight(weight, bias, centered, dtype, kept.weight_stats)
        step = plain.grad_epilogue(
            grad,
            kept.output,
            kept.cosine,
            kept.rnorm,
            prepared,
            scale,
            gain,
            relu,
            dtype,
            need_scale,
        )
        dx, dw, db = _product_backward(
            step.product,
            input.to(dtype),
            prepared.weight,
            geometry,
            (need_input, need_weight, bias is not None and need_weight),
        )
        if dx is not None:
            dx = plain.correct_input(
                dx, input, kept.mean, step, prepared, weight.shape[2:], *geometry[:3]
            )
        if dw is not None:
            dw, db = plain.weight_grad(dw, db, weight, bias, prepared, step.unit, centered)
    return dx, dw, db, step.scale


def _product_backward(
    g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, need: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not geometry.stride:
        dx = g @ w if need[0] else None
        dw = g.t() @ x if need[1] else None
        return dx, dw, g.sum(0) if need[2] else None
    stride, padding, dilation, groups = geometry
    return aten.convolution_backward(
        g,
        x,
        w,
        [w.shape[0]],
        stride,
        padding,
        dilation,
        False,
        [0] * len(stride),
        groups,
        list(need),
    )
