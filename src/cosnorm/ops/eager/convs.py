"""A convolution in float32 or float64 on a CPU, in as few passes as it takes.

The same formulas as `steps`, whose tensors made on the way would cost such a layer a good part of
its time: here what a product or a gradient has made is worked on in place. As in `rows`, weights
are multiplied as they are, and what a Pearson layer owes to their mean is put right afterwards.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cosnorm.ops.eager import boxes, rows
from cosnorm.ops.reference.numerics import like_scale, per_channel, per_unit
from cosnorm.ops.spec import Spec, memory_format

# Of a mean in a square, beyond which it would cost digits: of units, which meet inputs far from
# zero, and of inputs. A mean of random numbers has less, so that nothing is done twice for it.
_OF_UNITS, _OF_INPUTS = 1 / 8, 3 / 4
_LASTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def serves(input: Tensor, weight: Tensor, spec: Spec) -> bool:
    """Depthwise layers have as many maps as channels, and go another way."""
    plain = input.device.type == "cpu" and input.dtype == weight.dtype
    plain = plain and input.dtype in (torch.float32, torch.float64)
    plain = plain and spec.geometry is not None and not spec.transposed and weight.shape[1] > 1
    return plain and input.numel() > 0 and not torch.compiler.is_compiling()


def _in_rows(weight: Tensor) -> Tensor:
    """The weights of each unit in one row, in the order in which they lie in memory."""
    last = _LASTS.get(weight.dim())
    if last is not None and weight.is_contiguous(memory_format=last):
        weight = weight.movedim(1, -1)
    return weight.flatten(1)


def _as_weight(moved: Tensor, weight: Tensor) -> Tensor:
    """Rows that `_in_rows` has made, and that were changed since, as weights."""
    last = _LASTS.get(weight.dim())
    if last is not None and weight.is_contiguous(memory_format=last):
        return moved.view(weight.movedim(1, -1).shape).movedim(-1, 1)
    return moved.view_as(weight)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """A view (N, groups, channels, …)."""
    return x.unflatten(1, (groups, -1))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """(μ, Σ(x-μ)²) at each position of (N, groups, channels, …)."""
    count, mean, square = x.shape[2], x.mean(2), x.square().sum(2)
    m2 = torch.addcmul(square, mean, mean, value=-count)
    lost = rows.lossy(m2, square, _OF_INPUTS)
    if lost is not None:
        dev = x - mean.unsqueeze(2)
        drift = dev.mean(2)  # what rounding has left in the mean
        exact = dev.square_().sum(2).addcmul_(drift, drift, value=-count)
        m2, mean = torch.where(lost, exact, m2), torch.where(lost, mean + drift, mean)
    return mean, m2


def _fields(
    x: Tensor, kernel: Sequence[int], spec: Spec, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """As `boxes.fields`."""
    x = _grouped(x, spec.groups)
    if spec.centered:
        return boxes.centred(*_moments(x), x.shape[2], kernel, spec, bias)
    return boxes.lengths(x.square().sum(2), kernel, spec, bias), None


def _entries(weight: Tensor, bias: Tensor | None) -> int:
    return weight[0].numel() + (bias is not None)


def forward(
    x: Tensor, w: Tensor, b: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`."""
    rx, mx = _fields(x, w.shape[2:], spec, b is not None)
    flat = _in_rows(w)
    if mx is None:
        length = torch.linalg.vector_norm(flat, dim=1)
        units = [rows.inverse(length if b is None else torch.hypot(length, b))]
    else:
        moved, b, units = rows.centred_units(flat, b, _OF_UNITS)
        w = w if moved is flat else _as_weight(moved, w)
    assert spec.geometry is not None
    stride, padding, dilation, groups, _ = spec.geometry
    none = [0] * len(stride)
    z = torch.convolution(x, w, b, stride, padding, dilation, False, none, groups)
    z = z.contiguous(memory_format=memory_format(x, w))
    maps = _grouped(z, groups)
    if mx is not None:
        mean = _grouped(per_channel(units[1], z).unsqueeze(0), groups)
        maps.addcmul_(mx.unsqueeze(2), mean, value=-_entries(w, b))
    maps.mul_(rx.unsqueeze(2))
    z.mul_(per_channel(units[0], z))
    y, kept = _finished(z, scale, spec, keep)
    return y, [kept, rx, mx, torch.stack(units), None] if keep else []


def _finished(
    z: Tensor, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """(y, what backward keeps of it) of a similarity that may lie beyond its bound."""
    plain, act = scale is None and spec.gain == 1, spec.act
    if plain and spec.activation == "relu":
        return z.clamp_(0, 1), z
    z.clamp_(-1, 1)
    y = z.clone() if keep and not act.keeps_output else z
    if not plain:
        y.mul_(_factor(scale, spec, z))
    y = y if spec.activation is None else act.value(y)
    return y, y if act.keeps_output else z


def _factor(scale: Tensor | None, spec: Spec, like: Tensor) -> Tensor | float:
    if scale is None:
        return spec.gain
    scale = scale.to(like.dtype)
    return per_channel(scale if spec.gain == 1 else scale * spec.gain, like)


def backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Any],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    value, rx, mx, stats, _ = kept
    assert spec.geometry is not None
    stride, padding, dilation, groups, _ = spec.geometry
    rw, mw = stats[0], stats[1] if spec.centered else None
    if len(stats) == 3:
        w, b = w - per_unit(stats[2], w), None if b is None else b - stats[2]
    fields, units = need[0], need[1] or need[2]  # the projection of one is made of both
    g, of_fields, of_units, dscale = _start(grad, value, scale, spec, (fields, units, need[3]))
    if not (fields or units):
        return None, None, None, dscale
    _grouped(g, groups).mul_(rx.unsqueeze(2))
    g.mul_(per_channel(rw, g) * _factor(scale, spec, g))
    none, out = [0] * len(stride), [w.shape[0]]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        g, x, w, out, stride, padding, dilation, False, none, groups, [fields, units, False]
    )
    db = None
    if of_fields is not None:
        pull, kernel, size = of_fields.mul_(rx).mul_(rx).neg_(), w.shape[2:], x.shape[2:]
        grouped = _grouped(dx, groups)
        spread = boxes.scatter(pull, size, kernel, spec.geometry)
        grouped.addcmul_(_grouped(x, groups), spread.unsqueeze(2))
        if mx is not None and mw is not None:
            rest = (pull * mx).add_(_over_units(g, mw, groups))
            grouped.sub_(boxes.scatter(rest, size, kernel, spec.geometry).unsqueeze(2))
    if units and of_units is not None:
        pull = (of_units * rw).mul_(rw).neg_()
        dw.addcmul_(w, per_unit(pull, w))
        db = None if b is None else _per_output(g).addcmul_(b, pull)
        if mx is not None and mw is not None:
            shift = (pull * mw).add_(_over_fields(g, mx, groups))
            dw.sub_(per_unit(shift, dw))
            db = None if db is None else db.sub_(shift)
    return dx, dw, db, dscale


def _start(
    grad: Tensor, value: Tensor, scale: Tensor | None, spec: Spec, need: Sequence[bool]
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(the gradient behind scale and activation; Σ d·c of each field, and of each unit; the scale's
    gradient), d being the gradient of c. Of this size one tensor is made.

    need: of the last three.
    """
    factor, act = _factor(scale, spec, grad), spec.act
    behind = None  # the gradient behind the activation, where that takes a tensor of its own
    if not act.keeps_output and spec.activation is not None:
        behind = act.slope(value * factor).mul_(grad)
    dot, dscale = (grad if behind is None else behind) * value, None
    each = _per_output(dot) if need[1] or need[2] else None
    if need[2] and scale is not None and each is not None:
        dscale = like_scale(_of_scale(each, scale, spec), scale)
    if not act.keeps_output and (scale is not None or spec.gain != 1):  # else it is in y
        dot.mul_(factor)
        each = each if each is None else each * _factor(scale, spec, each)
    fields = _grouped(dot, spec.groups).sum(2) if need[0] else None
    if act.keeps_output:
        g = torch.ops.aten.threshold_backward.grad_input(grad, value, 0, grad_input=dot)
    else:
        g = dot.copy_(grad) if behind is None else behind
    return g, fields, each, dscale


def _of_scale(each: Tensor, scale: Tensor, spec: Spec) -> Tensor:
    """The gradient of each unit's scale; each: Σ dy·y where the activation keeps y, else Σ d·c."""
    if not spec.act.keeps_output:
        return each * spec.gain
    wide = scale.to(each.dtype)
    return (each / wide).masked_fill_((wide == 0).expand_as(each), 0)


def _over_fields(g: Tensor, mean: Tensor, groups: int) -> Tensor:
    """Σ g·μx over rows and positions, of each unit; mean: (N, groups, …)."""
    if groups == 1 and not g.is_contiguous():
        return mean.flatten() @ g.movedim(1, -1).flatten(0, -2)
    units = _grouped(g, groups).flatten(3)
    return (units @ mean.flatten(2).unsqueeze(3)).sum(0).flatten()


def _per_output(maps: Tensor) -> Tensor:
    """Sums of outputs (N, out, …) over rows and positions."""
    return maps.sum([0, *range(2, maps.dim())])


def _over_units(g: Tensor, mean: Tensor, groups: int) -> Tensor:
    """Σ_k g_k μ_k over the units of each group, (N, groups, …)."""
    if groups == 1 and g.is_contiguous():
        return (mean.view(1, -1) @ g.flatten(2)).view(g.shape[0], 1, *g.shape[2:])
    if groups == 1:
        return (g.movedim(1, -1) @ mean).unsqueeze(1)
    return _grouped(g * per_channel(mean, g), groups).sum(2)
