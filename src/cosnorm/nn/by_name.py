"""Layers by the name of their method, so that a network changes its method by a word.

`y = act(scale · normalised(pre-activation))` for every method; `normalised` is a similarity of
`cosnorm.nn.CosineLinear` and its kin, or a comparison method of `cosnorm.nn.baselines`. Which
methods there are, `cosnorm.methods` says.
"""

from typing import Any

import torch
from torch import nn

from cosnorm.methods import METHODS, check_affine
from cosnorm.nn.base import Padding, Size
from cosnorm.nn.scale import LearnScale
from cosnorm.ops.activations import Name as Activation


def _chosen(method: str, kind: str, affine: bool) -> tuple[Any, dict[str, bool]]:
    """The class of a method's layers of a kind, and `affine` where that class knows it."""
    entry = METHODS.named(method)
    check_affine(method, affine)
    return entry.block(kind), {"affine": affine} if entry.affine else {}


def linear(
    method: str,
    in_features: int,
    out_features: int,
    bias: bool = False,
    *,
    affine: bool = False,
    scale: float | None = None,
    learn_scale: LearnScale = False,
    activation: Activation | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A linear layer of a method by name.

    Arguments are those of `nn.Linear`; then `affine` (a learned gain and shift for each output, of
    rms the gain; not with the similarities and none), `scale` (a number, fixed), `learn_scale`
    (`True`: one learned scale, `"per_output"`: one for each output, starting at `scale` or 1),
    `activation` (`"relu"`, `"gelu"`, …).

    >>> linear("layer", 8, 4, activation="relu")(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """
    kind, own = _chosen(method, "Linear", affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    return kind(in_features, out_features, bias, device, dtype, **own)


def conv1d(
    method: str,
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
    activation: Activation | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv1d` for a method by name; the arguments of ours are those of `linear`."""
    kind, own = _chosen(method, "Conv1d", affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)


def conv2d(
    method: str,
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
    activation: Activation | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv2d` for a method by name; the arguments of ours are those of `linear`."""
    kind, own = _chosen(method, "Conv2d", affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)


def conv3d(
    method: str,
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
    activation: Activation | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """`nn.Conv3d` for a method by name; the arguments of ours are those of `linear`."""
    kind, own = _chosen(method, "Conv3d", affine)
    own = {**own, "scale": scale, "learn_scale": learn_scale, "activation": activation}
    place = (kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
    return kind(in_channels, out_channels, *place, **own)
