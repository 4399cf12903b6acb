"""A linear layer in float32 or float64 on a CPU, in as few calls as it takes.

The same formulas as `plain`, whose many small steps would cost a layer of usual size a tenth of its
time. Weights are multiplied as they are, and the output is divided by their norm.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cosnorm.kernels.plain import like_scale
from cosnorm.kernels.steps import Kept
from cosnorm.reference import keeps_cosine

Stats = tuple[Tensor, Tensor | None]  # 1/|x| and μ


def serves(input: Tensor, weight: Tensor) -> bool:
    plain = input.device.type == "cpu" and input.dtype == weight.dtype
    return plain and weight.dim() == 2 and input.dtype in (torch.float32, torch.float64)


def _inverse(norm: Tensor, floor: Tensor | float) -> Tensor:
    return norm.reciprocal().masked_fill_(norm <= floor, 0)


def _input_stats(x: Tensor, bias: bool, centered: bool) -> Stats:
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not centered:
        return _inverse(length.square_().add_(1).sqrt_() if bias else length, 0.0), None
    count = x.shape[1]
    mean, square = x.mean(1, keepdim=True), length.square_()
    m2 = torch.addcmul(square, mean, mean, value=-count)
    if _lost(m2, square):
        dev = x - mean
        drift = dev.mean(1, keepdim=True)  # what rounding has left in the mean
        mean += drift
        m2 = torch.linalg.vector_norm(dev, dim=1, keepdim=True).square_()
        m2.addcmul_(drift, drift, value=-count)
    if bias:
        delta = 1 - mean
        mean.add_(delta, alpha=1 / (count + 1))
        m2.addcmul_(delta, delta, value=count / (count + 1))
        square = square + 1
    return _floored(m2, square), mean


def _lost(m2: Tensor, square: Tensor) -> bool:
    """Whether Σx² - nμ² has lost digits: the mean is more than half of some vector's square."""
    return m2.numel() > 0 and (torch.add(square, m2, alpha=-2).max() > 0).item() is True


def _floored(m2: Tensor, square: Tensor) -> Tensor:
    """1/√m2, and 0 where m2 is no more than rounding makes of a constant."""
    floor = square * (16 * torch.finfo(m2.dtype).eps ** 2)
    return m2.sqrt().reciprocal_().masked_fill_(m2 <= floor, 0)


def _weight_stats(w: Tensor, b: Tensor | None, centered: bool) -> Stats | None:
    """None where the mean is so large that the sums would lose digits uncentred."""
    length = torch.linalg.vector_norm(w, dim=1)
    if not centered:
        length = length if b is None else torch.hypot(length, b)
        return _inverse(length, 0.0), None
    count = w.shape[1] + (b is not None)
    square = length.square_() if b is None else length.square_().addcmul_(b, b)
    mean = w.mean(1) if b is None else w.sum(1).add_(b).div_(count)
    m2 = torch.addcmul(square, mean, mean, value=-count)
    return None if _lost(m2, square) else (_floored(m2, square), mean)


def forward(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
) -> Kept | None:
    """None where these formulas would lose digits, and `plain` has to do it."""
    weight_stats = _weight_stats(w, b, centered)
    if weight_stats is None:
        return None
    rw, mw = weight_stats
    rx, mx = _input_stats(x, b is not None, centered)
    z = torch.nn.functional.linear(x, w, b)
    if mx is not None and mw is not None:
        z.addcmul_(mx, mw, value=-(w.shape[1] + (b is not None)))
    z.mul_(rx).mul_(rw)
    empty = x.new_empty(0)
    kept, y = empty, z
    if keeps_cosine(scale, relu):
        kept = z.clamp_(-1, 1)
        y = z * gain
    elif scale is None and gain == 1:
        z.clamp_(0, 1)
    else:
        z.clamp_(-1, 1).mul_(gain)
    if scale is not None:
        y.mul_(scale.to(y.dtype))
    if relu and not (scale is None and gain == 1):
        y.relu_()
    stats = torch.stack([rw, torch.zeros_like(rw) if mw is None else mw])
    return Kept(y, kept, rx, empty.clone() if mx is None else mx, stats, empty.clone())


def backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    scale: Tensor | None,
    kept: Kept,
    gain: float,
    centered: bool,
    relu: bool,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] | None:
    rw, mw = kept.weight_stats.unbind()
    count = w.shape[1] + (b is not None)
    if centered and len(rw) and (mw * rw).abs_().max().item() * math.sqrt(count) > 1:
        return None
    rx, mx = kept.rnorm, kept.mean
    factor = None if scale is None else scale.to(x.dtype) * gain
    need_scale = need[3] and scale is not None
    if keeps_cosine(scale, relu):
        dot = grad * kept.cosine
        dscale = dot.sum(0).mul_(gain) if need_scale else None
        dot.mul_(gain if factor is None else factor)
        g = grad * rx
    else:
        dot = grad * kept.output
        dscale = None
        if need_scale and scale is not None:
            wide = scale.to(x.dtype)
            dscale = (dot.sum(0) / wide).masked_fill_(wide == 0, 0)
        g = torch.ops.aten.threshold_backward(grad, kept.output, 0).mul_(rx)
    after = rw if factor is None and gain == 1 else rw * (gain if factor is None else factor)
    g.mul_(after)
    dx = _input_grad(g, x, w, dot, rx, mx, mw, centered) if need[0] else None
    dw, db = None, None
    if need[1] or need[2]:
        dw, db = _weight_grad(g, x, w, b, dot, rw, mx, mw, centered)
    return dx, dw, db, None if dscale is None else like_scale(dscale, scale)


def _input_grad(
    g: Tensor, x: Tensor, w: Tensor, dot: Tensor, rx: Tensor, mx: Tensor, mw: Tensor, centered: bool
) -> Tensor:
    pull = dot.sum(1, keepdim=True).mul_(rx).mul_(rx)
    dx = (g @ w).addcmul_(x, pull, value=-1)
    return dx.add_((pull * mx).sub_((g @ mw).unsqueeze(1))) if centered else dx


def _weight_grad(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    dot: Tensor,
    rw: Tensor,
    mx: Tensor,
    mw: Tensor,
    centered: bool,
) -> tuple[Tensor, Tensor | None]:
    pull = dot.sum(0).mul_(rw).mul_(rw)
    db = None if b is None else g.sum(0).addcmul_(b, pull, value=-1)
    dw = (g.t() @ x).addcmul_(w, pull.unsqueeze(1), value=-1)
    if not centered:
        return dw, db
    shift = (pull * mw).sub_(g.t() @ mx.squeeze(1))
    return dw.add_(shift.unsqueeze(1)), db if db is None else db.add_(shift)
