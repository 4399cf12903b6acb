"""Convolutions in plain torch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.reference.numerics import (
    CONVOLUTION,
    centred_norm,
    channelwise,
    compute_dtype,
    finish,
    full_precision,
    inverse_norm,
    moments,
    stats_dtype,
    unit_weight,
)
from cosnorm.ops.spec import Spec


def slices(map: Tensor, dim: int, size: int, stride: int, dilation: int) -> Tensor:
    """Every window along `dim`, its entries in a new last dimension.

    As Tensor.unfold, whose backward torch cannot batch.
    """
    count = map.shape[dim] - dilation * (size - 1)  # of starts, before the stride thins them
    taps = [tap * dilation for tap in range(size)]
    if stride > 1 and torch.compiler.is_compiling():
        # The number of windows as torch writes that of a convolution: where sizes are left open,
        # it must see that the two are the same.
        starts = torch.arange((count - 1) // stride + 1, device=map.device) * stride
        return torch.stack([map.index_select(dim, starts + tap) for tap in taps], -1)
    return torch.stack(
        [torch.ops.aten.slice(map, dim, tap, tap + count, stride) for tap in taps], -1
    )


def field_stats(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    centered: bool,
    bias: bool,
) -> tuple[Tensor, Tensor]:
    """(1/|x|, μ) of each receptive field, (N, groups, *output size).

    Over the channels first, then over the window of a map of one channel. Means and squared
    deviations are merged pairwise, Σ(x-μ)² = Σ M2 + count·Σ(m-μ)², never as E[x²]-E[x]².
    """
    x = input.to(stats_dtype(input.dtype)).unflatten(1, (groups, -1))
    pad = [p for size in reversed(padding) for p in (size, size)]

    def windows(map: Tensor, axis: int) -> Tensor:
        return slices(map, axis + 2, kernel_size[axis], stride[axis], dilation[axis])

    if not centered:
        square = F.pad(x.square().sum(2), pad)
        for axis in range(len(kernel_size)):
            square = windows(square, axis).sum(-1)
        return inverse_norm(square + float(bias)), x.new_empty(0)
    count = x.shape[2]
    mean, m2 = (F.pad(t, pad) for t in moments(x, 2))
    for axis, size in enumerate(kernel_size):
        mean, spread = moments(windows(mean, axis), -1)
        m2 = windows(m2, axis).sum(-1) + count * spread
        count *= size
    return centred_norm(count, mean, m2, bias)


def cosine_conv(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec
) -> Tensor:
    """act(gain · scale · c) for each receptive field of `input` (N, C, …), in 1, 2 or 3 dims."""
    assert spec.geometry is not None
    stride, padding, dilation, groups, _ = spec.geometry
    with full_precision(input):
        dtype, dims = compute_dtype(input), input.dim() - 2
        unit = unit_weight(weight, bias, spec.centered, dtype)
        rnorm, mean = field_stats(
            input, weight.shape[2:], stride, padding, dilation, groups, spec.centered,
            bias is not None,
        )  # fmt: skip
        product = CONVOLUTION[dims](
            input.to(dtype), unit.weight, unit.bias, stride, padding, dilation, groups
        )
        product = product.to(rnorm.dtype).unflatten(1, (groups, -1))
        if spec.centered:
            total = unit.total.view(groups, -1, *[1] * dims)
            product = product - mean.unsqueeze(2) * total
        cosine = (product * rnorm.unsqueeze(2)).flatten(1, 2)
        return finish(cosine, channelwise(scale, dims), spec, input.dtype)
