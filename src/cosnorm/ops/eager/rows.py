"""A linear layer in float32 or float64 on a CPU, in as few calls as it takes.

The same formulas as `steps`, whose many small steps would cost a layer of usual size a tenth of its
time. Weights are multiplied as they are, and the output is divided by their norm.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cosnorm.ops.reference.numerics import like_scale
from cosnorm.ops.spec import Spec

# Of a mean in a square of inputs, beyond which it would cost digits. Random numbers have less, and
# so have most that come out of a ReLU: nothing is done twice for them.
OF_INPUTS = 3 / 4
Stats = tuple[Tensor, Tensor | None]  # 1/|x| and μ


def serves(input: Tensor, weight: Tensor, spec: Spec) -> bool:
    plain = input.device.type == "cpu" and input.dtype == weight.dtype
    plain = plain and weight.dim() == 2 and input.dtype in (torch.float32, torch.float64)
    return plain and spec.activation in (None, "relu") and not torch.compiler.is_compiling()


def inverse(norm: Tensor) -> Tensor:
    return norm.reciprocal().masked_fill_(norm <= 0, 0)


def input_stats(x: Tensor, bias: bool, centered: bool) -> Stats:
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not centered:
        return inverse(length.square_().add_(1).sqrt_() if bias else length), None
    count = x.shape[1]
    mean, square = x.mean(1, keepdim=True), length.square_()
    m2 = torch.addcmul(square, mean, mean, value=-count)
    lost = lossy(m2, square, OF_INPUTS)
    if lost is not None:
        dev = x - mean
        drift = dev.mean(1, keepdim=True)  # what rounding has left in the mean
        exact = torch.linalg.vector_norm(dev, dim=1, keepdim=True).square_()
        m2 = torch.where(lost, exact.addcmul_(drift, drift, value=-count), m2)
        mean = torch.where(lost, mean + drift, mean)
    if bias:
        delta = 1 - mean
        mean.add_(delta, alpha=1 / (count + 1))
        m2.addcmul_(delta, delta, value=count / (count + 1))
        square = square + 1
    return _floored(m2, square), mean


def lossy(m2: Tensor, square: Tensor, share: float) -> Tensor | None:
    """The vectors of which Σx² - nμ² has lost digits: the mean has more than a share of the square.

    Those that are no numbers are among them. None where there are no such vectors.
    """
    kept = torch.add(square, m2, alpha=-1 / (1 - share)) <= 0
    return None if bool(kept.all()) else kept.logical_not_()


def _floored(m2: Tensor, square: Tensor) -> Tensor:
    """1/√m2, and 0 where m2 is no more than rounding makes of a constant."""
    floor = square * (16 * torch.finfo(m2.dtype).eps ** 2)
    return m2.sqrt().reciprocal_().masked_fill_(m2 <= floor, 0)


def centred_units(
    w: Tensor, b: Tensor | None, share: float = 0.5
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The weights to multiply, and of each unit 1/|w-μw|, the mean that is left, and the move.

    Where the mean has more than a share of a unit's square, the unit is moved to zero, which a
    Pearson layer does not see; its products would lose digits otherwise. Where no unit does,
    nothing is moved.
    """
    square, mean, m2 = _sums(w, b)
    lost = lossy(m2, square, share)
    if lost is None:
        return w, b, [_floored(m2, square), mean]
    move = mean.masked_fill(lost.logical_not(), 0)
    w, b = _moved(w, b, move)
    _, mean, m2 = _sums(w, b)
    return w, b, [_floored(m2, square), mean, move]


def _sums(w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(Σw², μw, Σw² - nμw²) of each unit, its bias included."""
    count = w.shape[1] + (b is not None)
    square = torch.linalg.vector_norm(w, dim=1).square_()
    square = square if b is None else square.addcmul_(b, b)
    mean = w.mean(1) if b is None else w.sum(1).add_(b).div_(count)
    return square, mean, torch.addcmul(square, mean, mean, value=-count)


def _moved(w: Tensor, b: Tensor | None, by: Tensor) -> tuple[Tensor, Tensor | None]:
    """Each unit less a number of its own."""
    return w - by.unsqueeze(1), None if b is None else b - by


def forward(
    x: Tensor, w: Tensor, b: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`."""
    rx, mx = input_stats(x, b is not None, spec.centered)
    if mx is None:
        length = torch.linalg.vector_norm(w, dim=1)
        units = [inverse(length if b is None else torch.hypot(length, b))]
        z = torch.nn.functional.linear(x, w, b)
    else:
        w, b, units = centred_units(w, b)
        z = torch.nn.functional.linear(x, w, b)
        z.addcmul_(mx, units[1], value=-(w.shape[1] + (b is not None)))
    z.mul_(rx).mul_(units[0])
    plain, relu = scale is None and spec.gain == 1, spec.activation == "relu"
    least = 0 if plain and relu else -1
    y = z.clamp(least, 1) if keep and not relu else z.clamp_(least, 1)  # c is kept beside y
    if spec.gain != 1:
        y.mul_(spec.gain)
    if scale is not None:
        y.mul_(scale.to(y.dtype))
    if relu and not plain:
        y.relu_()
    return y, [y if relu else z, rx, mx, torch.stack(units), None] if keep else []


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
    rw, gain, mw = stats[0], spec.gain, stats[1] if spec.centered else None
    if len(stats) == 3:
        w, b = _moved(w, b, stats[2])
    factor = None if scale is None else scale.to(x.dtype) * gain
    need_scale = need[3] and scale is not None
    dot, dscale = grad * value, None
    if spec.activation == "relu":
        if need_scale and scale is not None:
            wide = scale.to(x.dtype)
            dscale = (dot.sum(0) / wide).masked_fill_(wide == 0, 0)
        g = torch.ops.aten.threshold_backward(grad, value, 0).mul_(rx)
    else:
        dscale = dot.sum(0).mul_(gain) if need_scale else None
        dot.mul_(gain if factor is None else factor)
        g = grad * rx
    after = rw if factor is None and gain == 1 else rw * (gain if factor is None else factor)
    g.mul_(after)
    dx = _input_grad(g, x, w, dot, rx, mx, mw) if need[0] else None
    dw, db = None, None
    if need[1] or need[2]:
        dw, db = _weight_grad(g, x, w, b, dot, rw, mx, mw)
    return dx, dw, db, None if dscale is None or scale is None else like_scale(dscale, scale)


def _input_grad(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    dot: Tensor,
    rx: Tensor,
    mx: Tensor | None,
    mw: Tensor | None,
) -> Tensor:
    """g·w - x·s, for Pearson + s·μx - g·μw; s = r_x² Σ_k d·c. The product is added last."""
    pull = dot.sum(1, keepdim=True).mul_(rx).mul_(rx).neg_()
    dx = x * pull
    if mx is not None and mw is not None:
        dx.sub_((pull * mx).add_((g @ mw).unsqueeze(1)))
    return dx.addmm_(g, w)


def _weight_grad(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    dot: Tensor,
    rw: Tensor,
    mx: Tensor | None,
    mw: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """As `_input_grad`, the other way round: added last, a product saves a pass over dw."""
    pull = dot.sum(0).mul_(rw).mul_(rw).neg_()
    dw = w * pull.unsqueeze(1)
    db = None if b is None else g.sum(0).addcmul_(b, pull)
    if mx is not None and mw is not None:
        shift = (pull * mw).add_(g.t() @ mx.squeeze(1))
        dw.sub_(shift.unsqueeze(1))
        db = None if db is None else db.sub_(shift)
    return dw.addmm_(g.t(), x), db
