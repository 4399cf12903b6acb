"""The transposed convolution in plain torch: its reference, and backward as a formula.

The vectors of an output are the inputs that reach it and the taps by which they do. Their number
changes from output to output, and with it |w|: both norms and both means are maps here, those of
the weights without a batch dimension.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.reference import (
    Result,
    channelwise,
    finish,
    full_precision,
    inverse_norm,
    keeps_cosine,
    moments,
    reciprocal,
    stats_dtype,
    without_tf32,
)

CONVOLUTION_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Geometry(NamedTuple):
    stride: Sequence[int]
    padding: Sequence[int]
    output_padding: Sequence[int]
    groups: int
    dilation: Sequence[int]


class Vectors(NamedTuple):
    """Both vectors of every output, as far as they can be told without writing them out.

    Weights are shifted by their mean over all taps if centred: a constant changes nothing, and near
    zero sums keep their digits.
    """

    x: Tensor  # (N, C, …)
    w: Tensor  # (groups, out, C, taps), shifted
    b: Tensor | None  # (groups, out), shifted
    reach: Tensor  # (taps, positions): 1 where a tap serves an output
    rnorm: Tensor  # 1/|x|, (N, groups, positions)
    mean: Tensor  # μx, Pearson only
    wnorm: Tensor  # 1/|w|, (groups, out, positions)
    wmean: Tensor  # μw, shifted, Pearson only

    @property
    def centered(self) -> bool:
        return self.wmean.numel() > 0

    def kernel(self, kernel_size: Sequence[int]) -> Tensor:
        """The weights as torch wants them, (C, out/groups, …)."""
        return self.w.unflatten(3, kernel_size).movedim(2, 1).flatten(0, 1)


def cosine_conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    gain: float,
    centered: bool,
    relu: bool,
) -> Result:
    """act(gain · scale · c); weight: (C, out/groups, …), as torch's."""
    dims, kernel_size = input.dim() - 2, weight.shape[2:]
    geometry = Geometry(stride, padding, output_padding, groups, dilation)
    with full_precision(input):
        of = vectors(input, weight, bias, geometry, centered)
        product = CONVOLUTION_TRANSPOSE[dims](of.x, of.kernel(kernel_size), None, *geometry)
        size = product.shape[2:]
        product = product.unflatten(1, (groups, -1)).flatten(3)
        if of.b is not None:
            product = product + of.b.unsqueeze(-1)
        if centered:
            total = (of.w.sum(2).unsqueeze(-1) * of.reach).sum(2)
            total = total if of.b is None else total + of.b.unsqueeze(-1)
            product = product - of.mean.unsqueeze(2) * total
        cosine = (product * of.rnorm.unsqueeze(2) * of.wnorm).flatten(1, 2).unflatten(2, size)
        output, cosine = finish(cosine, channelwise(scale, dims), gain, relu, input.dtype)
        return Result(output, cosine, of.rnorm, of.mean)


def vectors(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, centered: bool
) -> Vectors:
    groups, kernel_size = geometry.groups, weight.shape[2:]
    x = input.to(stats_dtype(input.dtype))
    w = weight.to(x.dtype).unflatten(0, (groups, -1)).movedim(1, 2).flatten(3)
    b = None if bias is None else bias.to(x.dtype).view(groups, -1)
    shift = w.mean((2, 3)) if centered else w.new_zeros(())
    if centered:
        w = w - shift[..., None, None]
        b = None if b is None else b - shift

    def reached(map: Tensor) -> Tensor:  # (N, groups, …) -> (N, groups, taps, positions)
        return taps(map, kernel_size, geometry)

    reach = reached(x.new_ones(1, 1, *x.shape[2:]))[0, 0]
    grouped = x.unflatten(1, (groups, -1))
    rnorm, mean = _reached_stats(grouped, reached, reach, centered, bias is not None)
    wnorm, wmean = _tap_stats(w, b, shift, reach, centered)
    return Vectors(x, w, b, reach, rnorm, mean, wnorm, wmean)


def taps(map: Tensor, kernel_size: Sequence[int], geometry: Geometry) -> Tensor:
    """What reaches each output by each tap, zero where nothing does.

    map: (N, C, …), one value a position. Returns (N, C, taps, positions of the output).
    """
    stride, padding, output_padding, _, dilation = geometry
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


def _reached_stats(
    x: Tensor, reached: Callable[[Tensor], Tensor], reach: Tensor, centered: bool, bias: bool
) -> tuple[Tensor, Tensor]:
    """(1/|x|, μ) of the inputs that reach each output, (N, groups, positions)."""
    if not centered:
        square = reached(x.square().sum(2)).sum(2)
        return inverse_norm(square + float(bias)), x.new_empty(0)
    m, m2 = moments(x, 2)
    one = x.new_ones(()) if bias else None
    count, mean, m2 = _merge(x.shape[2], reached(m), reached(m2), reach, one)
    return inverse_norm(m2, m2 + count * mean.square()), mean


def _tap_stats(
    w: Tensor, b: Tensor | None, shift: Tensor, reach: Tensor, centered: bool
) -> tuple[Tensor, Tensor]:
    """(1/|w|, μw) over the taps that serve each output, (groups, out, positions)."""
    extra = None if b is None else b.unsqueeze(-1)
    if not centered:
        square = (w.square().sum(2).unsqueeze(-1) * reach).sum(2)
        square = square if extra is None else square + extra.square()
        return inverse_norm(square), w.new_empty(0)
    m, m2 = moments(w, 2)
    count, mean, m2 = _merge(w.shape[2], m.unsqueeze(-1), m2.unsqueeze(-1), reach, extra)
    return inverse_norm(m2, m2 + count * (mean + shift.unsqueeze(-1)).square()), mean


def _merge(
    depth: int, m: Tensor, m2: Tensor, reach: Tensor, extra: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(count, μ, Σ(x-μ)²) over the taps in reach, each `depth` entries of mean m, and one extra."""
    count, total = depth * reach.sum(0), depth * (m * reach).sum(-2)
    if extra is not None:
        count, total = count + 1, total + extra
    mean = total / count.clamp(min=1)
    spread = (m2 + depth * (m - mean.unsqueeze(-2)).square()) * reach
    merged = spread.sum(-2)
    return count, mean, merged if extra is None else merged + (extra - mean).square()


def cosine_conv_transpose_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    output: Tensor,
    cosine: Tensor,
    geometry: Geometry,
    gain: float,
    centered: bool,
    relu: bool,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight, bias and scale, of those that `need` asks for.

    With d = dy·scale and g = d·r_x·r_w of each output and unit:

        dx = Σ g (w-μw) - (x-μx) r_x² Σ d·c,    dw = Σ g (x-μx) - (w-μw) r_w² Σ d·c
    """
    with full_precision(input):
        of = vectors(input, weight, bias, geometry, centered)
        d, dot, dscale = _into_cosine(grad, scale, output, cosine, gain, relu, of.rnorm)
        grouped = (geometry.groups, -1)
        d, dot = (t.unflatten(1, grouped).flatten(3) for t in (d, dot))
        g = d * of.rnorm.unsqueeze(2) * of.wnorm
        dx = _input_grad(g, dot, of, weight.shape[2:], grad.shape, geometry) if need[0] else None
        dw = db = None
        if need[1] or need[2]:
            dw, db = _weight_grad(g, dot, of, weight.shape, grad.shape, geometry)
    return (
        None if dx is None else dx.to(input.dtype),
        None if dw is None else dw.to(weight.dtype),
        None if db is None or bias is None else db.to(bias.dtype),
        dscale,
    )


def _into_cosine(
    grad: Tensor,
    scale: Tensor | None,
    output: Tensor,
    cosine: Tensor,
    gain: float,
    relu: bool,
    like: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(d, d·c, gradient of the scale), with d the gradient of c."""
    wide = grad.to(like.dtype)
    factor = channelwise(None if scale is None else scale.to(like.dtype), grad.dim() - 2)
    d = torch.where(output > 0, wide, 0) if relu else wide
    d = d * (gain if factor is None else factor * gain)
    dot = d * cosine if keeps_cosine(scale, relu) else wide * output
    if scale is None or factor is None:
        return d, dot, None
    raw = wide * cosine * gain if keeps_cosine(scale, relu) else dot * reciprocal(factor)
    each = raw.sum([i for i in range(raw.dim()) if i != 1])
    total = each if scale.numel() == each.numel() else each.sum()
    return d, dot, total.reshape(scale.shape).to(scale.dtype)


def _input_grad(
    g: Tensor, dot: Tensor, of: Vectors, kernel_size: Sequence[int], shape, geometry: Geometry
) -> Tensor:
    """dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx - Σ_k g μw), s = r_x² Σ_k d·c."""
    groups = geometry.groups
    dx = _product_grads(
        g.flatten(1, 2).view(shape), of.x, of.kernel(kernel_size), geometry, (True, False)
    )[0]
    field = of.rnorm.square() * dot.sum(2)
    maps = [field]
    if of.centered:
        maps.append(field * of.mean - (g * of.wmean).sum(2))
    stacked = torch.cat(maps, 1).flatten(0, 1).unsqueeze(1).unflatten(2, shape[2:])
    place = of.x.new_empty(stacked.shape[0], 1, *of.x.shape[2:])
    ones = of.x.new_ones(1, 1, *kernel_size)
    with without_tf32():
        alone = geometry._replace(groups=1)
        boxes = _product_grads(stacked, place, ones, alone, (True, False))[0]
    boxes = boxes.squeeze(1).unflatten(0, (of.x.shape[0], groups * len(maps))).unsqueeze(2)
    x = of.x.unflatten(1, (groups, -1))
    dx = dx.unflatten(1, (groups, -1)) - x * boxes[:, :groups]
    if of.centered:
        dx = dx + boxes[:, groups:]
    return dx.flatten(1, 2)


def _weight_grad(
    g: Tensor, dot: Tensor, of: Vectors, weight_shape, shape, geometry: Geometry
) -> tuple[Tensor, Tensor | None]:
    """dw = dw₀ - w·Σ q + Σ (q·μw - Σ_n g μx) over the outputs a tap serves, q = r_w² Σ_n d·c."""
    groups, kernel_size = geometry.groups, weight_shape[2:]
    dw = _product_grads(
        g.flatten(1, 2).view(shape), of.x, of.kernel(kernel_size), geometry, (False, True)
    )[1]
    dw = dw.unflatten(0, (groups, -1)).movedim(1, 2).flatten(3)
    pull = of.wnorm.square() * dot.sum(0)
    dw = dw - of.w * (pull @ of.reach.t()).unsqueeze(2)
    db = None if of.b is None else g.sum((0, 3)) - of.b * pull.sum(-1)
    if of.centered:
        push = pull * of.wmean - (g * of.mean.unsqueeze(2)).sum(0)
        dw = dw + (push @ of.reach.t()).unsqueeze(2)
        db = None if db is None else db + push.sum(-1)
    dw = dw.movedim(2, 1).reshape(weight_shape)
    return dw, None if db is None else db.flatten()


def _product_grads(
    g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry, need: tuple[bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, output_padding, groups, dilation = geometry
    return torch.ops.aten.convolution_backward(
        g, x, kernel, None, stride, padding, dilation, True, output_padding, groups, [*need, False]
    )
