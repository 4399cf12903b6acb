"""The layers that `fold` leaves: unit weights v and their sums Σv stored, nothing to normalise.

On a GPU the fused passes run around the stored weights. Everywhere else, and in any graph, a
folded layer is plain torch, `y = act(scale · r_x (v·x − μx Σv))`: exporters need no op of ours,
and torch.compile fuses everything but the product.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm import algorithm, reference
from cosnorm.chain import Link
from cosnorm.chain_op import Layer
from cosnorm.checks import check_kind, conv_sizes
from cosnorm.functional import autocast, transforming
from cosnorm.kernels.steps import LINEAR, Geometry, Weight
from cosnorm.ops import is_unseen

Unit = tuple[Tensor, Tensor | None, Tensor | None]  # v, its bias and Σv, which is Pearson's only
Finish = tuple[Tensor | None, str | None]  # scale and activation


class _Folded(nn.Module):
    """A cosine layer for inference: `unit_weight`, `unit_bias`, `total` and `scale` are buffers.

    total: Σv of each unit as rounded, Pearson only. It follows the dtype of the unit weights, so
    a folded model may be cast.
    """

    unit_weight: Tensor
    unit_bias: Tensor | None
    total: Tensor | None
    scale: Tensor | None
    activation: str | None

    @property
    def weight(self) -> Tensor:
        return self.unit_weight

    @property
    def bias(self) -> Tensor | None:
        return self.unit_bias

    def _apply(self, fn: Any, recurse: bool = True) -> "_Folded":
        super()._apply(fn, recurse)
        if self.total is not None:
            self.total = _total(self.unit_weight, self.unit_bias)
        return self

    def _state(self) -> tuple[Unit, Finish]:
        return (self.unit_weight, self.unit_bias, self.total), (self.scale, self.activation)


class FoldedLinear(_Folded):
    """What `fold` makes of a `CosineLinear` or `PearsonLinear`."""

    in_features: int
    out_features: int

    def forward(self, input: Tensor) -> Tensor:
        return folded_linear(input, *self._state())

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class FoldedConv(_Folded):
    """What `fold` makes of a `CosineConv1d/2d/3d` or `PearsonConv1d/2d/3d`."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]

    def chain_link(self, input: Tensor) -> Link | None:
        """This layer as one of a chain (`cosnorm.nn.Sequential`), or None: call it."""
        plain = self.groups == 1 and self.padding_mode == "zeros" and self.scale is None
        if isinstance(self.padding, str) or not _by_kernels(input):
            return None
        if not plain or self.activation != "relu":
            return None
        geometry = Geometry.of(self.stride, self.padding, self.dilation, 1)
        layer = Layer(self.unit_weight, self.unit_bias, geometry)
        return Link(layer, self.total is not None, True, self.total)

    def forward(self, input: Tensor) -> Tensor:
        margins = self._reversed_padding_repeated_twice
        return folded_conv(
            input, *self._state(), self.stride, self.padding, self.dilation, self.groups,
            self.padding_mode, margins,
        )  # fmt: skip

    def extra_repr(self) -> str:
        outputs, inputs, *size = self.unit_weight.shape
        return (
            f"{inputs * self.groups}, {outputs}, kernel_size={tuple(size)}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        )


@torch.fx.wrap
def folded_linear(input: Tensor, unit: Unit, finish: Finish) -> Tensor:
    """act(scale · c) for each row of `input` (…, in); one call to torch.fx, checks and all."""
    units, features = unit[0].shape
    check_kind("FoldedLinear", "input", input)
    if input.shape[-1:] != (features,):
        raise ValueError(
            f"input must have {features} features, its last dimension; "
            f"got shape {tuple(input.shape)}"
        )
    input = autocast(input)
    rows = input.reshape(-1, features)
    dtype = reference.compute_dtype(rows)
    with reference.full_precision(rows):
        v, vb, total = unit = _in_dtype(unit, dtype)
        if _by_kernels(rows):
            output = _inferred(rows, unit, finish, LINEAR)
        else:
            fields = reference.row_stats(rows, total is not None, vb is not None)
            product = F.linear(rows.to(dtype), v, vb)
            output = _finished(product, *fields, total, finish, input.dtype)
    return output.view(*input.shape[:-1], units)


@torch.fx.wrap
def folded_conv(
    input: Tensor,
    unit: Unit,
    finish: Finish,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
    padding_mode: str,
    margins: list[int],
) -> Tensor:
    """act(scale · c) for each receptive field of `input` (N, C, …), or of (C, …).

    margins: what F.pad puts around the input where the padding mode is not "zeros".
    """
    dims = unit[0].dim() - 2
    name = f"FoldedConv{dims}d"
    check_kind(name, "input", input)
    if padding_mode != "zeros":
        input, padding = F.pad(input, margins, mode=padding_mode), [0] * dims
    sizes = conv_sizes(name, dims, input, unit[0], stride, padding, dilation, groups)
    x = autocast(input if input.dim() == dims + 2 else input.unsqueeze(0))
    x = F.pad(x, sizes.extra) if sizes.extra else x
    geometry = Geometry.of(sizes.stride, sizes.padding, sizes.dilation, groups)
    dtype = reference.compute_dtype(x)
    with reference.full_precision(x):
        v, vb, total = unit = _in_dtype(unit, dtype)
        if _by_kernels(x):
            output = _inferred(x, unit, finish, geometry)
        else:
            centered, bias = total is not None, vb is not None
            fields = reference.field_stats(x, v.shape[2:], *geometry, centered, bias)
            product = reference.CONVOLUTION[dims](x.to(dtype), v, vb, *geometry)
            output = _finished(product, *fields, total, finish, x.dtype)
    return output if input.dim() == dims + 2 else output.squeeze(0)


def _by_kernels(input: Tensor) -> bool:
    """On a GPU, outside of any graph or transform, where nobody wants gradients."""
    wanted = torch.is_grad_enabled() and input.requires_grad
    return _on_gpu(input) and not wanted and is_unseen(input) and not transforming()


def _on_gpu(input: Tensor) -> bool:
    return input.is_cuda


def _in_dtype(unit: Unit, dtype: torch.dtype) -> Unit:
    """Work only where it isn't theirs: under autocast, or in a graph that was cast as a whole."""
    v, vb, total = unit
    if v.dtype == dtype and (total is None or total.dtype == reference.stats_dtype(dtype)):
        return unit
    v, vb = v.to(dtype), None if vb is None else vb.to(dtype)
    return v, vb, None if total is None else _total(v, vb)


def _total(weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = reference.stats_dtype(weight.dtype)
    total = weight.flatten(1).sum(1, dtype=wide)
    return total if bias is None else total + bias.to(wide)


def _inferred(x: Tensor, unit: Unit, finish: Finish, geometry: Geometry) -> Tensor:
    (v, vb, total), (scale, activation) = unit, finish
    weight = Weight(v, vb, v.new_empty(0), total)
    relu = activation == "relu"
    return algorithm.infer(x, weight, scale, geometry, total is not None, relu)


def _finished(
    product: Tensor,
    rnorm: Tensor,
    mean: Tensor,
    total: Tensor | None,
    finish: Finish,
    dtype: torch.dtype,
) -> Tensor:
    """act(scale · r_x (z − μx Σv)), in place where nobody wants gradients."""
    relu = finish[1] == "relu"
    each = [1] * (product.dim() - 2)
    scale = None if finish[0] is None else finish[0].to(rnorm.dtype).view(-1, *each)
    z = product.to(rnorm.dtype).unflatten(1, (rnorm.shape[1], -1))
    rnorm = rnorm.unsqueeze(2)
    if total is not None:
        mean, total = mean.unsqueeze(2), total.view(z.shape[1], -1, *each)
    if torch.is_grad_enabled() and z.requires_grad:
        z = (z if total is None else z - mean * total) * rnorm
        return reference.finish(z.flatten(1, 2), scale, 1.0, relu, dtype)[0]
    z = z if total is None else z.addcmul_(mean, total, value=-1)
    z = z.mul_(rnorm).flatten(1, 2)
    z.clamp_(0 if relu and scale is None else -1, 1)
    if scale is not None:
        z.mul_(scale)
        z = z.relu_() if relu else z
    return z.to(dtype)
