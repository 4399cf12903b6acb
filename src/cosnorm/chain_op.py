"""The op `cosnorm::cosine_chain`: several convolutions with ReLU, one after another.

Forward, the pass that writes a layer's output also sums it up for the next layer, which then need
not read it for its statistics. Backward, the correction of a layer's dx and the first pass of the
layer before go over the same tensors, and are one. What is left beyond convolution and ReLU is a
few floats a position, and the weights.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor  # pyright: ignore[reportMissingImports]

from cosnorm import algorithm, ops, reference
from cosnorm.algorithm import product_backward, products_apart
from cosnorm.kernels import plain
from cosnorm.kernels.steps import Geometry, Kept, Place

KEPT = 5  # tensors of a layer: output, rnorm, mean, weight_stats, unit

_TENSORS = "Tensor input, Tensor[] weights, Tensor[] biases"
_STATICS = "int[] stride, int[] padding, int[] dilation, bool centered, bool keep"


class Layer(NamedTuple):
    """A convolution with ReLU, of one group and without a scale of its own."""

    weight: Tensor
    bias: Tensor | None
    geometry: Geometry


def steps_for(input: Tensor, weights: Sequence[Tensor]) -> Any:
    chosen = [algorithm.steps_for(input, weight) for weight in weights]
    return plain if any(steps is plain for steps in chosen) else chosen[0]


def _layers(
    weights: Sequence[Tensor], biases: Sequence[Tensor], sizes: Sequence[Sequence[int]]
) -> list[Layer]:
    dims = weights[0].dim() - 2
    parts = zip(*(_cut(size, dims) for size in sizes), strict=True)
    geometries = [Geometry.of(stride, padding, dilation, 1) for stride, padding, dilation in parts]
    vectors = [b.contiguous() for b in biases] or [None] * len(weights)
    return [Layer(*each) for each in zip(weights, vectors, geometries, strict=True)]


def _cut(values: Sequence[Any], length: int) -> list[Sequence[Any]]:
    return [values[i : i + length] for i in range(0, len(values), length)]


def _run(input, weights, biases, stride, padding, dilation, centered, keep) -> list[Tensor]:
    layers = _layers(weights, biases, (stride, padding, dilation))
    steps = steps_for(input, weights)
    x, told, outputs = input, None, []
    with reference.full_precision(input), torch.cuda.device_of(input):
        for i, layer in enumerate(layers):
            links = () if steps is plain else (told, i + 1 < len(layers))
            kept, told = algorithm.forward_step(
                steps, x, layer.weight, layer.bias, None, layer.geometry, 1.0, centered, True,
                *links,
            )  # fmt: skip
            x, _, *rest = ops.laid_out(kept, x, layer.weight)
            x = ops.owned(x)
            outputs = [*outputs, x, *rest] if keep else [x]
    return outputs


def _fake(input, weights, biases, stride, padding, dilation, centered, keep) -> list[Tensor]:
    outputs, x = [], input
    for layer in _layers(weights, biases, (stride, padding, dilation)):
        x, _, *rest = ops.fake_conv(
            x, layer.weight, layer.bias, None, *layer.geometry, 1.0, centered, True
        )
        outputs = [*outputs, x, *rest] if keep else [x]
    return outputs


def _run_backward(
    grad, input, weights, biases, kept, stride, padding, dilation, centered, keep, need
) -> list[Tensor]:
    sizes = (stride, padding, dilation)
    steps = steps_for(input, weights)
    if steps is plain:
        grads = _one_by_one(grad, input, weights, biases, kept, (*sizes, centered, keep), need)
    else:
        empty, layers = input.new_empty(0), _layers(weights, biases, sizes)
        known = [Kept(output, empty, *rest) for output, *rest in _cut(kept, KEPT)]
        with reference.full_precision(input), torch.cuda.device_of(input):
            grads = _backward(steps, grad, input, layers, known, centered, need)
    return [
        input.new_empty(0) if g is None or not wants else ops.settled(g, t, (input, weights[0]))
        for g, t, wants in zip(grads, [input, *weights, *biases], need, strict=False)
    ]


def _fake_backward(grad, input, weights, biases, kept, *rest) -> list[Tensor]:
    pair = (input, weights[0])
    return [
        ops.empty_settled(t, pair) if wants else input.new_empty(0)
        for t, wants in zip([input, *weights, *biases], rest[-1], strict=True)
    ]


def _setup_context(ctx, inputs, output) -> None:
    input, weights, biases, *statics = inputs
    ctx.save_for_backward(input, *weights, *biases, *output)
    ctx.counts, ctx.statics = (len(weights), len(biases)), statics
    ctx.set_materialize_grads(False)


def _autograd(ctx, grads):
    count, biased = ctx.counts
    none, grad = (None,) * len(ctx.statics), grads[-KEPT]
    if grad is None:
        return (None, [None] * count, [None] * biased, *none)
    of_input, of_weights, of_biases = ctx.needs_input_grad[:3]
    found = _wanted(ctx, grad, [of_input, *of_weights, *(of_biases if biased else [])])
    return found[0], found[1 : 1 + count], found[1 + count :], *none


def _wanted(ctx, grad: Tensor, need: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of input, weights and biases."""
    (count, biased), need = ctx.counts, [bool(n) for n in need]
    input, *rest = ctx.saved_tensors
    weights, biases = rest[:count], rest[count : count + biased]
    kept = rest[count + biased :]
    given = (grad, input, weights, biases, kept)
    if ops.wants_reference():
        found: Any = _pullback(grad, [input, *weights, *biases], count, ctx.statics, need)
    elif is_legacy_batchedtensor(grad) or torch._C._are_functorch_transforms_active():
        found = _one_by_one(*given, ctx.statics, need)
    elif ops.goes_direct(grad, input, *weights, *biases):
        found = _run_backward(*given, *ctx.statics, need=need)
    else:
        found = torch.ops.cosnorm.cosine_chain_backward(*given, *ctx.statics, need)
    return [g if wants else None for g, wants in zip(found, need, strict=True)]


class CosineChain(torch.autograd.Function):
    """What torch.library makes of the op for autograd, for `call`."""

    @staticmethod
    def forward(ctx, statics, count, input, *parameters):
        weights, biases = parameters[:count], parameters[count:]
        outputs = _run(input, weights, biases, *statics)
        _setup_context(ctx, (input, weights, biases, *statics), outputs)
        return outputs[-KEPT]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        return None, None, *_wanted(ctx, grad, ctx.needs_input_grad[2:])


def call(
    input: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *statics: Any
) -> Tensor:
    """The last output of the op; without the dispatcher where `ops.call` does without."""
    tensors = (input, *weights, *biases)
    keep = statics[-1]
    if not ops.goes_direct(*tensors):
        outputs = torch.ops.cosnorm.cosine_chain(input, weights, biases, *statics)
        return outputs[-KEPT if keep else -1]
    if keep and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return CosineChain.apply(statics, len(weights), *tensors)  # pyright: ignore[reportReturnType]
    return _run(input, weights, biases, *statics)[-KEPT if keep else -1]


def _one_by_one(grad, input, weights, biases, kept, statics, need) -> list[Tensor]:
    """As `_backward`, by the op of a single layer: in torch's hands, or for batched gradients."""
    *sizes, centered, _ = statics
    layers, known = _layers(weights, biases, sizes), _cut(kept, KEPT)
    op = getattr(torch.ops.cosnorm, f"cosine_conv{weights[0].dim() - 2}d_backward")
    found: list[tuple[Tensor, Tensor]] = []
    for i in reversed(range(len(layers))):
        weight, bias, geometry = layers[i]
        output, *rest = known[i]
        x = known[i - 1][0] if i else input
        wants = [i > 0 or need[0], True, bias is not None, False]
        statics = (*geometry, 1.0, centered, True, wants)
        grad, dw, db, _ = op(grad, x, weight, bias, None, output, output, *rest, *statics)
        found.insert(0, (dw, db))
    dbs = [db for _, db in found] if biases else []
    return [grad, *(dw for dw, _ in found), *dbs]


def _backward(
    steps: Any,
    grad: Tensor,
    input: Tensor,
    layers: Sequence[Layer],
    kept: Sequence[Kept],
    centered: bool,
    need: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of the input, the weights and the biases; `need` in the same order."""
    count, dtype = len(layers), reference.compute_dtype(input)
    of_biases = need[1 + count :] or [False] * count
    needed = [need[1 + i] or of_biases[i] for i in range(count)]
    lowest = 0 if need[0] else needed.index(True)
    found: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * count
    weight, bias, _ = layers[-1]
    prepared, step = steps.start_grad(
        grad, kept[-1], weight, bias, None, 1.0, centered, True, dtype, False
    )
    dx = None
    for i in reversed(range(lowest, count)):
        x = kept[i - 1].output if i else input
        below = None if i == lowest else (layers[i - 1], kept[i - 1])
        goes_on = below is not None or need[0]
        layer = layers[i]
        place = Place(
            x, layer.weight, layer.bias, kept[i], prepared, step, layer.geometry, centered
        )
        found[i], after = _gradients(steps, place, below, goes_on, needed[i])
        if below is None:
            dx = after
        else:
            prepared, step = after
    return [dx, *(dw for dw, _ in found), *(db for _, db in found)]


def _gradients(
    steps: Any, place: Place, below: tuple[Layer, Kept] | None, goes_on: bool, needed: bool
) -> tuple[Any, Any]:
    """Those of weight and bias, and what `_onwards` gives."""
    input, weight, bias, _, prepared, step, geometry, _ = place
    if goes_on and needed and steps.apart(input, weight):
        return products_apart(steps, place, lambda dx: _onwards(steps, place, below, dx))
    wanted = (goes_on, needed, needed and bias is not None)
    x, g = input.to(step.product.dtype), step.product
    dx, dw, db = product_backward(g, x, prepared.weight, geometry, wanted)
    new = (None, None)
    if dw is not None:
        out = steps.empty_grads(None, input, weight, bias)
        steps.project(dw, db, out, place)
        new = out[1:]
    return new, None if dx is None else _onwards(steps, place, below, dx)


def _onwards(steps: Any, place: Place, below: tuple[Layer, Kept] | None, dx: Tensor) -> Any:
    """dx corrected; or where there is a layer below, its unit weights and its first step."""
    if below is None:
        return steps.correct(dx, place)
    (weight, bias, _), kept = below
    return steps.link_grad(
        dx, place.kept, place.step, place.weight, place.geometry,
        kept, weight, bias, 1.0, place.centered, place.step.product.dtype,
    )  # fmt: skip


def _pullback(
    grad: Tensor,
    tensors: Sequence[Tensor],
    count: int,
    statics: Sequence[Any],
    need: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients by differentiating the reference, themselves differentiable."""
    *sizes, centered, _ = statics

    def function(input: Tensor, *parameters: Tensor) -> reference.Result:
        result, x = None, input
        for weight, bias, geometry in _layers(parameters[:count], parameters[count:], sizes):
            result = reference.cosine_conv(x, weight, bias, None, *geometry, 1.0, centered, True)
            x = result.output
        assert result is not None
        return result

    return ops.pullback(function, grad, tensors, (), need)


def _register() -> None:
    library, name = ops.library, "cosine_chain"
    library.define(f"{name}({_TENSORS}, {_STATICS}) -> Tensor[]")
    library.define(
        f"{name}_backward(Tensor grad, {_TENSORS}, Tensor[] kept, {_STATICS}, bool[] need)"
        " -> Tensor[]"
    )
    library.impl(name, _run, "CompositeExplicitAutograd")
    library.impl(f"{name}_backward", _run_backward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cosnorm::{name}", _fake, lib=library)
    torch.library.register_fake(f"cosnorm::{name}_backward", _fake_backward, lib=library)
    torch.library.register_autograd(
        f"cosnorm::{name}", _autograd, setup_context=_setup_context, lib=library
    )


_register()
