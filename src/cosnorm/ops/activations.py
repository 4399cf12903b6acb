"""The activations that a layer fuses, each with its derivative. The kernels have a twin of each.

To add one: an entry here, its twin in `triton/kernels/numerics.py`, its name in `Name`, and a case
in the tests' table. Everything else, messages and layers included, reads this table.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Name = Literal["relu", "gelu", "silu", "hardswish"]


class Activation(NamedTuple):
    """act(x), act'(x), the number by which the kernels know it, and what backward keeps.

    keeps_output: y is kept, and stands for x: act'(x) = act'(y), and y = x wherever that is not 0.
    Otherwise c is kept beside y: as after torch's own layers, what follows may change y in place.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    code: int
    keeps_output: bool


def _gelu_slope(x: Tensor) -> Tensor:
    # 1/√(2π), as a literal: torch.compile with dynamic shapes takes a name for a variable.
    density = torch.exp(x * x * -0.5) * 0.3989422804014327
    return torch.special.ndtr(x) + x * density


def _silu_slope(x: Tensor) -> Tensor:
    share = torch.sigmoid(x)
    return share * (1 + x * (1 - share))


def _hardswish_slope(x: Tensor) -> Tensor:
    inside = (x / 3 + 0.5).masked_fill(x >= 3, 1)
    return inside.masked_fill(x <= -3, 0)


ACTIVATIONS: dict[str | None, Activation] = {
    None: Activation(lambda x: x, torch.ones_like, 0, False),
    "relu": Activation(torch.relu, lambda x: (x > 0).to(x.dtype), 1, True),
    "gelu": Activation(torch.nn.functional.gelu, _gelu_slope, 2, False),
    "silu": Activation(torch.nn.functional.silu, _silu_slope, 3, False),
    "hardswish": Activation(torch.nn.functional.hardswish, _hardswish_slope, 4, False),
}
