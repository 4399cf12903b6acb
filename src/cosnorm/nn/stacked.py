"""Linear layers of several networks as one: what many small products cost, one larger one does.

Layer k of network s is row s of every tensor here: weights (S, out, in), inputs (S, rows, in). No
network sees another: the gradients of row s are those of the layer alone, up to the order of sums.

    z = x·w                                  none, and before what is normalised afterwards
    z = x·w / |w|,   z = x·w / (|x| |w|)     weight, cosine (pearson: x and w centred)
    dw = gᵀx − w·slope + shift               g: gradient of the product; slope, shift: of an output

As in `cosnorm.nn.sparse`, that form is kept as it is where the layer is told to (`deferred`): plain
SGD then needs one pass over the weights before the product that it adds to them, or none.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cosnorm.nn.base import Block
from cosnorm.nn.baselines import (
    BatchNormLinear,
    GroupNormLinear,
    LayerNormLinear,
    PlainLinear,
    RMSNormLinear,
    WeightNormLinear,
)
from cosnorm.nn.linear import CosineLinear, PearsonLinear
from cosnorm.ops.activations import ACTIVATIONS

_SIMILAR = (CosineLinear, PearsonLinear)
SERVED = (
    *(*_SIMILAR, BatchNormLinear, WeightNormLinear, LayerNormLinear, PlainLinear),
    *(GroupNormLinear, RMSNormLinear),
)


@dataclass(frozen=True)
class ProductGradient:
    """The gradient of weights (S, out, in) as its parts: `gᵀx − w·slope + shift`.

    g: (S, rows, out). x: (S, rows, in). slope, shift: (S, out, 1) or None.
    """

    g: Tensor
    x: Tensor
    slope: Tensor | None
    shift: Tensor | None

    def dense(self, weight: Tensor) -> Tensor:
        if self.slope is None:
            return torch.bmm(self.g.transpose(1, 2), self.x)
        return self._added(torch.empty_like(weight), weight, -1.0, 0.0)

    def descend(self, weight: Tensor, lr: float) -> None:
        """`weight ← weight − lr · gradient`, in place."""
        if self.slope is None:
            weight.baddbmm_(self.g.transpose(1, 2), self.x, alpha=-lr)
        else:
            self._added(weight, weight, lr, 1.0)

    def _added(self, out: Tensor, weight: Tensor, rate: float, own: float) -> Tensor:
        """`own·w − rate·gradient` into `out`."""
        assert self.slope is not None
        factor = self.slope * rate if own == 0 else self.slope.mul(rate).add_(own)
        if self.shift is None:
            torch.mul(weight, factor, out=out)
        else:
            torch.addcmul(self.shift * -rate, weight, factor, out=out)
        return out.baddbmm_(self.g.transpose(1, 2), self.x, alpha=-rate)


def _inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 for 0; what is no number stays none."""
    return norm.reciprocal().nan_to_num_(nan=torch.nan, posinf=0.0)


def _centred(values: Tensor) -> tuple[Tensor, Tensor]:
    """(1/|v-μ|, μ) along the last dimension, which stays; 0 for a constant, by the zero rule."""
    count = values.shape[-1]
    if values.is_cuda:  # one pass
        variance, mean = torch.var_mean(values, -1, correction=0, keepdim=True)
    else:  # where torch's one pass takes longer than three
        mean = values.mean(-1, keepdim=True)
        variance = (values - mean).square_().mean(-1, keepdim=True)
    floor = mean.square().add_(variance).mul_(16 * torch.finfo(mean.dtype).eps ** 2)
    inverse = (variance * count).sqrt_().reciprocal_()
    return inverse.masked_fill_(variance <= floor, 0), mean


class _Product(torch.autograd.Function):
    """`x·w` over the lengths that `mode` names; values of a similarity are cut off below `low`.

    mode: "none", "weight", "cosine" or "pearson".
    sink: a list that takes the weights' gradient as a `ProductGradient`; None for a dense one.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mode: str, low: float, sink: list | None
    ) -> Tensor:
        rx = rw = mean = None
        if mode == "pearson":
            rw, mean = _centred(weight)
            rx, middle = _centred(x)
            x = x - middle
        elif mode != "none":
            rw = _inverse(torch.linalg.vector_norm(weight, dim=2, keepdim=True))
        if mode == "cosine":
            rx = _inverse(torch.linalg.vector_norm(x, dim=2, keepdim=True))
        z = torch.bmm(x, weight.transpose(1, 2))
        if rw is not None:
            z.mul_(rw.transpose(1, 2))
        if rx is not None:
            z.mul_(rx).clamp_(low, 1)
        ctx.low, ctx.sink = low, sink
        ctx.save_for_backward(x, weight, z, rx, rw, mean)
        return z

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, weight, z, rx, rw, mean = ctx.saved_tensors
        if ctx.low == 0:
            grad = torch.ops.aten.threshold_backward(grad, z, 0)
        dot, g, slope, shift = None, grad, None, None
        if rw is not None:
            dot = grad * z
            slope = dot.sum(1).unsqueeze(2).mul_(rw).mul_(rw)
            g = grad * rw.transpose(1, 2)
        if rx is not None:
            g = g.mul_(rx)
        if mean is not None:
            shift = slope * mean
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.bmm(g, weight)
            if rx is not None and dot is not None:
                dx.addcmul_(x, dot.sum(2, keepdim=True).mul_(rx).mul_(rx), value=-1)
            if mean is not None:
                dx.sub_(torch.bmm(g, mean))
        gradient = ProductGradient(g, x, slope, shift)
        if ctx.sink is None:
            return dx, gradient.dense(weight), None, None, None
        ctx.sink.append(gradient)
        return dx, None, None, None, None


def _replaced(layer: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Put in place of every tensor of `layer` those of `layers`, one above the other."""
    for owner, others in zip(
        layer.modules(), zip(*(each.modules() for each in layers), strict=True), strict=True
    ):
        for name, own in owner.named_parameters(recurse=False):
            stacked = torch.stack([getattr(other, name).detach() for other in others])
            setattr(owner, name, nn.Parameter(stacked, own.requires_grad))
        for name, _ in owner.named_buffers(recurse=False):
            setattr(owner, name, torch.stack([getattr(other, name) for other in others]))


class StackedLinear(nn.Module):
    """The linear layers that stand in the same place of several networks, for training.

    layers: of one class of `SERVED`, with the same sizes and choices; their tensors are copied.
    `one` has their tensors under their names, each with a first dimension more.
    deferred: with True, `backward` leaves the weight's gradient in `pending`, for `descend`.

    >>> layers = [CosineLinear(4, 2, activation="relu") for _ in range(3)]
    >>> StackedLinear(layers)(torch.rand(3, 5, 4)).shape
    torch.Size([3, 5, 2])
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        kinds = {type(layer) for layer in layers}
        if len(kinds) != 1 or not kinds <= set(SERVED):
            got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
            raise TypeError(
                "layers that are stacked must be of one class of "
                f"{', '.join(kind.__name__ for kind in SERVED)}; got {got}: "
                "train the networks one by one"
            )
        self.one: Any = deepcopy(layers[0])
        _replaced(self.one, layers)
        self._can_defer = self.one.bias is None or not isinstance(self.one, _SIMILAR)
        self._deferred = False
        self.pending: list[ProductGradient] = []

    @property
    def deferred(self) -> bool:
        return self._deferred

    @deferred.setter
    def deferred(self, wanted: bool) -> None:
        self._deferred = wanted and self._can_defer  # else the weights multiplied are made anew

    def forward(self, input: Tensor) -> Tensor:
        one, sink = self.one, self.pending if self._deferred else None
        if isinstance(one, _SIMILAR):
            z, activation = self._similarity(input, sink)
        else:
            z, activation = self._normalised(input, sink), one.activation
        if one.scale is not None:
            z = z * (one.scale.unsqueeze(1) if isinstance(one.scale, Tensor) else one.scale)
        return ACTIVATIONS[activation].value(z)

    def _similarity(self, x: Tensor, sink: list | None) -> tuple[Tensor, str | None]:
        """The similarity, and the activation that is still to come."""
        one, weight = self.one, self.one.weight
        if one.bias is not None:  # the vectors are [x, 1] and [w, b]
            x = F.pad(x, (0, 1), value=1.0)
            weight = torch.cat([weight, one.bias.unsqueeze(2)], 2)
        mode = "pearson" if one.centered else "cosine"
        if one.activation == "relu" and one.scale is None:
            return _Product.apply(x, weight, mode, 0.0, sink), None
        return _Product.apply(x, weight, mode, -1.0, sink), one.activation

    def _normalised(self, x: Tensor, sink: list | None) -> Tensor:
        one: Block | Any = self.one
        mode = "weight" if isinstance(one, WeightNormLinear) else "none"
        z: Tensor = _Product.apply(x, one.weight, mode, -1.0, sink)
        if one.bias is not None:
            z = z + one.bias.unsqueeze(1)
        norm: Any = getattr(one, "norm", None)
        if isinstance(one, BatchNormLinear):
            return _batch_norm(norm, z)
        if isinstance(one, LayerNormLinear):
            return _affine(F.layer_norm(z, z.shape[2:], eps=norm.eps), norm.weight, norm.bias)
        if isinstance(one, GroupNormLinear):
            y = F.group_norm(z.flatten(0, 1), norm.num_groups, eps=norm.eps).view_as(z)
            return _affine(y, norm.weight, norm.bias)
        if isinstance(one, RMSNormLinear):
            y = F.rms_norm(z, z.shape[2:], eps=norm.eps)
            return y if norm.weight is None else y * norm.weight.unsqueeze(1)
        if isinstance(one, WeightNormLinear):
            return _affine(z, one.gain, one.shift)
        return z

    @torch.no_grad()
    def descend(self, lr: float) -> None:
        """One step of plain SGD on the weight from the gradient that waits, which is then gone."""
        for gradient in self.pending:
            gradient.descend(self.one.weight, lr)
        self.pending.clear()


def _affine(z: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    if gain is None or shift is None:
        return z
    return torch.addcmul(shift.unsqueeze(1), z, gain.unsqueeze(1))


def _batch_norm(norm: Any, z: Tensor) -> Tensor:
    """Each network over its own rows: the outputs of all are channels of one normalisation."""
    flat = z.transpose(0, 1).flatten(1)
    norm.num_batches_tracked += 1
    gain, shift = (None if t is None else t.flatten() for t in (norm.weight, norm.bias))
    mean, variance = norm.running_mean.view(-1), norm.running_var.view(-1)
    y = F.batch_norm(flat, mean, variance, gain, shift, True, norm.momentum, norm.eps)
    return y.unflatten(1, z.shape[::2]).transpose(0, 1)


class StackedFlatten(nn.Module):
    """(S, rows, …) to (S, rows, features)."""

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(2)


def stacked(networks: Sequence[nn.Module]) -> nn.Sequential:
    """Several networks of the same layers as one, for training: (S, rows, …) to (S, rows, out).

    networks: `nn.Sequential` of `nn.Flatten` and the layers of `SERVED`; their tensors are copied,
    those of each place into one.

    >>> nets = [nn.Sequential(nn.Flatten(), CosineLinear(4, 2)) for _ in range(3)]
    >>> stacked(nets)(torch.rand(3, 5, 2, 2)).shape
    torch.Size([3, 5, 2])
    """
    for network in networks:
        if not isinstance(network, nn.Sequential):
            raise TypeError(
                f"networks that are stacked must be nn.Sequential; got {type(network).__name__}: "
                "train them one by one"
            )
    places: Any = zip(*networks, strict=True)
    return nn.Sequential(
        *(
            StackedFlatten()
            if all(isinstance(layer, nn.Flatten) for layer in layers)
            else StackedLinear(layers)
            for layers in places
        )
    )
