"""Convolutions that measure similarity, plain and transposed, in one, two and three dimensions."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as torch_functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from cosnorm import functional as F
from cosnorm.checks import (
    check_bias,
    check_counts,
    check_dtype,
    check_groups,
    check_margins,
    check_output_size,
    check_padding_mode,
    check_tensors,
    conv_padding,
    sizes,
)
from cosnorm.nn.conv_docs import conv, conv_transpose
from cosnorm.nn.dead import warn_if_dead
from cosnorm.nn.scale import LearnScale, add_scale, describe, reset_scale, set_choices
from cosnorm.ops.activations import Name as Activation

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Sizes = int | Sequence[int]  # one number for all dimensions of space, or one for each


# By name: torch.fx puts its own in their place while it traces.
_FUNCTIONS = {dims: f"cosine_conv{dims}d" for dims in (1, 2, 3)}


class _Similarity:
    """What plain and transposed layers share beside torch's own: scale, centring, activation."""

    dims: int
    looked_at = False  # whether its weights have been, for a direction
    padding_modes = get_args(PaddingMode)

    def _sizes(self, least: int, **named: Any) -> tuple[tuple[int, ...], ...]:
        """Each argument as a tuple of one int for each dimension, none below `least`."""
        name = type(self).__name__
        return tuple(tuple(sizes(name, k, v, self.dims, least)) for k, v in named.items())

    def _check(
        self, in_channels: Any, out_channels: Any, groups: Any, bias: Any, dtype: Any, mode: Any
    ) -> None:
        name = type(self).__name__
        check_padding_mode(name, mode, self.padding_modes)
        check_counts(name, in_channels=in_channels, out_channels=out_channels)
        check_dtype(name, dtype)
        check_bias(name, bias)
        check_groups(name, groups, "in_channels", in_channels)
        check_groups(name, groups, "out_channels", out_channels)

    def _init_similarity(
        self: Any, centered: bool, scale: Any, learn_scale: LearnScale, activation: Any,
        device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        set_choices(self, centered, activation)
        add_scale(self, self.out_channels, scale, learn_scale, device=device, dtype=dtype)
        reset_scale(self)

    def reset_parameters(self: Any) -> None:
        super().reset_parameters()  # pyright: ignore[reportAttributeAccessIssue]
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if hasattr(self, "scale"):  # torch resets once before we have added ours
            reset_scale(self)

    def extra_repr(self: Any) -> str:
        torch_part = super().extra_repr()  # pyright: ignore[reportAttributeAccessIssue]
        return f"{torch_part}, centered={self.centered}{describe(self)}"

    def _ours(self: Any) -> dict[str, Any]:
        return {"centered": self.centered, "scale": self.scale, "activation": self.activation}


class _CosineConv(_Similarity, _ConvNd):
    """What the layers of one, two and three dimensions have in common."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        centered: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        self._check(in_channels, out_channels, groups, bias, dtype, padding_mode)
        kernel, step, spread = self._sizes(
            1, kernel_size=kernel_size, stride=stride, dilation=dilation
        )
        super().__init__(
            in_channels, out_channels, kernel, step,
            conv_padding(type(self).__name__, padding, self.dims, step),
            spread, False, (0,) * self.dims, groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        self._init_similarity(centered, scale, learn_scale, activation, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and self.training and not self.looked_at:
            warn_if_dead(self)
        function, padding = getattr(F, _FUNCTIONS[self.dims]), self.padding
        if self.padding_mode != "zeros":
            margins = self._reversed_padding_repeated_twice
            input = _padded(input, self.weight, self.bias, self.groups, margins, self.padding_mode)
            padding = 0
        return function(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups,
            centered=self.centered, scale=self.scale, activation=self.activation,
        )  # fmt: skip


@torch.fx.wrap
def _padded(
    input: Tensor, weight: Tensor, bias: Tensor | None, groups: int, margins: list[int], mode: str
) -> Tensor:
    """Around the input what the padding mode says, after the checks that come too late then."""
    dims = len(margins) // 2
    name = f"CosineConv{dims}d"
    check_tensors(name, input, weight, bias, weight_dims=dims + 2, groups=groups)
    check_margins(name, dims, input, weight.shape[1] * groups, margins, mode)
    return torch_functional.pad(input, margins, mode=mode)


class _PearsonConv(_CosineConv):
    """The cosine convolution with centered=True."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
            centered=True, scale=scale, learn_scale=learn_scale, activation=activation,
        )  # fmt: skip


class _CosineConvTranspose(_Similarity, _ConvTransposeNd):
    """What the layers of one, two and three dimensions have in common."""

    padding_modes = ("zeros",)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = False,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        centered: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        self._check(in_channels, out_channels, groups, bias, dtype, padding_mode)
        kernel, step, spread = self._sizes(
            1, kernel_size=kernel_size, stride=stride, dilation=dilation
        )
        margin, extra = self._sizes(0, padding=padding, output_padding=output_padding)
        super().__init__(
            in_channels, out_channels, kernel, step, margin,
            spread, True, extra, groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        self._init_similarity(centered, scale, learn_scale, activation, device, dtype)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if not torch.compiler.is_compiling() and self.training and not self.looked_at:
            warn_if_dead(self)
        if output_size is not None:
            check_output_size(type(self).__name__, self.dims, input, output_size)
        place: Any = (self.stride, self.padding, self.kernel_size, self.dims, self.dilation)
        output_padding = self._output_padding(input, output_size, *place)
        function = getattr(F, f"cosine_conv_transpose{self.dims}d")
        return function(
            input, self.weight, self.bias, self.stride, self.padding, output_padding,
            self.groups, self.dilation, **self._ours(),
        )  # fmt: skip


class _PearsonConvTranspose(_CosineConvTranspose):
    """The cosine transposed convolution with centered=True."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = False,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, padding_mode, device, dtype,
            centered=True, scale=scale, learn_scale=learn_scale, activation=activation,
        )  # fmt: skip


@conv
class CosineConv1d(_CosineConv):
    dims = 1


@conv
class CosineConv2d(_CosineConv):
    dims = 2


@conv
class CosineConv3d(_CosineConv):
    dims = 3


@conv
class PearsonConv1d(_PearsonConv):
    dims = 1


@conv
class PearsonConv2d(_PearsonConv):
    dims = 2


@conv
class PearsonConv3d(_PearsonConv):
    dims = 3


@conv_transpose
class CosineConvTranspose1d(_CosineConvTranspose):
    dims = 1


@conv_transpose
class CosineConvTranspose2d(_CosineConvTranspose):
    dims = 2


@conv_transpose
class CosineConvTranspose3d(_CosineConvTranspose):
    dims = 3


@conv_transpose
class PearsonConvTranspose1d(_PearsonConvTranspose):
    dims = 1


@conv_transpose
class PearsonConvTranspose2d(_PearsonConvTranspose):
    dims = 2


@conv_transpose
class PearsonConvTranspose3d(_PearsonConvTranspose):
    dims = 3
