"""The three kinds of scale, for every layer: none or fixed, one learned number, one per output."""

from typing import Any, Literal

import torch
from torch import nn

from cosnorm.checks import check_choices, check_number

LearnScale = bool | Literal["per_output"]


def add_scale(
    layer: Any, units: int, scale: float | None, learn_scale: LearnScale, **factory: Any
) -> None:
    """Give `layer` its attribute `scale`: None, a number, or a parameter that starts at it or 1."""
    name = type(layer).__name__
    scale = None if scale is None else check_number(name, scale, "None or a number")
    layer.learn_scale = learn_scale
    layer.initial_scale = scale
    if learn_scale is False:
        layer.scale = scale
        return
    if learn_scale is not True and learn_scale != "per_output":
        raise ValueError(
            f'{name}: learn_scale must be False, True or "per_output", got {learn_scale!r}; '
            "pass where a learned scale starts as scale"
        )
    layer.scale = nn.Parameter(torch.empty(1 if learn_scale is True else units, **factory))


def reset_scale(layer: Any) -> None:
    if isinstance(layer.scale, nn.Parameter):
        nn.init.constant_(layer.scale, 1.0 if layer.initial_scale is None else layer.initial_scale)


def check_activation(layer: nn.Module, activation: Any) -> None:
    check_choices(type(layer).__name__, False, activation)


def set_choices(layer: Any, centered: bool, activation: Any) -> None:
    check_choices(type(layer).__name__, centered, activation)
    layer.centered, layer.activation = centered, activation


def describe(layer: Any) -> str:
    """The arguments that are ours, as repr shows them after torch's."""
    parts = []
    if isinstance(layer.scale, nn.Parameter):
        parts.append(f"learn_scale={layer.learn_scale!r}")
    if layer.initial_scale is not None:
        parts.append(f"scale={layer.initial_scale}")
    if layer.activation is not None:
        parts.append(f"activation={layer.activation!r}")
    return "".join(f", {part}" for part in parts)
