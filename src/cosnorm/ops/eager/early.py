"""A layer of single positions whose rows are normalised before its product, in torch.

    x̂ = r_x (x-μx);    y = x̂·v, with a bias + r_x (1-μx) v_b
    dx = r_x (dx₀ - mean(dx₀) - x̂⟨dx₀, x̂⟩), means for Pearson alone;    dv = Σ dy x̂

What is written beside the product is as wide as x. The bias and the bound are one pass over y,
which a compiler joins with what follows. So work linear layers in bfloat16 under autocast
(`spec.is_early`), and on CPUs linear layers and 1×1 convolutions where it is shorter.
"""

from collections.abc import Sequence

from torch import Tensor

from cosnorm.ops.eager.products import product, product_grad
from cosnorm.ops.eager.units import project
from cosnorm.ops.reference.numerics import per_channel, per_unit, weight_stats
from cosnorm.ops.spec import Spec, keeps_unit


def is_shorter(x: Tensor, weight: Tensor, scale: Tensor | None, spec: Spec) -> bool:
    """Of layers of single positions, those with fewer numbers in x and in the weights than in y."""
    plain = spec.activation is None and spec.gain == 1 and scale is None
    out, entries = weight.shape[:2]
    return plain and out > entries and x.numel() >= 2 * entries * entries


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    spec: Spec,
    keep: bool,
    fields: tuple[Tensor, Tensor | None],
) -> tuple[Tensor, list[Tensor | None]]:
    """As `steps.forward`; in place of y it keeps nothing. fields: (1/|x|, μx), (N, 1, …)."""
    stats, (rnorm, mean) = weight_stats(weight, bias, spec.centered), fields
    v = _units(weight, stats).to(x.dtype)
    y = product(_rows(x, rnorm, mean).to(x.dtype), v, None, spec)
    if bias is not None:
        entry = per_channel(_unit_bias(bias, stats), y)
        y = y.to(rnorm.dtype).addcmul_(_one(rnorm, mean), entry)
    y = y.clamp_(-1, 1).to(x.dtype)
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
    v = _units(weight, stats) if v is None else v
    units = need[1] or need[2]
    dx, dv, _ = product_grad(dy, hat.to(x.dtype), v, spec, (need[0], units, False))
    dw, db, one = None, None, _one(rnorm, mean)
    if dv is not None:
        dvb = None
        if bias is not None:
            dvb = (dy * one).sum([0, *range(2, dy.dim())])
        dw, db = project(dv, dvb, weight, bias, stats, 1.0, spec)
    if dx is not None:
        dx = dx.to(rnorm.dtype)
        pull, total = (dx * hat).sum(1, keepdim=True), dx.sum(1, keepdim=True)
        if bias is not None:
            extra = (dy * per_channel(_unit_bias(bias, stats), dy)).sum(1, keepdim=True)
            pull, total = pull + extra * one, total + extra
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
    rnorm, mean = (per_unit(each, weight) for each in stats)
    return (weight.to(stats.dtype) - mean) * rnorm


def _unit_bias(bias: Tensor, stats: Tensor) -> Tensor:
    return (bias.to(stats.dtype) - stats[1]) * stats[0]
