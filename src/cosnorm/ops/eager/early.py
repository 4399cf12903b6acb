"""A linear layer whose rows are normalised before its product, in torch.

In bfloat16 under autocast (`spec.is_early`), and on CPUs where it is shorter (`is_shorter`).

    x̂ = r_x (x-μx);    y = x̂·v, with a bias + r_x (1-μx) v_b
    dx = r_x (dx₀ - mean(dx₀) - x̂⟨dx₀, x̂⟩), means for Pearson alone;    dv = Σ dy x̂

What is written beside the product is as wide as x. The bias and the bound are one pass over y,
which a compiler joins with what follows.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.eager import boxes, rows
from cosnorm.ops.eager.units import project
from cosnorm.ops.reference.numerics import weight_stats
from cosnorm.ops.spec import Spec, keeps_unit


def is_shorter(x: Tensor, weight: Tensor, scale: Tensor | None, spec: Spec) -> bool:
    """Of layers that `rows` serves, those with fewer numbers in x and in the weights than in y."""
    plain = spec.activation is None and spec.gain == 1 and scale is None
    return plain and weight.shape[0] > weight.shape[1] and len(x) >= 2 * weight.shape[1]


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    spec: Spec,
    keep: bool,
    out: Tensor | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`, of rows; in place of y it keeps nothing. out: where y goes."""
    stats = weight_stats(weight, bias, spec.centered)
    if rows.serves(x, weight, spec):
        rnorm, mean = rows.input_stats(x, bias is not None, spec.centered)
    else:
        rnorm, mean = boxes.fields(x, weight.shape[2:], spec, bias is not None)
    v = _units(weight, stats).to(x.dtype)
    hat = _rows(x, rnorm, mean).to(x.dtype)
    y = F.linear(hat, v) if out is None else torch.mm(hat, v.t(), out=out)
    if bias is not None:
        one, entry = _one(rnorm, mean), _unit_bias(bias, stats)
        y = torch.addcmul(y.to(rnorm.dtype), one, entry, out=out)
    y = torch.clamp(y, -1, 1, out=out).to(x.dtype)
    if not keep:
        return y, []
    return y, [None, rnorm, mean, stats, v if keeps_unit(x.dtype, weight) else None]


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Sequence[Tensor | None],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dw, db)"""
    _, rnorm, mean, stats, v = kept
    assert rnorm is not None and stats is not None
    hat = _rows(x, rnorm, mean)
    dx, dw, db = None, None, None
    if need[1] or need[2]:
        dv = dy.t() @ hat.to(x.dtype)
        dvb = None if bias is None else (dy * _one(rnorm, mean)).sum(0)
        dw, db = project(dv, dvb, weight, bias, stats, 1.0, spec)
    if need[0]:
        v = _units(weight, stats) if v is None else v
        dx = (dy @ v).to(rnorm.dtype)
        pull, total = (dx * hat).sum(1, keepdim=True), dx.sum(1, keepdim=True)
        if bias is not None:
            extra = (dy * _unit_bias(bias, stats)).sum(1, keepdim=True)
            pull, total = pull + extra * _one(rnorm, mean), total + extra
        if spec.centered:
            dx.sub_(total / (x.shape[1] + (bias is not None)))
        dx = dx.addcmul_(hat, pull, value=-1).mul_(rnorm).to(x.dtype)
    return dx, dw, db


def _rows(x: Tensor, rnorm: Tensor, mean: Tensor | None) -> Tensor:
    """x̂, in the statistics' dtype."""
    x = x.to(rnorm.dtype)
    return x * rnorm if mean is None else (x - mean).mul_(rnorm)


def _one(rnorm: Tensor, mean: Tensor | None) -> Tensor:
    """What has become of the 1 behind x."""
    return rnorm if mean is None else (1 - mean) * rnorm


def _units(weight: Tensor, stats: Tensor) -> Tensor:
    """v, in the statistics' dtype; the mean of a cosine's is zero."""
    rnorm, mean = stats.unsqueeze(2)
    return (weight.to(stats.dtype) - mean) * rnorm


def _unit_bias(bias: Tensor, stats: Tensor) -> Tensor:
    return (bias.to(stats.dtype) - stats[1]) * stats[0]
