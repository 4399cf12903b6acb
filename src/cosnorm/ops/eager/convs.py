"""A convolution in float32 or float64 on a CPU, in as few passes as it takes.

The same formulas as `steps`, whose tensors made on the way would cost such a layer a good part of
its time: new memory costs several times the pass that fills it. So what a product or a gradient has
made is worked on in place. A depthwise layer, whose statistics are as large as x and y, makes them
of a few images at a time. As in `rows`, weights are multiplied as they are, and what a Pearson
layer owes to their mean is put right afterwards.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cosnorm.ops.eager import boxes, early, rows
from cosnorm.ops.eager.units import as_weight, in_rows
from cosnorm.ops.reference.numerics import like_scale, per_channel, per_unit
from cosnorm.ops.spec import Spec, memory_format

# Of a mean in a square of units, beyond which it would cost digits: less than `rows` allows, since
# these units meet inputs far from zero.
_OF_UNITS = 1 / 8
_PIECE = 1 << 18  # numbers, of which several such pieces lie in a cache


def serves(input: Tensor, weight: Tensor, spec: Spec) -> bool:
    plain = input.device.type == "cpu" and input.dtype == weight.dtype
    plain = plain and input.dtype in (torch.float32, torch.float64)
    plain = plain and spec.geometry is not None and not spec.transposed
    return plain and input.numel() > 0 and not torch.compiler.is_compiling()


def _pieces(weight: Tensor, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same few images of each tensor, and the next; all at once but for depthwise layers."""
    images, largest = len(tensors[0]), max(t.numel() for t in tensors)
    if weight.shape[1] > 1 or largest <= _PIECE:
        return [tensors]
    few = max(1, _PIECE * images // largest)
    return zip(*(t.split(few) for t in tensors), strict=True)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """A view (N, groups, channels, …)."""
    return x.unflatten(1, (groups, -1))


def _moments(x: Tensor) -> boxes.Moments:
    """At each position of (N, groups, channels, …)."""
    count = x.shape[2]
    if count == 1:
        return boxes.Moments(x.squeeze(2), None, 1)
    mean, square = x.mean(2), x.square().sum(2)
    m2 = torch.addcmul(square, mean, mean, value=-count)
    lost = rows.lossy(m2, square, rows.OF_INPUTS)
    if lost is not None:
        dev = x - mean.unsqueeze(2)
        drift = dev.mean(2)  # what rounding has left in the mean
        exact = dev.square_().sum(2).addcmul_(drift, drift, value=-count)
        m2, mean = torch.where(lost, exact, m2), torch.where(lost, mean + drift, mean)
    return boxes.Moments(mean, m2, count)


def _fields(x: Tensor, w: Tensor, spec: Spec, bias: bool) -> tuple[Tensor, Tensor | None]:
    """As `boxes.fields`."""
    kernel, found = w.shape[2:], []
    for (few,) in _pieces(w, x):
        few = _grouped(few, spec.groups)
        if spec.centered:
            found.append(boxes.centred(_moments(few), kernel, spec, bias))
        else:
            found.append((boxes.lengths(_summed(few.square()), kernel, spec, bias), None))
    if len(found) == 1:
        return found[0]
    rx, mx = zip(*found, strict=True)
    return torch.cat(rx), torch.cat(mx) if spec.centered else None


def _summed(x: Tensor) -> Tensor:
    """Over the channels of (N, groups, channels, …); of one channel, a view."""
    return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)


def _sees_points(w: Tensor, spec: Spec) -> bool:
    """Whether fields are the single positions of the input."""
    stride, padding, *_ = spec.geometry or ((), ())
    alone = spec.groups == 1 and w[0].numel() == w.shape[1]
    return alone and not any(padding) and all(step == 1 for step in stride)


def _entries(weight: Tensor, bias: Tensor | None) -> int:
    return weight[0].numel() + (bias is not None)


def forward(
    x: Tensor, w: Tensor, b: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`."""
    rx, mx = _fields(x, w, spec, b is not None)
    if _sees_points(w, spec) and early.is_shorter(x, w, scale, spec):
        return early.forward(x, w, b, spec, keep, (rx, mx))
    flat, layout = in_rows(w), memory_format(x, w)
    if mx is None:
        length = torch.linalg.vector_norm(flat, dim=1)
        units = [rows.inverse(length if b is None else torch.hypot(length, b))]
    else:
        moved, b, units = rows.centred_units(flat, b, _OF_UNITS)
        w = w if moved is flat else as_weight(moved, w)
    assert spec.geometry is not None
    stride, padding, dilation, groups, _ = spec.geometry
    none = [0] * len(stride)
    z = torch.convolution(x, w, b, stride, padding, dilation, False, none, groups)
    z = z.contiguous(memory_format=layout)
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
    """(y, what backward keeps of it) of a similarity that may lie beyond its bound.

    What is kept in place of y may lie beyond it too, by what rounding has made of it.
    """
    plain, act = scale is None and spec.gain == 1, spec.act
    if plain and spec.activation == "relu":
        return z.clamp_(0, 1), z
    beside = keep and not act.keeps_output
    y = torch.clamp(z, -1, 1, out=torch.empty_like(z)) if beside else z.clamp_(-1, 1)
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
    if kept[0] is None:
        return *early.backward(grad, x, w, b, kept, spec, need), None
    value, rx, mx, stats, _ = kept
    assert spec.geometry is not None
    stride, padding, dilation, groups, _ = spec.geometry
    rw, mw = stats[0], stats[1] if spec.centered else None
    if len(stats) == 3:
        w, b = w - per_unit(stats[2], w), None if b is None else b - stats[2]
    fields, units = need[0], need[1] or need[2]  # the projection of one is made of both
    g, pull, of_units, dscale = _start(
        grad, value, rx, w, rw, scale, spec, (fields, units, need[3])
    )
    if not (fields or units):
        return None, None, None, dscale
    none, out = [0] * len(stride), [w.shape[0]]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        g, x, w, out, stride, padding, dilation, False, none, groups, [fields, units, False]
    )
    db = None
    if pull is not None:
        means = () if mx is None else (mx, g)
        for few in _pieces(w, dx, x, pull, *means):
            _correct(*few, mw=mw, kernel=w.shape[2:], spec=spec)
    if units and of_units is not None:
        pull = (of_units * rw).mul_(rw).neg_()
        dw.addcmul_(w, per_unit(pull, w))
        db = None if b is None else _per_output(g).addcmul_(b, pull)
        if mx is not None and mw is not None:
            shift = (pull * mw).add_(_over_fields(g, mx, w, groups))
            dw.sub_(per_unit(shift, dw))
            db = None if db is None else db.sub_(shift)
    return dx, dw, db, dscale


def _correct(
    dx: Tensor,
    x: Tensor,
    pull: Tensor,
    mx: Tensor | None = None,
    g: Tensor | None = None,
    *,
    mw: Tensor | None,
    kernel: Sequence[int],
    spec: Spec,
) -> None:
    """dx -= x·boxᵀ(s), for Pearson - boxᵀ(s·μx - Σ_k g_k μ_k) more; in place. pull: s."""
    size, dx = x.shape[2:], _grouped(dx, spec.groups)
    spread = boxes.scatter(pull, size, kernel, spec.geometry)
    dx.addcmul_(_grouped(x, spec.groups), spread.unsqueeze(2), value=-1)
    if mx is not None and mw is not None and g is not None:
        rest = torch.addcmul(_over_units(g, mw, spec.groups), pull, mx, value=-1)
        dx.sub_(boxes.scatter(rest, size, kernel, spec.geometry).unsqueeze(2))


def _start(
    grad: Tensor,
    value: Tensor,
    rx: Tensor,
    w: Tensor,
    rw: Tensor,
    scale: Tensor | None,
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(g = d·r_x·r_w; s = r_x² Σ d·c of each field; Σ d·c of each unit; the scale's gradient), d
    being the gradient of c. Of this size g alone is made, which holds d·c at first.

    need: of the last three.
    """
    factor, act = _factor(scale, spec, grad), spec.act
    is_plain, in_output = scale is None and spec.gain == 1, act.keeps_output  # the factor is in y
    after = per_channel(rw, grad) if is_plain else per_channel(rw, grad) * factor
    g, pulls, each = torch.empty_like(value), [], []
    for few, d, c, r in _pieces(w, g, grad, value, rx):
        if not in_output and spec.activation is not None:
            d = act.slope(c if is_plain else c * factor).mul_(d)
        dot = torch.mul(d, c, out=few)
        if need[1] or need[2]:
            each.append(_per_output(dot))
        if need[0]:
            dot = dot if in_output or is_plain else dot.mul_(factor)
            pulls.append(torch.mul(_summed(_grouped(dot, spec.groups)), r).mul_(r))
        if in_output:
            d = torch.ops.aten.threshold_backward.grad_input(d, c, 0, grad_input=few)
        torch.mul(_grouped(d, spec.groups), r.unsqueeze(2), out=_grouped(few, spec.groups))
        few.mul_(after)
    pull = None if not need[0] else pulls[0] if len(pulls) == 1 else torch.cat(pulls)
    if not each:
        return g, pull, None, None
    units, dscale = each[0] if len(each) == 1 else torch.stack(each).sum(0), None
    if need[2] and scale is not None:
        dscale = like_scale(_of_scale(units, scale, spec), scale)
    return g, pull, units if in_output or is_plain else units * _factor(scale, spec, units), dscale


def _of_scale(each: Tensor, scale: Tensor, spec: Spec) -> Tensor:
    """The gradient of each unit's scale; each: Σ dy·y where the activation keeps y, else Σ d·c."""
    if not spec.act.keeps_output:
        return each * spec.gain
    wide = scale.to(each.dtype)
    return (each / wide).masked_fill_((wide == 0).expand_as(each), 0)


def _over_fields(g: Tensor, mean: Tensor, w: Tensor, groups: int) -> Tensor:
    """Σ g·μx over rows and positions, of each unit; mean: (N, groups, …)."""
    if groups == 1 and not g.is_contiguous():
        return mean.flatten() @ g.movedim(1, -1).flatten(0, -2)
    if g.is_contiguous():
        units = _grouped(g, groups).flatten(3)
        return (units @ mean.flatten(2).unsqueeze(3)).sum(0).flatten()
    weighted = (_grouped(few, groups) * m.unsqueeze(2) for few, m in _pieces(w, g, mean))
    return sum(_per_output(few.flatten(1, 2)) for few in weighted)  # pyright: ignore[reportReturnType]


def _per_output(maps: Tensor) -> Tensor:
    """Sums of outputs (N, out, …) over rows and positions."""
    return maps.sum([0, *range(2, maps.dim())])


def _over_units(g: Tensor, mean: Tensor, groups: int) -> Tensor:
    """Σ_k g_k μ_k over the units of each group, (N, groups, …)."""
    if groups == 1 and g.is_contiguous():
        return (mean.view(1, -1) @ g.flatten(2)).view(g.shape[0], 1, *g.shape[2:])
    if groups == 1:
        return (g.movedim(1, -1) @ mean).unsqueeze(1)
    return _summed(_grouped(g * per_channel(mean, g), groups))
