"""Linear layers that measure similarity."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from cosnorm import functional as F
from cosnorm.checks import check_bias, check_counts, check_dtype
from cosnorm.nn.dead import warn_if_dead
from cosnorm.nn.scale import LearnScale, add_scale, describe, reset_scale, set_choices
from cosnorm.ops.activations import Name as Activation


class CosineLinear(nn.Module):
    """Stands in for nn.Linear: y = act(scale · cos(x, w)).

    Parameters and their initialisation are nn.Linear's (a bias starts at zero and is off unless
    asked for), so its state_dict loads into a layer with the same `bias`.

    Args:
        in_features, out_features, bias, device, dtype: as nn.Linear, but no bias unless asked for.
        centered: Pearson correlation instead of the cosine.
        scale: fixed factor, or where a learned one starts (1 if None).
        learn_scale: True for one learned factor, "per_output" for one each.
        activation: None, "relu", "gelu", "silu" or "hardswish", fused.

    Example:
        >>> layer = CosineLinear(16, 5, activation="relu")
        >>> layer(torch.randn(8, 16)).shape
        torch.Size([8, 5])
    """

    looked_at = False  # whether its weights have been, for a direction
    weight: Tensor
    bias: Tensor | None
    scale: Any
    centered: bool
    activation: Activation | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        centered: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_counts(name, in_features=in_features, out_features=out_features)
        check_dtype(name, dtype)
        check_bias(name, bias)
        set_choices(self, centered, activation)
        factory = {"device": device, "dtype": dtype}
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty((out_features, in_features), **factory))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, **factory))
        else:
            self.register_parameter("bias", None)
        add_scale(self, out_features, scale, learn_scale, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        reset_scale(self)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and self.training and not self.looked_at:
            warn_if_dead(self)
        return F.cosine_linear(
            input, self.weight, self.bias,
            centered=self.centered, scale=self.scale, activation=self.activation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, centered={self.centered}{describe(self)}"
        )


class PearsonLinear(CosineLinear):
    """Stands in for nn.Linear: y = act(scale · correlation of x and w).

    CosineLinear with centered=True; the mean over its entries is taken out of each vector.

    Args:
        in_features, out_features, bias, device, dtype: as nn.Linear, but no bias unless asked for.
        scale: fixed factor, or where a learned one starts (1 if None).
        learn_scale: True for one learned factor, "per_output" for one each.
        activation: None, "relu", "gelu", "silu" or "hardswish", fused.

    Example:
        >>> layer = PearsonLinear(16, 5, scale=10.0, learn_scale=True)
        >>> layer(torch.randn(8, 16)).shape
        torch.Size([8, 5])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, device, dtype,
            centered=True, scale=scale, learn_scale=learn_scale, activation=activation,
        )  # fmt: skip
