"""The transposed convolution in plain torch.

The vectors of an output are the inputs that reach it and the taps by which they do. Their number
changes from output to output, and with it |w|: both norms and both means are maps here, those of
the weights without a batch dimension.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.reference.numerics import (
    channelwise,
    finish,
    full_precision,
    inverse_norm,
    moments,
    stats_dtype,
)
from cosnorm.ops.spec import Geometry, Spec

CONVOLUTION_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Vectors(NamedTuple):
    """Both vectors of every output, as far as they can be told without writing them out.

    For Pearson the weights are split into what they are around the mean of their tap, and how far
    that mean lies from the mean of all taps that serve an output: (w-m_t) + (m_t-μw). Both parts
    are small where w-μw is, and no tap that an output does not see takes part in it.

    Sums keep their dimension: Inductor fails at a view of open sizes and four dimensions that
    backward keeps.
    """

    x: Tensor  # (N, C, …)
    w: Tensor  # (groups, out, C, taps), for Pearson w-m_t
    b: Tensor | None  # (groups, out, 1), for Pearson b-μw, (groups, out, positions)
    reach: Tensor  # (taps, positions): 1 where a tap serves an output
    rnorm: Tensor  # 1/|x|, (N, groups, 1, positions)
    mean: Tensor  # μx, Pearson only
    offset: Tensor  # m_t-μx of the inputs, (N, groups, taps, positions), Pearson only
    wnorm: Tensor  # 1/|w|, (groups, out, positions)
    woffset: Tensor  # m_t-μw, (groups, out, taps, positions), Pearson only

    @property
    def centered(self) -> bool:
        return self.mean.numel() > 0

    def kernel(self, kernel_size: Sequence[int]) -> Tensor:
        """The weights as torch wants them, (C, out/groups, …)."""
        return self.w.unflatten(3, kernel_size).movedim(2, 1).flatten(0, 1)


def cosine_conv_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec
) -> Tensor:
    """act(gain · scale · c); weight: (C, out/groups, …), as torch's."""
    with full_precision(input):
        cosine = cosine_map(input, weight, bias, spec)
        return finish(cosine, channelwise(scale, input.dim() - 2), spec, input.dtype)


def cosine_map(input: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> Tensor:
    """c of every output and unit, before the bound."""
    geometry = spec.geometry
    assert geometry is not None
    of = vectors(input, weight, bias, geometry, spec.centered)
    function, groups = CONVOLUTION_TRANSPOSE[input.dim() - 2], geometry.groups
    product = function(of.x, of.kernel(weight.shape[2:]), None, *torch_order(geometry))
    size = product.shape[2:]
    product = product.unflatten(1, (groups, -1)).flatten(3)
    if of.b is not None:  # the last entries: 1-μx and b-μw, or 1 and b
        product = product + (1 - of.mean if spec.centered else 1) * of.b
    if spec.centered:
        left = (of.w.sum(2).unsqueeze(-1) * of.reach).sum(2)  # what rounding leaves of Σ(w-m_t)
        product = product - of.mean * left
        depth = of.w.shape[2]
        product = product + depth * torch.einsum("ngtp,gotp->ngop", of.offset, of.woffset)
    rnorm = of.rnorm * of.wnorm
    product, rnorm = (map.flatten(1, 2).unflatten(2, size) for map in (product, rnorm))
    return product * rnorm


def torch_order(geometry: Geometry) -> tuple:
    stride, padding, dilation, groups, output_padding = geometry
    return stride, padding, output_padding, groups, dilation


def vectors(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, centered: bool
) -> Vectors:
    groups, kernel_size = geometry.groups, weight.shape[2:]
    x = input.to(stats_dtype(input.dtype))
    w = weight.to(x.dtype).unflatten(0, (groups, -1)).movedim(1, 2).flatten(3)
    b = None if bias is None else bias.to(x.dtype).view(groups, -1, 1)

    def reached(map: Tensor) -> Tensor:  # (N, groups, …) -> (N, groups, taps, positions)
        return taps(map, kernel_size, geometry)

    reach = reached(x.new_ones(1, 1, *x.shape[2:]))[0, 0]
    grouped = x.unflatten(1, (groups, -1))
    if not centered:
        none = x.new_empty(0)
        square = reached(grouped.square().sum(2)).sum(2, keepdim=True) + float(bias is not None)
        wsquare = (w.square().sum(2).unsqueeze(-1) * reach).sum(2)
        wsquare = wsquare if b is None else wsquare + b.square()
        norms = inverse_norm(square), inverse_norm(wsquare)
        return Vectors(x, w, b, reach, norms[0], none, none, norms[1], none)
    m, m2 = (reached(map) for map in moments(grouped, 2))
    one = None if b is None else x.new_ones(())
    rnorm, mean, offset = _merged(grouped.shape[2], m, m2, reach, one)
    wm, wm2 = moments(w, 2)
    extra = None if b is None else b.unsqueeze(-1)
    wnorm, wmean, woffset = _merged(w.shape[2], wm.unsqueeze(-1), wm2.unsqueeze(-1), reach, extra)
    wnorm, wmean = wnorm.squeeze(-2), wmean.squeeze(-2)
    b = None if b is None else b - wmean
    return Vectors(x, w - wm.unsqueeze(2), b, reach, rnorm, mean, offset, wnorm, woffset)


def taps(map: Tensor, kernel_size: Sequence[int], geometry: Geometry) -> Tensor:
    """What reaches each output by each tap, zero where nothing does.

    map: (N, C, …), one value a position. Returns (N, C, taps, positions of the output).
    """
    stride, padding, dilation, _, output_padding = geometry
    for axis, size in enumerate(kernel_size):
        step, reach = stride[axis], dilation[axis] * (size - 1)
        line = map.movedim(2 + axis, -1)  # past the taps of the axes before
        between = [torch.zeros_like(line)] * (step - 1)
        line = torch.stack([line, *between], -1).flatten(-2)
        before = reach - padding[axis]  # where negative, F.pad takes entries off
        line = F.pad(line, [before, before + output_padding[axis] + 1 - step])
        count = line.shape[-1] - reach
        starts = [reach - tap * dilation[axis] for tap in range(size)]
        map = torch.stack([line.narrow(-1, start, count) for start in starts], 2 + axis)
    dims = len(kernel_size)
    return map.flatten(2 + dims).flatten(2, 1 + dims)


def _merged(
    depth: int, m: Tensor, m2: Tensor, reach: Tensor, extra: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(1/|x-μ|, μ, m_t-μ) over the taps in reach and one extra entry, as (…, 1, positions).

    m, m2: mean and squared deviations of the `depth` entries of a tap.
    """
    count, total = depth * reach.sum(0), depth * (m * reach).sum(-2, keepdim=True)
    if extra is not None:
        count, total = count + 1, total + extra
    mean = total / count.clamp(min=1)
    offset = (m - mean) * reach
    merged = (m2 * reach + depth * offset.square()).sum(-2, keepdim=True)
    merged = merged if extra is None else merged + (extra - mean).square()
    return inverse_norm(merged, merged + count * mean.square()), mean, offset
