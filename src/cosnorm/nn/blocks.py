"""The methods that the paper compares with, as layers with the face of `CosineLinear` and its kin.

A block computes `y = act(scale · normalised(z))`, z the pre-activation of torch's own layer:

| method | normalised(z) |
|---|---|
| `BatchNorm…` | each output's z less its mean over the batch and the positions, by its deviation |
| `WeightNorm…` | `(w/‖w‖)·x`: each output's weight vector has length one |
| `LayerNorm…` | z less its mean over a sample's whole layer (features; C×H×W), by its deviation |
| `Plain…` | z |

The constructor is torch's, then `affine, scale, learn_scale, activation`, keyword-only. By default
there is no bias and no affine, as in the paper's networks. `bias=True` adds torch's bias (zero at
the start) to z, before batch and layer normalisation see it; batch normalisation then cancels it.
`affine=True` follows the normalisation with a learned gain (1 at the start) and shift (0 at the
start) for each output.

State: `weight`, `bias` and, where learned, `scale`. Batch and layer normalisation are torch's own
layers, held as `norm` (`norm.weight`, `norm.bias`, `norm.running_mean`, …), so that
`SyncBatchNorm.convert_sync_batchnorm` and `update_bn` find them; the affine of weight normalisation
is `gain` and `shift`.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LearnScale = bool | Literal["per_output"]
Size = int | tuple[int, ...]
Padding = Literal["zeros", "reflect", "replicate", "circular"]


class _Block(nn.Module):
    """What every block adds to torch's layer: checks, normalisation, scale, activation.

    The kind of layer (linear, conv) says how a product is taken; the method, mixed in before it,
    says what is normalised.
    """

    weight: Tensor
    bias: Tensor | None
    groups: int
    dimensions: int  # of space: 0 for a linear layer

    def _complete(self, affine: bool, scale: Any, learn_scale: Any, activation: Any) -> None:
        if activation not in (None, "relu"):
            raise ValueError(f"activation must be None or 'relu'; got {activation!r}")
        self.activation = activation
        self.affine = affine
        self.scale = _start_of_scale(self.weight, scale, learn_scale)
        self._add_norm(affine)

    def reset_parameters(self) -> None:
        super().reset_parameters()  # pyright: ignore[reportAttributeAccessIssue]  # torch's layer
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        _check(input, self.weight, self.dimensions, self.groups)
        y = self._normalised(input)
        if isinstance(self.scale, Tensor):
            y = y * self._per_output(self.scale, y)
        elif self.scale is not None:
            y = y * self.scale
        return F.relu(y) if self.activation == "relu" else y

    def extra_repr(self) -> str:
        scale = "learned" if isinstance(self.scale, Tensor) else self.scale
        own = {"affine": self.affine or None, "scale": scale, "activation": self.activation}
        told = [f"{key}={value}" for key, value in own.items() if value is not None]
        return ", ".join([super().extra_repr(), *told])

    def _per_output(self, values: Tensor, like: Tensor) -> Tensor:
        return values.to(like.dtype).view(-1, *[1] * self.dimensions)

    def _add_norm(self, affine: bool) -> None:
        raise NotImplementedError

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def _as_batch(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _normalised(self, input: Tensor) -> Tensor:
        raise NotImplementedError


def _start_of_scale(weight: Tensor, scale: Any, learn_scale: Any) -> float | nn.Parameter | None:
    if learn_scale not in (False, True, "per_output"):
        raise ValueError(f"learn_scale must be False, True or 'per_output'; got {learn_scale!r}")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise TypeError(f"scale must be a number or None; got {type(scale).__name__} {scale!r}")
    if learn_scale is False:
        return None if scale is None else float(scale)
    start = 1.0 if scale is None else float(scale)
    return nn.Parameter(
        weight.new_full((len(weight) if learn_scale == "per_output" else 1,), start)
    )


def _check(input: Tensor, weight: Tensor, dimensions: int, groups: int) -> None:
    """Raise, with the rule and the value, where torch's layer could not take the input."""
    shape = tuple(input.shape)
    if not input.is_floating_point():
        raise TypeError(f"input must be floating point; got {input.dtype}: call input.float()")
    if dimensions and len(shape) not in (dimensions + 1, dimensions + 2):
        raise ValueError(
            f"input must have {dimensions + 2} dimensions (batch, channels, {dimensions} of space) "
            f"or {dimensions + 1} without the batch; got shape {shape}"
        )
    wanted = weight.shape[1] * groups
    if not shape or shape[-1 - dimensions] != wanted:
        entries = f"{wanted} channels" if dimensions else f"{wanted} features, its last dimension"
        raise ValueError(f"input must have {entries}; got shape {shape}")


class _LinearBlock(_Block):
    dimensions = 0
    groups = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        affine: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Literal["relu"] | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._complete(affine, scale, learn_scale, activation)

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        return F.linear(input, weight, self.bias)

    def _as_batch(self, z: Tensor) -> Tensor:
        return z.reshape(-1, z.shape[-1])


class _ConvBlock(_Block):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: Padding = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        affine: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Literal["relu"] | None = None,
    ) -> None:
        place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, *place)
        self._complete(affine, scale, learn_scale, activation)

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        return self._conv_forward(input, weight, self.bias)  # pyright: ignore[reportCallIssue]

    def _as_batch(self, z: Tensor) -> Tensor:
        return z if z.dim() == self.dimensions + 2 else z.unsqueeze(0)


class _Batch(_Block):
    def _add_norm(self, affine: bool) -> None:
        kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[self.dimensions]
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.norm = kind(len(self.weight), affine=affine, **place)

    def _normalised(self, input: Tensor) -> Tensor:
        z = self._product(input, self.weight)
        if z.numel() == 0:  # torch would write NaN into the running statistics
            return z
        return self.norm(self._as_batch(z)).reshape(z.shape).to(z.dtype)


class _Layer(_Block):
    def _add_norm(self, affine: bool) -> None:
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        if self.dimensions:  # one group: the statistics of all channels and positions together
            self.norm = nn.GroupNorm(1, len(self.weight), affine=affine, **place)
        else:
            self.norm = nn.LayerNorm(len(self.weight), elementwise_affine=affine, **place)

    def _normalised(self, input: Tensor) -> Tensor:
        z = self._product(input, self.weight)
        return self.norm(self._as_batch(z)).reshape(z.shape).to(z.dtype)


class _Weight(_Block):
    def _add_norm(self, affine: bool) -> None:
        outputs = len(self.weight)
        self.gain = nn.Parameter(self.weight.new_ones(outputs)) if affine else None
        self.shift = nn.Parameter(self.weight.new_zeros(outputs)) if affine else None

    def _normalised(self, input: Tensor) -> Tensor:
        z = self._product(input, _unit(self.weight))
        if self.gain is None or self.shift is None:
            return z
        return z * self._per_output(self.gain, z) + self._per_output(self.shift, z)


def _unit(weight: Tensor) -> Tensor:
    """Each output's weight vector at length one; a zero vector stays zero and gets no gradient."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    squares = wide.square().sum(tuple(range(1, weight.dim())), keepdim=True)
    some = squares > 0
    inverse = torch.where(some, torch.where(some, squares, 1).rsqrt(), 0)
    return (wide * inverse).to(weight.dtype)


class _Plain(_Block):
    def _add_norm(self, affine: bool) -> None:
        if affine:
            raise ValueError(
                "affine follows a normalisation and a plain layer has none; got affine=True: "
                "use bias=True, learn_scale='per_output' or both"
            )

    def _normalised(self, input: Tensor) -> Tensor:
        return self._product(input, self.weight)


class BatchNormLinear(_Batch, _LinearBlock, nn.Linear):
    """`nn.Linear` with batch normalisation of its output; see the module's docstring."""


class BatchNormConv1d(_Batch, _ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with batch normalisation of its output; see the module's docstring."""

    dimensions = 1


class BatchNormConv2d(_Batch, _ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with batch normalisation of its output; see the module's docstring."""

    dimensions = 2


class BatchNormConv3d(_Batch, _ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with batch normalisation of its output; see the module's docstring."""

    dimensions = 3


class WeightNormLinear(_Weight, _LinearBlock, nn.Linear):
    """`nn.Linear` with weight vectors of length one; see the module's docstring."""


class WeightNormConv1d(_Weight, _ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with weight vectors of length one; see the module's docstring."""

    dimensions = 1


class WeightNormConv2d(_Weight, _ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with weight vectors of length one; see the module's docstring."""

    dimensions = 2


class WeightNormConv3d(_Weight, _ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with weight vectors of length one; see the module's docstring."""

    dimensions = 3


class LayerNormLinear(_Layer, _LinearBlock, nn.Linear):
    """`nn.Linear` with layer normalisation of its output; see the module's docstring."""


class LayerNormConv1d(_Layer, _ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with layer normalisation of its output; see the module's docstring."""

    dimensions = 1


class LayerNormConv2d(_Layer, _ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with layer normalisation of its output; see the module's docstring."""

    dimensions = 2


class LayerNormConv3d(_Layer, _ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with layer normalisation of its output; see the module's docstring."""

    dimensions = 3


class PlainLinear(_Plain, _LinearBlock, nn.Linear):
    """`nn.Linear` with no normalisation; see the module's docstring."""


class PlainConv1d(_Plain, _ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with no normalisation; see the module's docstring."""

    dimensions = 1


class PlainConv2d(_Plain, _ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with no normalisation; see the module's docstring."""

    dimensions = 2


class PlainConv3d(_Plain, _ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with no normalisation; see the module's docstring."""

    dimensions = 3
