"""Which convolutions in a row can be one, and the call that makes them so.

The passes that two neighbours would both make are then made once: see `chain_op`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cosnorm import algorithm, reference
from cosnorm.chain_op import Layer, call, steps_for
from cosnorm.functional import autocast, exporting, transforming
from cosnorm.kernels import plain
from cosnorm.kernels.steps import Weight, output_size


class Link(NamedTuple):
    """A layer as its module offers it; folded: weights are units already, and Σv is known."""

    layer: Layer
    centered: bool
    folded: bool = False
    total: Tensor | None = None

    def joins(self, other: "Link") -> bool:
        """Whether the two can be in one chain, as far as their kinds go."""
        ours, theirs = self.layer, other.layer
        same = (ours.bias is None) == (theirs.bias is None)
        same = same and ours.weight.dim() == theirs.weight.dim()
        return same and (self.centered, self.folded) == (other.centered, other.folded)


def serves(input: Tensor, links: Sequence[Link]) -> bool:
    """Whether a chain is right here, and worth it: on a GPU, with the Triton passes."""
    if not _by_triton(input, links) or transforming():
        return False
    if input.dim() != links[0].layer.weight.dim():
        return False
    x, mixed = autocast(input), reference.autocasting(input.device.type)
    channels, size = input.shape[1], list(input.shape[2:])
    for link in links:
        weight, bias, geometry = link.layer
        dtype = reference.compute_dtype(x) if link.folded else x.dtype
        fits = weight.dtype == dtype or (mixed and not link.folded)
        if weight.shape[1] != channels or not fits or weight.device != input.device:
            return False
        if bias is not None and not _is_bias(bias, weight):
            return False
        size, channels = output_size(size, weight.shape[2:], geometry), weight.shape[0]
        if min(size) < 1:
            return False
    return True


def _by_triton(input: Tensor, links: Sequence[Link]) -> bool:
    if torch.compiler.is_compiling():
        return input.device.type == "cuda" and not links[0].folded and not exporting()
    if torch._C._get_tracing_state() is not None:
        return False  # whether gradients are wanted would be part of the trace
    weights = [link.layer.weight for link in links]
    return steps_for(input, weights) is not plain


def _is_bias(bias: Tensor, weight: Tensor) -> bool:
    alike = (bias.device, bias.dtype) == (weight.device, weight.dtype)
    return alike and bias.shape == weight.shape[:1]


def chain(input: Tensor, links: Sequence[Link]) -> Tensor:
    """The layers one after another; input: (N, C, …). Ask `serves` first.

    What only frozen layers have made is not kept.
    """
    input = autocast(input)
    if links[0].folded:
        return _infer(input, links)
    wants = [torch.is_grad_enabled() and _learns(link.layer) for link in links]
    if not (torch.is_grad_enabled() and input.requires_grad):
        frozen = wants.index(True) if True in wants else len(links)
        if frozen:
            input = _call(input, links[:frozen], False)
            links = links[frozen:]
    return _call(input, links, True) if links else input


def _learns(layer: Layer) -> bool:
    return layer.weight.requires_grad or (layer.bias is not None and layer.bias.requires_grad)


def _call(input: Tensor, links: Sequence[Link], keep: bool) -> Tensor:
    layers = [link.layer for link in links]
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    steps = [layer.geometry[:3] for layer in layers]
    sizes = [[n for size in each for n in size] for each in zip(*steps, strict=True)]
    statics = (*sizes, links[0].centered, keep)
    return call(input, weights, biases, *statics)


def _infer(input: Tensor, links: Sequence[Link]) -> Tensor:
    """Of folded layers, the last output alone."""
    steps = steps_for(input, [link.layer.weight for link in links])
    x, told = input, None
    with reference.full_precision(input), torch.cuda.device_of(input):
        for i, ((v, vb, geometry), centered, _, total) in enumerate(links):
            weight = Weight(v, algorithm.dense(vb), v.new_empty(0), total)
            going = (told, i + 1 < len(links))
            x, told = algorithm.infer_step(steps, x, weight, None, geometry, centered, True, *going)
    return x
