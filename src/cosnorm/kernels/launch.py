"""The Triton passes behind the same steps as `plain`, under the same names.

A small layer takes one launch a step. Of a large one (`apart`), passes that don't wait for a
product run `beside` it. In a chain of layers, forward tells the next one what it needs to know of
its input, and backward goes from one to the one before in a single pass (`link_grad`).
"""

import torch
from torch import Tensor

from cosnorm.kernels.launch_forward import (
    empty_fields,
    fields,
    fields_beside,
    finish,
    prepare,
    units,
)
from cosnorm.kernels.launch_grad import (
    correct,
    empty_grads,
    end_grad,
    link_grad,
    project,
    start_grad,
)
from cosnorm.kernels.streams import beside

__all__ = [
    "apart",
    "beside",
    "correct",
    "empty_fields",
    "empty_grads",
    "end_grad",
    "fields",
    "fields_beside",
    "finish",
    "link_grad",
    "prepare",
    "project",
    "serves",
    "start_grad",
    "units",
]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_TAPS = 128
_WORTH = 1 << 33  # multiplications of a layer from which a second stream pays for its launches
_WIDE = 1 << 24  # elements of an output from which it does, however few the multiplications
_MANY = 1 << 15  # positions from which it does for their windows alone


def serves(input: Tensor, weight: Tensor) -> bool:
    """float64, very large windows, over 2³⁰ fields and empty tensors are left to torch."""
    return (
        input.numel() > 0
        and input.dtype in _DTYPES
        and weight.dtype in _DTYPES
        and weight.shape[2:].numel() <= _MOST_TAPS
        and weight.numel() > 0
        and input.numel() // weight.shape[1] < 1 << 30  # positions × groups
    )


def apart(input: Tensor, weight: Tensor, windows_only: bool = False) -> bool:
    """Whether a layer is large enough for passes beside its products.

    windows_only: all that would run there are the windows of the fields, which the last pass of a
    smaller layer sums up on its way.
    """
    if input.device.type != "cuda":
        return False
    positions = input.numel() // input.shape[1]
    if windows_only and positions < _MANY:
        return False
    return positions * weight.numel() >= _WORTH or positions * weight.shape[0] >= _WIDE
