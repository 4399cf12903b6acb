"""A linear layer whose rows are normalised before its product (`spec.is_early`), in torch.

    x̂ = r_x (x-μx);    y = x̂·v, with a bias + r_x (1-μx) v_b
    dx = r_x (dx₀ - mean(dx₀) - x̂⟨dx₀, x̂⟩), means for Pearson alone;    dv = Σ dy x̂

What is written beside the product is as wide as x. The bias and the bound are one pass over y,
which a compiler joins with what follows.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.eager import boxes
from cosnorm.ops.reference.numerics import weight_stats
from cosnorm.ops.spec import Spec


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`, of rows; in place of y it keeps nothing, and v always: a copy is made of
    weights that are wider.
    """
    stats = weight_stats(weight, bias, spec.centered)
    rnorm, mean = boxes.fields(x, weight.shape[2:], spec, bias is not None)
    v = _units(weight, stats).to(x.dtype)
    y = F.linear(_rows(x, rnorm, mean).to(x.dtype), v)
    if bias is not None:
        y = y + _one(rnorm, mean) * _unit_bias(bias, stats)
    y = y.clamp(-1, 1).to(x.dtype)
    if not keep:
        return y, []
    return y, [None, rnorm, mean, stats, v]


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: Sequence[Tensor | None],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dv, the same of the bias's entry): the last step of the weights is still due."""
    _, rnorm, mean, stats, v = kept
    assert rnorm is not None and stats is not None and v is not None
    hat = _rows(x, rnorm, mean)
    dx, dv, dvb = None, None, None
    if need[1] or need[2]:
        dv = dy.t() @ hat.to(x.dtype)
        dvb = None if bias is None else (dy * _one(rnorm, mean)).sum(0)
    if need[0]:
        dx = (dy @ v).to(rnorm.dtype)
        pull, total = (dx * hat).sum(1, keepdim=True), dx.sum(1, keepdim=True)
        if bias is not None:
            extra = (dy * _unit_bias(bias, stats)).sum(1, keepdim=True)
            pull, total = pull + extra * _one(rnorm, mean), total + extra
        if spec.centered:
            dx = dx - total / (x.shape[1] + (bias is not None))
        dx = ((dx - hat * pull) * rnorm).to(x.dtype)
    return dx, dv, dvb


def _rows(x: Tensor, rnorm: Tensor, mean: Tensor | None) -> Tensor:
    """x̂, in the statistics' dtype."""
    x = x.to(rnorm.dtype)
    return (x if mean is None else x - mean) * rnorm


def _one(rnorm: Tensor, mean: Tensor | None) -> Tensor:
    """What has become of the 1 behind x."""
    return rnorm if mean is None else (1 - mean) * rnorm


def _units(weight: Tensor, stats: Tensor) -> Tensor:
    """v, in the statistics' dtype; the mean of a cosine's is zero."""
    rnorm, mean = stats.unsqueeze(2)
    return (weight.to(stats.dtype) - mean) * rnorm


def _unit_bias(bias: Tensor, stats: Tensor) -> Tensor:
    return (bias.to(stats.dtype) - stats[1]) * stats[0]
