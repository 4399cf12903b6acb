"""The paper's six methods by name, so that a network changes its method by a word.

`y = act(scale · normalised(pre-activation))` for every method; `normalised` is a similarity of
`cosnorm.nn.CosineLinear` and its kin, or a comparison method of `cosnorm.nn.blocks`.
"""

from typing import Any, Literal

import torch
from torch import nn

from cosnorm.nn import blocks
from cosnorm.nn.conv import (
    CosineConv1d,
    CosineConv2d,
    CosineConv3d,
    PearsonConv1d,
    PearsonConv2d,
    PearsonConv3d,
)
from cosnorm.nn.frame import Padding, Size
from cosnorm.nn.linear import CosineLinear, PearsonLinear
from cosnorm.nn.scale import LearnScale

Method = Literal["pearson", "cosine", "batch", "weight", "layer", "none"]
METHODS: tuple[Method, ...] = ("pearson", "cosine", "batch", "weight", "layer", "none")

WITH_AFFINE = ("batch", "weight", "layer")
_LINEAR: dict[str, Any] = {
    "pearson": PearsonLinear,
    "cosine": CosineLinear,
    "batch": blocks.BatchNormLinear,
    "weight": blocks.WeightNormLinear,
    "layer": blocks.LayerNormLinear,
    "none": blocks.PlainLinear,
}
_CONV1D: dict[str, Any] = {
    "pearson": PearsonConv1d,
    "cosine": CosineConv1d,
    "batch": blocks.BatchNormConv1d,
    "weight": blocks.WeightNormConv1d,
    "layer": blocks.LayerNormConv1d,
    "none": blocks.PlainConv1d,
}
_CONV2D: dict[str, Any] = {
    "pearson": PearsonConv2d,
    "cosine": CosineConv2d,
    "batch": blocks.BatchNormConv2d,
    "weight": blocks.WeightNormConv2d,
    "layer": blocks.LayerNormConv2d,
    "none": blocks.PlainConv2d,
}
_CONV3D: dict[str, Any] = {
    "pearson": PearsonConv3d,
    "cosine": CosineConv3d,
    "batch": blocks.BatchNormConv3d,
    "weight": blocks.WeightNormConv3d,
    "layer": blocks.LayerNormConv3d,
    "none": blocks.PlainConv3d,
}


def _chosen(kinds: dict[str, Any], method: str, affine: bool) -> tuple[Any, dict[str, bool]]:
    """The class for a method, and `affine` where that class knows it."""
    if method not in kinds:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if method in WITH_AFFINE:
        return kinds[method], {"affine": affine}
    if affine:
        raise ValueError(
            f"affine belongs to the methods {', '.join(WITH_AFFINE)}; got method {method!r}: "
            "use learn_scale='per_output', bias=True or both"
        )
    return kinds[method], {}


def linear(
    method: Method,
    in_features: int,
    out_features: int,
    bias: bool = False,
    *,
    affine: bool = False,
    scale: float | None = None,
    learn_scale: LearnScale = False,
    activation: Literal["relu"] | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A linear layer of one of the six methods.

    Arguments are those of `nn.Linear`; then `affine` (a learned gain and shift for each output;
    batch, weight and layer only), `scale` (a number, fixed), `learn_scale` (`True`: one learned
    scale, `"per_output"`: one for each output, starting at `scale` or 1), `activation` (`"relu"`).

    >>> linear("layer", 8, 4, activation="relu")(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """
    kind, own = _chosen(_LINEAR, method, affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    return kind(in_features, out_features, bias, device, dtype, **own)


def conv1d(
    method: Method,
    in_channels: int,
    out_channels: int,
    kernel_size: Size,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    bias: bool = False,
    padding_mode: Padding = "zeros",
    *,
    affine: bool = False,
    scale: float | None = None,
    learn_scale: LearnScale = False,
    activation: Literal["relu"] | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv1d` for one of the six methods; the arguments of ours are those of `linear`."""
    kind, own = _chosen(_CONV1D, method, affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)


def conv2d(
    method: Method,
    in_channels: int,
    out_channels: int,
    kernel_size: Size,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    bias: bool = False,
    padding_mode: Padding = "zeros",
    *,
    affine: bool = False,
    scale: float | None = None,
    learn_scale: LearnScale = False,
    activation: Literal["relu"] | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv2d` for one of the six methods; the arguments of ours are those of `linear`."""
    kind, own = _chosen(_CONV2D, method, affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)


def conv3d(
    method: Method,
    in_channels: int,
    out_channels: int,
    kernel_size: Size,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    bias: bool = False,
    padding_mode: Padding = "zeros",
    *,
    affine: bool = False,
    scale: float | None = None,
    learn_scale: LearnScale = False,
    activation: Literal["relu"] | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv3d` for one of the six methods; the arguments of ours are those of `linear`."""
    kind, own = _chosen(_CONV3D, method, affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)
