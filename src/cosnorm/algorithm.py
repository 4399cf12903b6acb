"""A layer, forward and backward, as the sequence of its steps; a backend supplies each step."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from cosnorm.kernels import plain, rows
from cosnorm.kernels.steps import Geometry, Kept, Weight, keeps_unit, memory_format
from cosnorm.reference import compute_dtype, full_precision, keeps_cosine

aten = torch.ops.aten


_backend = "auto"


def set_backend(name: str) -> str:
    """Choose what computes the steps: "torch", "triton", or "auto", Triton where it serves.

    Returns the choice that was in force. Whatever Triton does not serve, torch does.
    """
    global _backend
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f'backend must be "auto", "torch" or "triton", got {name!r}')
    previous, _backend = _backend, name
    return previous


@cache
def _triton_steps() -> ModuleType | None:
    try:
        return import_module("cosnorm.kernels.launch")
    except ImportError:  # torch works without triton, and so do we
        return None


def _steps(input: Tensor, weight: Tensor) -> Any:
    if _backend == "torch" or (_backend == "auto" and input.device.type != "cuda"):
        return plain
    launch = _triton_steps()
    return launch if launch is not None and launch.serves(input, weight) else plain


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
    steps = _steps(input, weight)
    keep = (keeps_cosine(scale, relu), keeps_unit(input, weight))
    with full_precision(input):
        if steps is plain and rows.serves(input, weight):
            kept = rows.forward(input, weight, bias, scale, gain, centered, relu)
            if kept is not None:
                return kept
        if steps is not plain and steps.apart(input, weight):
            prepared = steps.units(weight, bias, centered, dtype)
            product, fields = _apart(steps, input, prepared, geometry, centered)
        else:
            prepared, fields = steps.prepare(input, weight, bias, geometry, centered, dtype)
            product = _product(input.to(dtype), prepared.weight, prepared.bias, geometry)
        return steps.finish(
            product, input, fields, prepared, geometry, scale, gain, centered, relu, *keep
        )


def _apart(
    steps: Any, input: Tensor, weight: Weight, geometry: Geometry, centered: bool
) -> tuple[Tensor, Any]:
    """The product, and beside it the statistics of the fields."""
    found = steps.empty_fields(input, weight, geometry, centered)
    x = input.to(weight.weight.dtype)
    with steps.beside(input.device) as side:
        product = _product(x, weight.weight, weight.bias, geometry)
        with side:
            steps.fields_beside(input, weight, found, geometry, centered)
    return product, found


def infer(
    input: Tensor,
    weight: Weight,
    scale: Tensor | None,
    geometry: Geometry,
    centered: bool,
    relu: bool,
) -> Tensor:
    """y alone, of weights that are units already."""
    steps = _steps(input, weight.weight)
    with full_precision(input):
        if steps is not plain and steps.apart(input, weight.weight):
            product, fields = _apart(steps, input, weight, geometry, centered)
        else:
            fields = steps.fields(input, weight, geometry, centered)
            product = _product(input.to(weight.weight.dtype), weight.weight, weight.bias, geometry)
        kept = steps.finish(
            product, input, fields, weight, geometry, scale, 1.0, centered, relu, False, False
        )
        return kept.output


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
    steps = _steps(input, weight)
    need_input, need_weight, need_bias, need_scale = need
    need_weight = need_weight or need_bias
    wanted = (need_input, need_weight, bias is not None and need_weight)
    with full_precision(input):
        if steps is plain and rows.serves(input, weight):
            grads = rows.backward(
                grad, input, weight, bias, scale, kept, gain, centered, relu, need
            )
            if grads is not None:
                return grads
        if steps is not plain and need_input and need_weight and steps.apart(input, weight):
            return _backward_apart(
                steps, grad, input, weight, bias, scale, kept, geometry, gain, centered, relu,
                need_scale,
            )  # fmt: skip
        prepared, step = steps.start_grad(
            grad, kept, weight, bias, scale, gain, centered, relu, dtype, need_scale
        )
        product = (None, None, None)
        if any(wanted):
            product = _product_backward(
                step.product, input.to(dtype), prepared.weight, geometry, wanted
            )
        dx, dw, db = steps.end_grad(
            *product, input, weight, bias, kept, prepared, step, geometry, centered
        )
    return dx, dw, db, step.scale


def _backward_apart(
    steps: Any,
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
    need_scale: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradient of the weights beside that of the input: each fills what the other leaves."""
    x = input.to(compute_dtype(input))
    prepared, step = steps.start_grad(
        grad, kept, weight, bias, scale, gain, centered, relu, x.dtype, need_scale
    )
    product = (step.product, x, prepared.weight, geometry)
    rest = (input, weight, bias, kept, prepared, step, geometry, centered)
    out = steps.empty_grads(None, input, weight, bias)
    with steps.beside(input.device) as side:
        dx, _, _ = _product_backward(*product, (True, False, False))
        with side:
            _, dw, db = _product_backward(*product, (False, True, bias is not None))
            steps.project(dw, db, out, *rest)
        dx = steps.correct(dx, *rest)
    return dx, *out[1:], step.scale


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
