"""The steps of a layer in torch, for any device: nothing is differentiated, buffers are reused.

With float32 weights on a CPU the product is taken with the weights as they are and divided by
their norm afterwards: scaling the output costs less than a scaled copy of the weights. In lower
precision the weights are centred and normalised before they are rounded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cosnorm import reference
from cosnorm.kernels.steps import Geometry, Grad, Kept, Place, Weight
from cosnorm.reference import stats_dtype


def prepare(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Weight, tuple[Tensor, Tensor]]:
    """Everything before the product: the weights, and 1/|x| and μx of the fields."""
    fields = reference.field_stats(
        input, weight.shape[2:], *geometry, centered, bias is not None, unfold
    )
    return prepare_weight(weight, bias, centered, dtype), fields


def unfold(map: Tensor, dim: int, size: int, stride: int, dilation: int) -> Tensor:
    """`reference.slices` as a view."""
    return map.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]


def fields(
    input: Tensor, weight: Weight, geometry: Geometry, centered: bool
) -> tuple[Tensor, Tensor]:
    """1/|x| and μx of the fields alone, for weights that are units already."""
    bias, size = weight.bias is not None, weight.weight.shape[2:]
    return reference.field_stats(input, size, *geometry, centered, bias, unfold)


def finish(
    product: Tensor,
    input: Tensor,
    fields: tuple[Tensor, Tensor],
    weight: Weight,
    geometry: Geometry,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
    keep: bool,
    keep_unit: bool,
) -> tuple[Kept, None]:
    """Everything after the product, which is overwritten; c is kept if asked for."""
    output, cosine = epilogue(product, *fields, weight, scale, gain, relu, keep, input.dtype)
    unit = weight.weight if keep_unit else output.new_empty(0)
    return Kept(output, cosine, *fields, weight.stats, unit), None


def start_grad(
    grad: Tensor,
    kept: Kept,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
    dtype: torch.dtype,
    need_scale: bool,
) -> tuple[Weight, Grad]:
    """Everything before the gradients of the product."""
    if kept.unit.numel():
        prepared = Weight(kept.unit, None, kept.weight_stats, None)
    else:
        prepared = prepare_weight(weight, bias, centered, dtype, kept.weight_stats)
    step = grad_epilogue(grad, kept, prepared, scale, gain, relu, dtype, need_scale)
    return prepared, step


def end_grad(
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    place: Place,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Everything after the gradients of the product, which are overwritten."""
    input, weight, bias, kept, prepared, step, geometry, centered = place
    if dx is not None:
        kernel_size = weight.shape[2:]
        dx = correct_input(dx, input, kept.mean, step, prepared, kernel_size, *geometry[:3])
    if dw is not None:
        assert step.unit is not None
        dw, db = weight_grad(dw, db, weight, bias, prepared, step.unit, centered)
    return dx, dw, db


def _vectors(weight: Tensor) -> tuple[int, ...]:
    return tuple(range(1, weight.dim()))


def _per_unit(values: Tensor, like: Tensor) -> Tensor:
    """(out,) shaped to broadcast against weights (out, …)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """(out,) shaped to broadcast against outputs (N, out, …)."""
    return values.view(-1, *[1] * (like.dim() - 2))


def _entries(weight: Tensor, bias: Tensor | None) -> int:
    return weight[0].numel() + (bias is not None) if weight.shape[0] else 1


def prepare_weight(
    weight: Tensor,
    bias: Tensor | None,
    centered: bool,
    dtype: torch.dtype,
    stats: Tensor | None = None,
) -> Weight:
    """The weights for the product; `stats` of an earlier call saves their computation."""
    deferred = weight.device.type == "cpu" and weight.dtype == dtype == stats_dtype(dtype)
    if stats is None:
        stats = _weight_stats(weight, bias, centered)
    rnorm, mean = stats
    count = _entries(weight, bias)
    if deferred and not centered:
        return Weight(weight, bias, stats, None, rnorm)
    # Uncentred sums are safe while the mean is no more than half of the weights' square.
    if deferred and bool((count * (mean * rnorm).square() <= 1).all()):
        return Weight(weight, bias, stats, mean * count, rnorm)
    wide = stats_dtype(weight.dtype)
    v, vb = weight.to(wide), None if bias is None else bias.to(wide)
    if centered:
        v = v - _per_unit(mean, v)
        vb = None if vb is None else vb - mean
    if not deferred:
        v = (v * _per_unit(rnorm, v)).to(dtype)
        vb = None if vb is None else (vb * rnorm).to(dtype)
    total = v.sum(_vectors(v), dtype=wide) if centered else None
    if total is not None and vb is not None:
        total = total + vb
    return Weight(v, vb, stats, total, rnorm if deferred else None)


def _weight_stats(weight: Tensor, bias: Tensor | None, centered: bool) -> Tensor:
    if weight.device.type != "cpu" or weight.dtype != stats_dtype(weight.dtype):
        return reference.weight_stats(weight, bias, centered)
    dims, count = _vectors(weight), _entries(weight, bias)
    square = torch.linalg.vector_norm(weight, dim=dims).square_()
    square = square if bias is None else square.addcmul_(bias, bias)
    if not centered:
        return torch.stack([reference.inverse_norm(square), torch.zeros_like(square)])
    mean = weight.sum(dims).add_(0 if bias is None else bias).div_(count)
    if bool((count * mean.square() > square / 2).any()):  # the difference would lose digits
        return reference.weight_stats(weight, bias, centered)
    m2 = square.addcmul(mean, mean, value=-count)
    return torch.stack([reference.inverse_norm(m2, square), mean])


def epilogue(
    product: Tensor,
    rnorm: Tensor,
    mean: Tensor,
    weight: Weight,
    scale: Tensor | None,
    gain: float,
    relu: bool,
    keep: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(y, c) from the product, which is overwritten: y = act(gain · scale · r_x · (z - μx Σw))."""
    z = product.to(rnorm.dtype)  # itself and no view of it: autograd forbids changing those
    groups = rnorm.shape[1]
    grouped = z.unflatten(1, (groups, -1))
    if weight.total is not None:
        total = _per_channel(weight.total, product).unflatten(0, (groups, -1))
        grouped.addcmul_(mean.unsqueeze(2), total, value=-1)
    grouped.mul_(rnorm.unsqueeze(2))
    if weight.rnorm is not None:
        z.mul_(_per_channel(weight.rnorm, z))
    kept = z.new_empty(0, dtype=dtype)
    if keep:
        z.clamp_(-1, 1)
        kept = z.to(dtype, copy=True)
    if scale is None and gain == 1:
        return z.clamp_(0 if relu else -1, 1).to(dtype), kept
    z.clamp_(-1, 1).mul_(gain)
    if scale is not None:
        z.mul_(_per_channel(scale.to(z.dtype), z))
    return (z.relu_() if relu else z).to(dtype), kept


def grad_epilogue(
    grad: Tensor,
    kept: Kept,
    weight: Weight,
    scale: Tensor | None,
    gain: float,
    relu: bool,
    dtype: torch.dtype,
    need_scale: bool,
) -> Grad:
    """The first pass of backward. Where y was kept, d·c = dy·y, whatever the scale."""
    output, cosine, rnorm = kept[:3]
    wide, groups = rnorm.dtype, rnorm.shape[1]
    factor = None if scale is None else _per_channel(scale.to(wide), grad)
    factor = gain if factor is None else factor * gain
    others = [axis for axis in range(grad.dim()) if axis != 1]
    dscale = None
    if reference.keeps_cosine(scale, relu):
        dot = grad.to(wide) * cosine
        unit = dot.sum(others).mul_(gain)
        if scale is not None:
            dscale = unit
            unit = unit * scale.to(wide)
        dot.mul_(factor)
    else:
        dot = grad.to(wide) * output
        unit = dot.sum(others)
        if scale is not None:
            dscale = unit * reference.reciprocal(scale.to(wide))
    field = dot.unflatten(1, (groups, -1)).sum(2).mul_(rnorm.square())
    g = grad.to(wide)
    if relu:
        g = torch.ops.aten.threshold_backward(g, output.to(wide), 0)
        g.unflatten(1, (groups, -1)).mul_(rnorm.unsqueeze(2))
    else:
        g = (g.unflatten(1, (groups, -1)) * rnorm.unsqueeze(2)).flatten(1, 2)
    if scale is not None or gain != 1:
        g.mul_(factor)
    if weight.rnorm is not None:
        g.mul_(_per_channel(weight.rnorm, g))
    dscale = like_scale(dscale, scale) if dscale is not None and need_scale else None
    return Grad(g.to(dtype), field, unit, dscale)


def like_scale(per_unit: Tensor, scale: Tensor | None) -> Tensor:
    assert scale is not None
    total = per_unit if scale.numel() == per_unit.numel() else per_unit.sum()
    return total.reshape(scale.shape).to(scale.dtype)


def correct_input(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    step: Grad,
    weight: Weight,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """dx = dx₀ - x·boxᵀ(s), for Pearson + boxᵀ(s·μx - Σ_k g μw); dx₀ is overwritten."""
    groups = step.field.shape[1]
    maps, centered = [step.field], mean.numel() > 0
    if centered:
        shift = step.field * mean
        if weight.rnorm is not None and weight.total is not None:
            share = weight.total / _entries(weight.weight, weight.bias)
            leak = step.product * _per_channel(share, step.product)
            shift = shift - leak.unflatten(1, (groups, -1)).sum(2)
        maps.append(shift)
    boxes = scatter(torch.cat(maps, 1), input.shape[2:], kernel_size, stride, padding, dilation)
    out = grad.to(step.field.dtype).unflatten(1, (groups, -1))
    out.addcmul_(input.unflatten(1, (groups, -1)), boxes[:, :groups].unsqueeze(2), value=-1)
    if centered:
        out.add_(boxes[:, groups:].unsqueeze(2))
    return out.flatten(1, 2).to(input.dtype)


def scatter(
    map: Tensor,
    size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """boxᵀ: at each input position the sum of a map over the fields that contain it."""
    for axis, length in enumerate(size):
        fields = map.shape[axis + 2]
        shape = list(map.shape)
        shape[axis + 2] = length + 2 * padding[axis]
        total = map.new_zeros(shape)
        for tap in range(kernel_size[axis]):
            start = tap * dilation[axis]
            where = total.narrow(axis + 2, start, shape[axis + 2] - start)
            where = where.unfold(axis + 2, 1, stride[axis]).squeeze(-1)
            where.narrow(axis + 2, 0, fields).add_(map)
        map = total.narrow(axis + 2, padding[axis], length)
    return map


def weight_grad(
    grad: Tensor,
    grad_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    prepared: Weight,
    unit: Tensor,
    centered: bool,
) -> tuple[Tensor, Tensor | None]:
    """dw = r_w (dv - mean(dv) - v⟨dv, v⟩), ⟨dv, v⟩ = Σ d·c; the first two are overwritten."""
    wide = stats_dtype(weight.dtype)
    rnorm, mean = prepared.stats
    dw, db = grad.to(wide), None if grad_bias is None else grad_bias.to(wide)
    if prepared.rnorm is None:
        dw = dw.mul_(_per_unit(rnorm, dw))
        db = None if db is None else db.mul_(rnorm)
    pull = rnorm.square() * unit
    shift = None
    if centered:
        total = dw.sum(_vectors(dw))
        total = total if db is None else total.add_(db)
        shift = (pull * mean).sub_(total, alpha=1 / _entries(weight, bias))
    dw.addcmul_(weight, _per_unit(pull, dw), value=-1)
    if db is not None:
        assert bias is not None
        db = db - bias.to(wide) * pull
        db = db if shift is None else db + shift
        db = db.to(bias.dtype)
    if shift is not None:
        dw.add_(_per_unit(shift, dw))
    return dw.to(weight.dtype), db
