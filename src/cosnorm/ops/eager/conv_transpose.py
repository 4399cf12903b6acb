"""The transposed convolution: the reference without its graph, and backward by formula.

Norms are maps of both vectors here. They are made again in backward, which keeps c or y alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.eager import boxes
from cosnorm.ops.reference.conv_transpose import Vectors, cosine_map, vectors
from cosnorm.ops.reference.numerics import channelwise, full_precision, into_cosine, like_scale
from cosnorm.ops.spec import Geometry, Spec, laid, memory_format


def forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    with full_precision(input):
        # Not in place: of a view that is, Inductor makes a view, and fails at one of open sizes.
        cosine = cosine_map(input, weight, bias, spec).clamp(-1, 1)
        factor = channelwise(scale, input.dim() - 2)
        y = cosine if factor is None else cosine * factor.to(cosine.dtype)
        y = spec.act.value(y if spec.gain == 1 else y * spec.gain).to(input.dtype)
        if y is cosine:
            y = cosine.clone() if keep else cosine
        y = y.contiguous(memory_format=memory_format(input, weight))
        return y, [y if spec.act.keeps_output else cosine.to(input.dtype)] if keep else []


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Any],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight, bias and scale, of those that `need` asks for.

    With d = dy·scale and g = d·r_x·r_w of each output and unit:

        dx = Σ g (w-μw) - (x-μx) r_x² Σ d·c,    dw = Σ g (x-μx) - (w-μw) r_w² Σ d·c

    kept: y where the activation keeps it, else c.
    """
    geometry = spec.geometry
    assert geometry is not None
    with full_precision(input):
        of = vectors(input, weight, bias, geometry, spec.centered)
        factor = channelwise(None if scale is None else scale.to(of.rnorm.dtype), grad.dim() - 2)
        d, dot, dscale = into_cosine(grad.to(of.rnorm.dtype), kept[0], factor, spec)
        grouped = (geometry.groups, -1)
        d, dot = (t.unflatten(1, grouped).flatten(3) for t in (d, dot))
        g = d * of.rnorm * of.wnorm
        dx = _input_grad(g, dot, of, weight.shape[2:], grad.shape, geometry) if need[0] else None
        dw = db = None
        if need[1] or need[2]:
            dw, db = _weight_grad(g, dot, of, weight.shape, grad.shape, geometry)
    return (
        None if dx is None else laid(dx.to(input.dtype), input, weight),
        None if dw is None else laid(dw.to(weight.dtype), weight),
        None if db is None or bias is None else db.to(bias.dtype),
        None if scale is None or dscale is None else like_scale(dscale, scale),
    )


def _input_grad(
    g: Tensor, dot: Tensor, of: Vectors, kernel_size: Sequence[int], shape, geometry: Geometry
) -> Tensor:
    """dx = dx₀ - x·boxᵀ(s) + boxᵀ(s·μx + Σ_k g (m_t-μw)), s = r_x² Σ_k d·c, dx₀ of w-m_t."""
    groups, size = geometry.groups, of.x.shape[2:]
    dx = _product_grads(
        g.flatten(1, 2).view(shape), of.x, of.kernel(kernel_size), geometry, (True, False)
    )[0]

    def back(map: Tensor) -> Tensor:  # (N, groups, taps, positions) -> (N, groups, 1, *size)
        map = map.unflatten(3, shape[2:]).unflatten(2, kernel_size)
        return untaps(map, size, geometry).unsqueeze(2)

    field = of.rnorm.square() * dot.sum(2, keepdim=True)
    dx = dx.unflatten(1, (groups, -1)) - of.x.unflatten(1, (groups, -1)) * back(field * of.reach)
    if of.centered:
        each = torch.einsum("ngop,gotp->ngtp", g, of.woffset)
        dx = dx + back(each + field * of.mean * of.reach)
    return dx.flatten(1, 2)


def untaps(map: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    """The transpose of the reference's `taps`: what the outputs of an input hold for it, summed.

    map: (N, C, *kernel size, *size of the output). Returns (N, C, *size).
    """
    stride, padding, dilation, _, output_padding = geometry
    dims = len(size)
    for axis, length in enumerate(size):
        kernel, reach = map.shape[2], (length - 1) * stride[axis] + 1
        pad = [padding[axis], padding[axis] - output_padding[axis]]
        map = F.pad(map, [0, 0] * (dims - 1 - axis) + pad)
        starts = [tap * dilation[axis] for tap in range(kernel)]
        map = boxes.sum_of(
            [
                torch.ops.aten.slice(map.select(2, tap), 1 + dims, at, at + reach, stride[axis])
                for tap, at in enumerate(starts)
            ]
        )
    return map


def _weight_grad(
    g: Tensor, dot: Tensor, of: Vectors, weight_shape, shape, geometry: Geometry
) -> tuple[Tensor, Tensor | None]:
    """dw = dw₀ - (w-m_t) Σ q - Σ (q (m_t-μw) + Σ_n g μx) over the outputs a tap serves.

    q = r_w² Σ_n d·c.
    """
    groups, kernel_size = geometry.groups, weight_shape[2:]
    dw = _product_grads(
        g.flatten(1, 2).view(shape), of.x, of.kernel(kernel_size), geometry, (False, True)
    )[1]
    dw = dw.unflatten(0, (groups, -1)).movedim(1, 2).flatten(3)
    pull = of.wnorm.square() * dot.sum(0)
    dw = dw - of.w * (pull @ of.reach.t()).unsqueeze(2)
    db = None if of.b is None else g.sum((0, 3)) - (of.b * pull).sum(-1)
    if of.centered:
        push = (g * of.mean).sum(0)
        dw = dw - (push @ of.reach.t() + (of.woffset * pull.unsqueeze(2)).sum(-1)).unsqueeze(2)
        db = None if db is None else db - push.sum(-1)
    dw = dw.movedim(2, 1).reshape(weight_shape)
    return dw, None if db is None else db.flatten()


def _product_grads(
    g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry, need: tuple[bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation, groups, output_padding = geometry
    kernel = kernel.contiguous()  # of one channel, strides may say what torch then trips over
    return torch.ops.aten.convolution_backward(
        g, x, kernel, None, stride, padding, dilation, True, output_padding, groups, [*need, False]
    )
