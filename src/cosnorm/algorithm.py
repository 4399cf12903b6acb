"""A layer, forward and backward, as the sequence of its steps; a backend supplies each step."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from cosnorm.kernels import plain, rows
from cosnorm.kernels.steps import Geometry, Kept, Place, Weight, keeps_unit, memory_format
from cosnorm.reference import compute_dtype, full_precision, keeps_cosine

aten = torch.ops.aten
T = TypeVar("T")


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


def steps_for(input: Tensor, weight: Tensor) -> Any:
    if _backend == "torch" or (_backend == "auto" and input.device.type != "cuda"):
        return plain
    launch = _triton_steps()
    return launch if launch is not None and launch.serves(input, weight) else plain


def dense(x: Tensor | None) -> Tensor | None:
    """A vector whose entries lie one after another, as the passes read them."""
    return None if x is None else x.contiguous()


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
    steps = steps_for(input, weight)
    bias, scale = dense(bias), dense(scale)
    with full_precision(input), torch.cuda.device_of(input):
        if steps is plain and rows.serves(input, weight):
            kept = rows.forward(input, weight, bias, scale, gain, centered, relu)
            if kept is not None:
                return kept
        return forward_step(steps, input, weight, bias, scale, geometry, gain, centered, relu)[0]


def forward_step(
    steps: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    geometry: Geometry,
    gain: float,
    centered: bool,
    relu: bool,
    *links: Any,
) -> tuple[Kept, Any]:
    """What is kept, and in a chain what the next layer wants to know of its input.

    links: what the layer before has told, and whether there is a next.
    """
    dtype, told = compute_dtype(input), links[0] if links else None
    keep = (keeps_cosine(scale, relu), keeps_unit(input, weight), *links[1:])
    windows_only = told is not None and (centered or weight.dtype != dtype)
    if steps is not plain and steps.apart(input, weight, windows_only):
        prepared = steps.units(weight, bias, centered, dtype, False)
        product, fields = _apart(steps, input, prepared, geometry, centered, told)
    else:
        if told is None:
            prepared, fields = steps.prepare(input, weight, bias, geometry, centered, dtype)
        else:
            prepared, fields = steps.units(weight, bias, centered, dtype), told
        product = _product(input.to(dtype), prepared.weight, prepared.bias, geometry)
    return steps.finish(
        product, input, fields, prepared, geometry, scale, gain, centered, relu, *keep
    )


def _apart(
    steps: Any,
    input: Tensor,
    weight: Weight,
    geometry: Geometry,
    centered: bool,
    told: Any = None,
) -> tuple[Tensor, Any]:
    """The product, and beside it the statistics of the fields."""
    found = steps.empty_fields(input, weight, geometry, centered, told)
    x = input.to(weight.weight.dtype)
    with steps.beside(input.device, "fields") as side:
        product = _product(x, weight.weight, weight.bias, geometry)
        with side:
            steps.fields_beside(input, weight, found, geometry, centered, told is not None)
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
    steps = steps_for(input, weight.weight)
    weight, scale = weight._replace(bias=dense(weight.bias)), dense(scale)
    with full_precision(input), torch.cuda.device_of(input):
        return infer_step(steps, input, weight, scale, geometry, centered, relu)[0]


def infer_step(
    steps: Any,
    input: Tensor,
    weight: Weight,
    scale: Tensor | None,
    geometry: Geometry,
    centered: bool,
    relu: bool,
    *links: Any,
) -> tuple[Tensor, Any]:
    """y, and in a chain what the next layer wants to know of it; links: as in `forward_step`."""
    told = links[0] if links else None
    if steps is not plain and steps.apart(input, weight.weight, told is not None):
        product, fields = _apart(steps, input, weight, geometry, centered, told)
    else:
        fields = told or steps.fields(input, weight, geometry, centered)
        product = _product(input.to(weight.weight.dtype), weight.weight, weight.bias, geometry)
    kept, after = steps.finish(
        product, input, fields, weight, geometry, scale, 1.0, centered, relu, False, False,
        *links[1:],
    )  # fmt: skip
    return kept.output, after


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
    steps = steps_for(input, weight)
    need_input, need_weight, need_bias, need_scale = need
    need_weight = need_weight or need_bias
    wanted = (need_input, need_weight, bias is not None and need_weight)
    bias, scale = dense(bias), dense(scale)
    with full_precision(input), torch.cuda.device_of(input):
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
            product = product_backward(
                step.product, input.to(dtype), prepared.weight, geometry, wanted
            )
        place = Place(input, weight, bias, kept, prepared, step, geometry, centered)
        dx, dw, db = steps.end_grad(*product, place)
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
    dtype = compute_dtype(input)
    prepared, step = steps.start_grad(
        grad, kept, weight, bias, scale, gain, centered, relu, dtype, need_scale
    )
    place = Place(input, weight, bias, kept, prepared, step, geometry, centered)
    new, dx = products_apart(steps, place, lambda dx: steps.correct(dx, place))
    return dx, *new, step.scale


def products_apart(
    steps: Any,
    place: Place,
    then: Callable[[Tensor], T],
) -> tuple[tuple[Tensor, Tensor | None], T]:
    """Gradients of weight and bias, and beside them that of the input and what follows from it."""
    input, weight, bias, _, prepared, step, geometry, _ = place
    product = (step.product, input.to(step.product.dtype), prepared.weight, geometry)
    out = steps.empty_grads(None, input, weight, bias)
    with steps.beside(input.device, "weights") as side:
        dx, _, _ = product_backward(*product, (True, False, False))
        with side:
            _, dw, db = product_backward(*product, (False, True, bias is not None))
            steps.project(dw, db, out, place)
        assert dx is not None
        found = then(dx)
    return out[1:], found


def product_backward(
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
