"""Convolutions in a row as one function: passes that two neighbours would both make are made once.

Forward, the pass that writes a layer's output also sums it up for the next layer, which then need
not read it for its statistics. Backward, the correction of a layer's dx and the first pass of the
layer before go over the same tensors, and are one. What is left beyond convolution and ReLU is a
few floats a position, and the weights.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosnorm import algorithm, reference
from cosnorm.algorithm import product_backward, products_apart
from cosnorm.functional import autocast, transforming
from cosnorm.kernels import plain
from cosnorm.kernels.steps import Geometry, Grad, Kept, Weight, output_size


class Layer(NamedTuple):
    """A convolution with ReLU, of one group and without a scale of its own."""

    weight: Tensor
    bias: Tensor | None
    geometry: Geometry


def serves(input: Tensor, layers: Sequence[Layer]) -> bool:
    """Whether a chain is worth it and right here: with the Triton passes, outside of compilers."""
    if torch.compiler.is_compiling() or transforming():
        return False
    dtype, size = autocast(input).dtype, input.shape[2:]
    channels = input.shape[1]
    for weight, _, geometry in layers:
        fits = weight.dtype == dtype or reference.autocasting(input.device.type)
        if weight.shape[1] != channels or not fits or weight.device != input.device:
            return False
        like = weight.new_empty((0, channels, *size), device="meta")
        size, channels = output_size(like, weight, geometry), weight.shape[0]
        if min(size) < 1:
            return False
    return all(algorithm.steps_for(input, layer.weight) is not plain for layer in layers)


def chain(input: Tensor, layers: Sequence[Layer], centered: bool) -> Tensor:
    """The layers one after another; input: (N, C, …). Ask `serves` first."""
    geometries = [layer.geometry for layer in layers]
    weights = [layer.weight for layer in layers]
    biases = [algorithm.dense(None if b is None else b.to(w.dtype)) for w, b, _ in layers]
    return _Chain.apply(autocast(input), centered, geometries, *weights, *biases)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input: Tensor, centered: bool, geometries: list[Geometry], *parameters: Any):
        layers = _layers(geometries, parameters)
        steps = algorithm.steps_for(input, layers[0].weight)
        x, told, kept = input, None, []
        with reference.full_precision(input), torch.cuda.device_of(input):
            for i, layer in enumerate(layers):
                links = (told, i + 1 < len(layers))
                here, told = algorithm.forward_step(
                    steps, x, layer.weight, layer.bias, None, layer.geometry, 1.0, centered, True,
                    *links,
                )  # fmt: skip
                kept += [here.output, *here[2:]]
                x = here.output
        ctx.save_for_backward(input, *parameters, *kept)
        ctx.centered, ctx.geometries = centered, geometries
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        count, centered, geometries = len(ctx.geometries), ctx.centered, ctx.geometries
        input, *rest = ctx.saved_tensors
        parameters, saved = rest[: 2 * count], rest[2 * count :]
        need = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
        if torch.is_grad_enabled():
            grads = _pullback(grad, input, parameters, geometries, centered, need)
        else:
            empty = input.new_empty(0)
            kept = [Kept(saved[i], empty, *saved[i + 1 : i + 5]) for i in range(0, 5 * count, 5)]
            layers = _layers(geometries, parameters)
            with reference.full_precision(input):
                grads = _backward(grad, input, layers, kept, centered, need)
        wanted = [g if wants else None for g, wants in zip(grads, need, strict=True)]
        return wanted[0], None, None, *wanted[1:]


def _layers(geometries: Sequence[Geometry], parameters: Sequence[Any]) -> list[Layer]:
    count = len(geometries)
    weights, biases = parameters[:count], parameters[count:]
    return [Layer(*each) for each in zip(weights, biases, geometries, strict=True)]


def _backward(
    grad: Tensor,
    input: Tensor,
    layers: Sequence[Layer],
    kept: Sequence[Kept],
    centered: bool,
    need: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of the input, the weights and the biases; `need` in the same order."""
    count, dtype = len(layers), reference.compute_dtype(input)
    steps = algorithm.steps_for(input, layers[0].weight)
    needed = [need[1 + i] or need[1 + count + i] for i in range(count)]
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
        at = _Place(steps, x, layers[i], kept[i], prepared, step, centered, dtype, below)
        found[i], after = at.gradients(goes_on, needed[i])
        if below is None:
            dx = after
        else:
            prepared, step = after
    return [dx, *(dw for dw, _ in found), *(db for _, db in found)]


class _Place(NamedTuple):
    """A layer in the middle of backward, and the one below it."""

    steps: Any
    input: Tensor
    layer: Layer
    kept: Kept
    prepared: Weight
    step: Grad
    centered: bool
    dtype: torch.dtype
    below: tuple[Layer, Kept] | None

    @property
    def _rest(self) -> Any:
        weight, bias, geometry = self.layer
        known = (self.kept, self.prepared, self.step)
        return self.input, weight, bias, *known, geometry, self.centered

    def gradients(self, goes_on: bool, needed: bool) -> tuple[Any, Any]:
        """Those of weight and bias, and what `_onwards` gives."""
        weight, bias, geometry = self.layer
        if goes_on and needed and self.steps.apart(self.input, weight):
            return products_apart(self.steps, *self._rest, then=self._onwards)
        x, g = self.input.to(self.dtype), self.step.product
        wanted = (goes_on, needed, needed and bias is not None)
        dx, dw, db = product_backward(g, x, self.prepared.weight, geometry, wanted)
        new = (None, None)
        if dw is not None:
            out = self.steps.empty_grads(None, self.input, weight, bias)
            self.steps.project(dw, db, out, *self._rest)
            new = out[1:]
        return new, None if dx is None else self._onwards(dx)

    def _onwards(self, dx: Tensor) -> Any:
        """dx corrected; or where there is a layer below, its unit weights and its first step."""
        if self.below is None:
            return self.steps.correct(dx, *self._rest)
        (weight, bias, _), kept = self.below
        return self.steps.link_grad(
            dx, self.kept, self.step, self.layer.weight, self.layer.geometry,
            kept, weight, bias, 1.0, self.centered, self.dtype,
        )  # fmt: skip


def _pullback(
    grad: Tensor,
    input: Tensor,
    parameters: Sequence[Any],
    geometries: Sequence[Geometry],
    centered: bool,
    need: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients by differentiating the reference, themselves differentiable."""
    tensors = [input, *parameters]
    wanted = [i for i, wants in enumerate(need) if wants and tensors[i] is not None]

    def output(*chosen: Tensor) -> Tensor:
        full = list(tensors)
        for i, tensor in zip(wanted, chosen, strict=True):
            full[i] = tensor
        x = full[0]
        for weight, bias, geometry in _layers(geometries, full[1:]):
            x = reference.cosine_conv(x, weight, bias, None, *geometry, 1.0, centered, True).output
        return x

    grads = torch.func.vjp(output, *[tensors[i] for i in wanted])[1](grad)
    result: list[Tensor | None] = [None] * len(tensors)
    for i, g in zip(wanted, grads, strict=True):
        result[i] = g
    return result
