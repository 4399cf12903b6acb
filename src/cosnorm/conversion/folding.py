"""`fold`: unit weights baked in, so that inference does no weight work.

On a GPU the fused passes run around the stored weights. Everywhere else, and in any graph, a
folded layer is plain torch, `y = act(scale · r_x (v·x − μx Σv))` with v and Σv stored: exporters
need no op of ours, and torch.compile fuses everything but the product.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm import algorithm, reference
from cosnorm.chain import Link
from cosnorm.chain_op import Layer
from cosnorm.checks import check_kind, conv_sizes
from cosnorm.conversion.account import Account, Entry
from cosnorm.conversion.layers import (
    TransposedCosineLinear,
    TransposedPearsonLinear,
    computed,
)
from cosnorm.functional import autocast, transforming
from cosnorm.kernels.steps import LINEAR, Geometry, Weight, memory_format
from cosnorm.nn import (
    CosineConv1d,
    CosineConv2d,
    CosineConv3d,
    CosineConvTranspose1d,
    CosineConvTranspose2d,
    CosineConvTranspose3d,
    CosineLinear,
    PearsonConv1d,
    PearsonConv2d,
    PearsonConv3d,
    PearsonConvTranspose1d,
    PearsonConvTranspose2d,
    PearsonConvTranspose3d,
    PearsonLinear,
)

_TRANSPOSED_LINEARS = (TransposedCosineLinear, TransposedPearsonLinear)
_LINEARS = (CosineLinear, PearsonLinear, *_TRANSPOSED_LINEARS)
_CONVS = (CosineConv1d, CosineConv2d, CosineConv3d, PearsonConv1d, PearsonConv2d, PearsonConv3d)
_TRANSPOSED_CONVS = (
    CosineConvTranspose1d,
    CosineConvTranspose2d,
    CosineConvTranspose3d,
    PearsonConvTranspose1d,
    PearsonConvTranspose2d,
    PearsonConvTranspose3d,
)


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

    def _unit(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """v, its bias and Σv in a dtype; work only where it isn't theirs, under autocast say."""
        v, vb = self.unit_weight, self.unit_bias
        if v.dtype == dtype:
            return v, vb, self.total
        v, vb = v.to(dtype), None if vb is None else vb.to(dtype)
        return v, vb, None if self.total is None else _total(v, vb)

    def _inferred(
        self, x: Tensor, v: Tensor, vb: Tensor | None, total: Tensor | None, geometry: Geometry
    ) -> Tensor:
        unit = Weight(v, vb, v.new_empty(0), total)
        relu = self.activation == "relu"
        return algorithm.infer(x, unit, self.scale, geometry, total is not None, relu)

    def _finish(
        self, product: Tensor, rnorm: Tensor, mean: Tensor, total: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """act(scale · r_x (z − μx Σv)), in place where nobody wants gradients."""
        relu = self.activation == "relu"
        each = [1] * (product.dim() - 2)
        scale = None if self.scale is None else self.scale.to(rnorm.dtype).view(-1, *each)
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


class FoldedLinear(_Folded):
    """What `fold` makes of a `CosineLinear` or `PearsonLinear`."""

    in_features: int
    out_features: int

    def forward(self, input: Tensor) -> Tensor:
        check_kind("FoldedLinear", "input", input)
        if input.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"input must have {self.in_features} features, its last dimension; "
                f"got shape {tuple(input.shape)}"
            )
        input = autocast(input)
        rows = input.reshape(-1, self.in_features)
        dtype = reference.compute_dtype(rows)
        with reference.full_precision(rows):
            v, vb, total = self._unit(dtype)
            if _by_kernels(rows):
                output = self._inferred(rows, v, vb, total, LINEAR)
                return output.view(*input.shape[:-1], self.out_features)
            fields = reference.row_stats(rows, total is not None, vb is not None)
            product = F.linear(rows.to(dtype), v, vb)
            output = self._finish(product, *fields, total, input.dtype)
        return output.view(*input.shape[:-1], self.out_features)

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
        geometry = Geometry(self.stride, self.padding, self.dilation, 1)
        layer = Layer(self.unit_weight, self.unit_bias, geometry)
        return Link(layer, self.total is not None, True, self.total)

    def forward(self, input: Tensor) -> Tensor:
        padding, dims = self.padding, self.unit_weight.dim() - 2
        check_kind(f"FoldedConv{dims}d", "input", input)
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        steps = (self.stride, padding, self.dilation, self.groups)
        sizes = conv_sizes(f"FoldedConv{dims}d", dims, input, self.unit_weight, *steps)
        x = autocast(input if input.dim() == dims + 2 else input.unsqueeze(0))
        x = F.pad(x, sizes.extra) if sizes.extra else x
        geometry = (sizes.stride, sizes.padding, sizes.dilation, self.groups)
        dtype = reference.compute_dtype(x)
        with reference.full_precision(x):
            v, vb, total = self._unit(dtype)
            if _by_kernels(x):
                output = self._inferred(x, v, vb, total, Geometry(*geometry))
            else:
                centered, bias = total is not None, vb is not None
                fields = reference.field_stats(x, v.shape[2:], *geometry, centered, bias)
                product = reference.CONVOLUTION[dims](x.to(dtype), v, vb, *geometry)
                output = self._finish(product, *fields, total, x.dtype)
        return output if input.dim() == dims + 2 else output.squeeze(0)

    def extra_repr(self) -> str:
        outputs, inputs, *size = self.unit_weight.shape
        return (
            f"{inputs * self.groups}, {outputs}, kernel_size={tuple(size)}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        )


def _by_kernels(input: Tensor) -> bool:
    """On a GPU, outside of any graph or transform, where nobody wants gradients."""
    graph = torch.compiler.is_compiling() or (torch.is_grad_enabled() and input.requires_grad)
    return input.is_cuda and not graph and not transforming()


def _total(weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = reference.stats_dtype(weight.dtype)
    total = weight.flatten(1).sum(1, dtype=wide)
    return total if bias is None else total + bias.to(wide)


def fold(model: nn.Module) -> Account:
    """Bake the unit weights of a model's cosine layers in, in place, for inference.

    A folded layer gives what it gave before, to rounding, and normalises no weights any more. Its
    state is the buffers `unit_weight`, `unit_bias`, `total` and `scale`; it can't be trained. Fold
    a copy (`copy.deepcopy`) where the model is still to be trained. Transposed convolutions stay:
    the norm of their weights changes from position to position.

    Returns:
        An `Account` with an entry for every cosine layer.

    Raises:
        TypeError, ValueError: if the model is no module or not in evaluation mode. It is then as it
            was.

    Example:
        >>> model = nn.Sequential(CosineLinear(8, 4)).eval()
        >>> [entry.now for entry in fold(model)]
        ['FoldedLinear']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    names = dict(model.named_modules(remove_duplicate=False))
    known = (*_LINEARS, *_CONVS, *_TRANSPOSED_CONVS)
    layers = {name: module for name, module in names.items() if isinstance(module, known)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                f"model must be in evaluation mode to be folded; got {name or 'a layer'} in "
                "training mode: call model.eval() first"
            )
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    entries = [_entry(name, layer, uses) for name, layer in layers.items()]
    for layer in dict.fromkeys(layers.values()):
        if _obstacle(layer) is None:
            _bake(layer)
    return Account(entries)


def _entry(name: str, layer: nn.Module, uses: Mapping[int, int]) -> Entry:
    was = type(layer).__name__
    if reason := _obstacle(layer):
        return Entry(name, was, None, reason)
    now = "FoldedLinear" if type(layer) in _LINEARS else "FoldedConv"
    tied = uses[id(layer.weight)] > 1
    return Entry(
        name, was, now, "its weight was shared; the unit weight is its own" if tied else ""
    )


def _obstacle(layer: nn.Module) -> str | None:
    """Why a cosine layer can't be folded; None where it can."""
    if type(layer) in _TRANSPOSED_CONVS:
        return "the norm of its weights changes from position to position"
    if type(layer) not in (*_LINEARS, *_CONVS):
        return "a subclass: what it computes is not known"
    if "forward" in vars(layer):
        return "its forward was replaced on the object"
    return computed(layer)


@torch.no_grad()
def _bake(layer: Any) -> None:
    """Make a cosine layer its folded kind, the same object still."""
    weight = layer.weight.t() if isinstance(layer, _TRANSPOSED_LINEARS) else layer.weight
    dtype = reference.compute_dtype(weight)
    unit = reference.unit_weight(weight, layer.bias, layer.centered, dtype)
    scale = layer.scale
    if isinstance(scale, float):
        scale = torch.full((1,), scale, dtype=unit.total.dtype, device=weight.device)
    elif scale is not None:
        scale = scale.detach().clone()
    format = memory_format(weight)
    buffers = {
        "unit_weight": unit.weight.contiguous(memory_format=format),
        "unit_bias": unit.bias,
        "total": unit.total if layer.centered else None,
        "scale": scale,
    }
    kind: Any = FoldedLinear if isinstance(layer, _LINEARS) else FoldedConv
    layer.__class__ = kind
    layer._parameters.clear()
    vars(layer).pop("scale", None)
    for name, tensor in buffers.items():
        layer.register_buffer(name, tensor)
