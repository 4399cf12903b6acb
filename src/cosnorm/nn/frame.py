"""What the comparison blocks share: torch's constructors, checks, the scale and the activation."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.nn.scale import LearnScale, add_scale, check_activation, describe, reset_scale

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
        _check(input, self.weight, self.dimensions, self.groups)
        y = self._normalised(input)
        if isinstance(self.scale, Tensor):
            y = y * self._per_output(self.scale, y)
        elif self.scale is not None:
            y = y * self.scale
        return F.relu(y) if self.activation == "relu" else y

    def extra_repr(self) -> str:
        affine = ", affine=True" if self.affine else ""
        return f"{super().extra_repr()}{affine}{describe(self)}"

    def _per_output(self, values: Tensor, like: Tensor) -> Tensor:
        return values.to(like.dtype).view(-1, *[1] * self.dimensions)

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
        activation: Literal["relu"] | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._complete(affine, scale, learn_scale, activation)

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        return F.linear(input, weight, self.bias)

    def _as_batch(self, z: Tensor) -> Tensor:
        return z.reshape(-1, z.shape[-1])


class ConvBlock(Block):
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
