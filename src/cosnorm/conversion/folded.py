"""The layers that `fold` leaves: unit weights v and their sums Σv stored, nothing to normalise.

Where nobody looks on, a backend runs its passes around the stored weights. In any graph, and where
gradients of the input are wanted, a folded layer is plain torch, `y = act(scale · r_x (v·x − μx
Σv))`: exporters need no op of ours, and torch.compile fuses everything but the product.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.checks import check_margins, check_tensors, conv_sizes
from cosnorm.functional import autocast
from cosnorm.ops import reference
from cosnorm.ops.backend import way_for
from cosnorm.ops.direct import is_unseen, transforming
from cosnorm.ops.spec import Geometry, Spec

Unit = tuple[Tensor, Tensor | None, Tensor | None]  # v, its bias and Σv, which is Pearson's only
Stored = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # those, and the step of int8
Finish = tuple[Tensor | None, str | None]  # scale and activation


class _Folded(nn.Module):
    """A cosine layer for inference: `unit_weight`, `unit_bias`, `total` and `scale` are buffers.

    There is no `weight`: code that reads it, and does not call the layer, would take v for w.

    total: Σv of each unit as rounded, Pearson only.
    step: of weights stored as int8 only, what an entry of 1 stands for, so that each is of unit
    length again.

    Both follow the unit weights when these are cast or loaded, and are no part of the state_dict.
    """

    unit_weight: Tensor
    unit_bias: Tensor | None
    total: Tensor | None
    step: Tensor | None
    scale: Tensor | None
    activation: str | None

    def _apply(self, fn: Any, recurse: bool = True) -> "_Folded":
        super()._apply(fn, recurse)
        self._renew()
        return self

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *arguments: Any, **options: Any
    ) -> None:
        given = state_dict.get(f"{prefix}unit_weight")
        own = self.unit_weight.is_floating_point()
        if given is not None and given.is_floating_point() != own:
            kind = "floating point" if own else "torch.int8"
            raise ValueError(
                f"{prefix}unit_weight must be {kind} in a model "
                f"folded like this one; got {given.dtype}: fold with the dtype of the saved one"
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments, **options)
        self._renew()

    def _renew(self) -> None:
        if self.step is not None:
            self.step = folded_step(self.unit_weight, self.unit_bias, self.total is not None)
        if self.total is not None:
            self.total = folded_total(self.unit_weight, self.unit_bias, self.step)

    def _described(self) -> str:
        """What repr shows after torch's arguments."""
        bias, centered = self.unit_bias is not None, self.total is not None
        parts = [f"bias={bias}", f"centered={centered}"]
        if self.step is not None:
            parts.append("weights in int8")
        if self.scale is not None:
            one = self.scale.numel() == 1 and not self.scale.is_meta
            parts.append(
                f"scale={self.scale.item():g}" if one else f"scale of {self.scale.numel()}"
            )
        if self.activation is not None:
            parts.append(f"activation={self.activation!r}")
        return ", ".join(parts)

    def _state(self) -> tuple[Stored, Finish]:
        stored = (self.unit_weight, self.unit_bias, self.total, self.step)
        return stored, (self.scale, self.activation)


class FoldedLinear(_Folded):
    """What `fold` makes of a `CosineLinear` or `PearsonLinear`."""

    in_features: int
    out_features: int

    def forward(self, input: Tensor) -> Tensor:
        return folded_linear(input, *self._state())

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self._described()}"


class FoldedConv(_Folded):
    """What `fold` makes of a `CosineConv1d/2d/3d` or `PearsonConv1d/2d/3d`."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]

    def forward(self, input: Tensor) -> Tensor:
        margins = self._reversed_padding_repeated_twice
        return folded_conv(
            input, *self._state(), self.stride, self.padding, self.dilation, self.groups,
            self.padding_mode, margins,
        )  # fmt: skip

    def extra_repr(self) -> str:
        outputs, inputs, *size = self.unit_weight.shape
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode!r}"
        return (
            f"{inputs * self.groups}, {outputs}, kernel_size={tuple(size)}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}{mode}, "
            f"{self._described()}"
        )


@torch.fx.wrap
def folded_linear(input: Tensor, stored: Stored, finish: Finish) -> Tensor:
    """act(scale · c) for each row of `input` (…, in); one call to torch.fx, checks and all."""
    unit = _floating(stored, input)
    units, features = unit[0].shape
    check_tensors("FoldedLinear", input, unit[0], unit[1], weight_dims=2)
    if input.shape[-1:] != (features,):
        raise ValueError(
            f"FoldedLinear: input must have {features} features, its last dimension; got shape "
            f"{tuple(input.shape)}: reshape it"
        )
    input = autocast(input)
    return _output(input.reshape(-1, features), unit, finish, None).view(*input.shape[:-1], units)


@torch.fx.wrap
def folded_conv(
    input: Tensor,
    stored: Stored,
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
    unit = _floating(stored, input)
    dims = unit[0].dim() - 2
    name = f"FoldedConv{dims}d"
    check_tensors(name, input, unit[0], unit[1], weight_dims=dims + 2, groups=groups)
    if padding_mode != "zeros":
        check_margins(name, dims, input, unit[0].shape[1] * groups, margins, padding_mode)
        input, padding = F.pad(input, margins, mode=padding_mode), [0] * dims
    sizes = conv_sizes(name, dims, input, unit[0], stride, padding, dilation, groups)
    x = autocast(input if input.dim() == dims + 2 else input.unsqueeze(0))
    x = F.pad(x, sizes.extra) if sizes.extra else x
    steps = (tuple(sizes.stride), tuple(sizes.padding), tuple(sizes.dilation))
    output = _output(x, unit, finish, Geometry(*steps, groups))
    return output if input.dim() == dims + 2 else output.squeeze(0)


def _floating(stored: Stored, input: Tensor) -> Unit:
    """v, its bias and Σv as stored; of int8 in the dtype of the input, rounded to it."""
    weight, bias, total, step = stored
    if step is None:
        return weight, bias, total
    floats = isinstance(input, Tensor) and input.is_floating_point()
    dtype = input.dtype if floats else step.dtype
    v = (weight * step.view(-1, *[1] * (weight.dim() - 1))).to(dtype)
    vb = None if bias is None else (bias * step).to(dtype)
    exact = total is None or dtype == step.dtype
    return v, vb, total if exact else folded_total(v, vb)


def _output(x: Tensor, unit: Unit, finish: Finish, geometry: Geometry | None) -> Tensor:
    """act(scale · c), by a backend or in torch; x: (N, C, …) or rows."""
    (v, vb, total), (scale, activation) = _in_dtype(unit, reference.compute_dtype(x)), finish
    similarity = "cosine" if total is None else "pearson"
    spec = Spec(similarity, activation, 1.0, geometry)
    with reference.full_precision(x):
        if _is_alone(x):
            way = way_for(x, v, vb, scale, spec, True)
            return way.backend.infer(x, v, vb, total, scale, way.plan)
        return _formula(x, v, vb, total, scale, spec)


def _is_alone(input: Tensor) -> bool:
    """Outside of any graph or transform, where nobody wants gradients."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and input.requires_grad):
        return False
    return is_unseen(input) and not transforming()


def _in_dtype(unit: Unit, dtype: torch.dtype) -> Unit:
    """Work only where it isn't theirs: under autocast, or in a graph that was cast as a whole."""
    v, vb, total = unit
    kept = total is None or total.dtype == reference.stats_dtype(dtype)
    if v.dtype == dtype and kept:
        return unit
    rounded = torch.promote_types(v.dtype, dtype) != dtype
    v, vb = v.to(dtype), None if vb is None else vb.to(dtype)
    return v, vb, folded_total(v, vb) if total is not None and (rounded or not kept) else total


def folded_total(weight: Tensor, bias: Tensor | None, step: Tensor | None = None) -> Tensor:
    """Σv of each unit as rounded, the bias counted: what centring has left over."""
    wide = reference.stats_dtype(weight.dtype)
    total = weight.flatten(1).sum(1, dtype=wide)
    total = total if bias is None else total + bias.to(wide)
    return total if step is None else total * step


def folded_step(weight: Tensor, bias: Tensor | None, centered: bool) -> Tensor:
    """1/|q| of each unit stored as int8 entries q, centred 1/|q-μq|; 0 where q has no direction."""
    return reference.weight_stats(weight, bias, centered)[0]


def _formula(
    x: Tensor,
    v: Tensor,
    vb: Tensor | None,
    total: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
) -> Tensor:
    """act(scale · r_x (z − μx Σv)) in torch, to be differentiated or exported."""
    centered, bias, groups = total is not None, vb is not None, spec.groups
    each = [1] * (x.dim() - 2)
    if spec.geometry is None:
        rnorm, mean = reference.row_stats(x, centered, bias)
        z = F.linear(x.to(v.dtype), v, vb)
    else:
        place = spec.geometry[:4]
        rnorm, mean = reference.field_stats(x, v.shape[2:], *place, centered, bias)
        z = reference.CONVOLUTION[len(each)](x.to(v.dtype), v, vb, *place)
    z = z.to(rnorm.dtype).unflatten(1, (groups, -1))
    if total is not None:
        z = z - mean.unsqueeze(2) * total.view(groups, -1, *each)
    cosine = (z * rnorm.unsqueeze(2)).flatten(1, 2)
    return reference.finish(cosine, reference.channelwise(scale, len(each)), spec, x.dtype)
