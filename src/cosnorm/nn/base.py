"""What the comparison blocks share: torch's constructors, checks, the scale and the activation."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.checks import (
    check_bias,
    check_counts,
    check_dtype,
    check_groups,
    check_margins,
    check_tensors,
    conv_padding,
    conv_sizes,
    sizes,
)
from cosnorm.nn.scale import LearnScale, add_scale, check_activation, describe, reset_scale
from cosnorm.ops.activations import ACTIVATIONS
from cosnorm.ops.activations import Name as Activation

Size = int | tuple[int, ...]
Padding = Literal["zeros", "reflect", "replicate", "circular"]


class Block(nn.Module):
    """What every block adds to torch's layer: checks, normalisation, scale, activation.

    The kind of layer (linear, conv) says how a product is taken; the method, mixed in before it,
    says what is normalised.
    """

    weight: Tensor
    bias: Tensor | None
    scale: Any
    groups: int
    dimensions: int  # of space: 0 for a linear layer

    def _complete(self, affine: bool, scale: Any, learn_scale: Any, activation: Any) -> None:
        check_activation(self, activation)
        if not isinstance(affine, bool):
            raise TypeError(
                f"{type(self).__name__}: affine must be True or False, got {affine!r}; "
                "True for a learned gain and shift"
            )
        self.activation = activation
        self.affine = affine
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        add_scale(self, len(self.weight), scale, learn_scale, **place)
        reset_scale(self)
        self._add_norm(affine)

    def reset_parameters(self) -> None:
        super().reset_parameters()  # pyright: ignore[reportAttributeAccessIssue]  # torch's layer
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if hasattr(self, "scale"):  # torch resets once before we have added ours
            reset_scale(self)
            self._reset_norm()

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        y = self._normalised(input)
        if isinstance(self.scale, Tensor):
            y = y * self._per_output(self.scale, y)
        elif self.scale is not None:
            y = y * self.scale
        return ACTIVATIONS[self.activation].value(y)

    def extra_repr(self) -> str:
        affine = ", affine=True" if self.affine else ""
        return f"{super().extra_repr()}{affine}{describe(self)}"

    def _per_output(self, values: Tensor, like: Tensor) -> Tensor:
        return values.to(like.dtype).view(-1, *[1] * self.dimensions)

    def _check(self, input: Tensor) -> None:
        """Refuse, by the rules of the similarity layers, an input that this one cannot take."""
        raise NotImplementedError

    def _add_norm(self, affine: bool) -> None:
        raise NotImplementedError

    def _reset_norm(self) -> None:
        raise NotImplementedError

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def _as_batch(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _normalised(self, input: Tensor) -> Tensor:
        raise NotImplementedError


class LinearBlock(Block):
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
        activation: Activation | None = None,
    ) -> None:
        name = type(self).__name__
        check_counts(name, in_features=in_features, out_features=out_features)
        check_dtype(name, dtype)
        check_bias(name, bias)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._complete(affine, scale, learn_scale, activation)

    def _check(self, input: Tensor) -> None:
        name, weight = type(self).__name__, self.weight
        check_tensors(name, input, weight, self.bias, weight_dims=2)
        if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"{name}: the last dimension of input must equal that of weight, but input is "
                f"{tuple(input.shape)} and weight {tuple(weight.shape)}; give each row "
                f"{weight.shape[1]} features"
            )

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        return F.linear(input, weight, self.bias)

    def _as_batch(self, z: Tensor) -> Tensor:
        return z.reshape(-1, z.shape[-1])


class ConvBlock(Block):
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: Padding
    _reversed_padding_repeated_twice: list[int]

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
        activation: Activation | None = None,
    ) -> None:
        name = type(self).__name__
        check_counts(name, in_channels=in_channels, out_channels=out_channels)
        check_dtype(name, dtype)
        check_bias(name, bias)
        check_groups(name, groups, "in_channels", in_channels)
        check_groups(name, groups, "out_channels", out_channels)
        kernel, step, spread = (
            tuple(sizes(name, label, size, self.dimensions, 1))
            for label, size in {
                "kernel_size": kernel_size,
                "stride": stride,
                "dilation": dilation,
            }.items()
        )
        margin = conv_padding(name, padding, self.dimensions, step)
        place = (kernel, step, margin, spread, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, *place)
        self._complete(affine, scale, learn_scale, activation)

    def _check(self, input: Tensor) -> None:
        name, weight, groups, dims = type(self).__name__, self.weight, self.groups, self.dimensions
        check_tensors(name, input, weight, self.bias, weight_dims=dims + 2, groups=groups)
        if self.padding_mode != "zeros":
            margins = self._reversed_padding_repeated_twice
            check_margins(name, dims, input, weight.shape[1] * groups, margins, self.padding_mode)
        conv_sizes(name, dims, input, weight, self.stride, self.padding, self.dilation, groups)

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        return self._conv_forward(input, weight, self.bias)  # pyright: ignore[reportCallIssue]

    def _as_batch(self, z: Tensor) -> Tensor:
        return z if z.dim() == self.dimensions + 2 else z.unsqueeze(0)
