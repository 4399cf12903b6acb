"""Every op in plain, differentiable torch, written to be read: the oracle and the fallback.

    c = x·w / (|x| |w|)                     cosine
    c = (x-μx)·(w-μw) / (|x-μx| |w-μw|)     Pearson (centered)
    y = act(gain · scale · c)

x is a row of a linear layer or one receptive field of a convolution. A bias extends the vectors to
[x, 1] and [w, b]. Norms, means and sums are float32 (float64 for float64), whatever the dtype of x.
A vector that is zero, for Pearson constant, gives 0 and passes no gradient; |c| ≤ 1 always.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.spec import Spec

# Asked once: not every torch can compile the question.
AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps", "hpu") if torch.amp.is_autocast_available(kind)
)
CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Unit(NamedTuple):
    """Weight vectors of length one, for Pearson of mean zero, in the dtype they were asked in."""

    weight: Tensor
    bias: Tensor | None
    total: Tensor  # the sum of the entries after rounding: what centring has left over


def stats_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def compute_dtype(input: Tensor) -> torch.dtype:
    """The dtype of the product: x·v need not fit into float16 though x and the result do."""
    return torch.float32 if input.dtype == torch.float16 else input.dtype


HALF_PRODUCTS = ("cuda",)  # devices that multiply float16, and sum up in float32


def product_dtype(input: Tensor) -> torch.dtype:
    """The dtype of a product with unit weights that may be lifted, so that it fits into float16."""
    return input.dtype if input.device.type in HALF_PRODUCTS else compute_dtype(input)


def lift(dtype: torch.dtype, weight: Tensor, bias: bool) -> float:
    """The factor of unit weights in a product of that dtype: 1, but in float16 a power of two.

    |x·v| ≤ |x|, which is at most √n times the largest of n entries, so that x·(lift·v) fits where x
    does. What gets too small for float16 on the way is as small against |x| as what the rounding of
    x has taken away.
    """
    if dtype != torch.float16:
        return 1.0
    entries = weight.shape[1:].numel() + bias
    spare = entries // 64  # |v| is not quite 1 once it is rounded
    return 2.0 ** -(((entries + spare).bit_length() + 1) // 2)


def autocasting(device: str) -> bool:
    return device in AUTOCAST_DEVICES and torch.is_autocast_enabled(device)


def without_tf32() -> AbstractContextManager:
    """cuDNN as it is set, but for TF32: torch's own context would reset every other switch too."""
    now = torch.backends.cudnn
    return now.flags(
        enabled=now.enabled,
        benchmark=now.benchmark,
        benchmark_limit=now.benchmark_limit,
        deterministic=now.deterministic,
        allow_tf32=False,
    )


def full_precision(input: Tensor) -> AbstractContextManager:
    """Autocast off, where it is on; nothing else, so that exported graphs stay plain."""
    device = input.device.type
    return torch.autocast(device, enabled=False) if autocasting(device) else nullcontext()


def zero_floor(dtype: torch.dtype) -> float:
    """The zero rule: how much of Σx² rounding may make of a constant vector's |x-μ|²."""
    return 16 * torch.finfo(dtype).eps ** 2


def inverse_norm(norm2: Tensor, square: Tensor | None = None) -> Tensor:
    """1/√norm2, and 0 for a vector without direction.

    norm2: |x|², for Pearson |x-μ|². square: for Pearson Σx², by which a constant is recognised.
    """
    floor = 0.0 if square is None else zero_floor(norm2.dtype) * square
    alive = norm2 > floor
    # Not rsqrt: its derivative, the third power, leaves the range of float32 for |x| below 1e-13.
    return torch.where(alive, torch.where(alive, norm2, 1.0).sqrt().reciprocal(), 0.0)


def reciprocal(scale: Tensor) -> Tensor:
    """1/scale, and 0 for 0: behind a scale of zero there was no output to learn from."""
    return torch.where(scale == 0, 0.0, scale.reciprocal())


def moments(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(μ, Σ(x-μ)²) along `dim`, which goes.

    What rounding leaves in a long sum is taken off again: without that, some constant vectors of
    a few thousand entries would pass for a signal.
    """
    mean = x.mean(dim, keepdim=True)
    deviation = x - mean
    drift = deviation.detach().mean(dim)
    m2 = deviation.square().sum(dim) - x.shape[dim] * drift.square()
    return mean.squeeze(dim) + drift, m2


def with_one(count: int, mean: Tensor, m2: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and Σ(x-μ)² of `count` entries after one more entry, 1, has joined them."""
    delta = 1 - mean
    return mean + delta / (count + 1), m2 + delta.square() * (count / (count + 1))


def centred_norm(count: int, mean: Tensor, m2: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """(1/|x-μ|, μ) of vectors of `count` entries, extended by 1 with a bias."""
    if bias:
        mean, m2 = with_one(count, mean, m2)
        count += 1
    return inverse_norm(m2, m2 + count * mean.square()), mean


def unit_weight(weight: Tensor, bias: Tensor | None, centered: bool, dtype: torch.dtype) -> Unit:
    """v = w/|w|, for Pearson (w-μw)/|w-μw|, over everything but the first dimension."""
    rows = weight.to(stats_dtype(weight.dtype)).flatten(1)
    if bias is not None:
        rows = torch.cat([rows, bias.to(rows.dtype).unsqueeze(1)], 1)
    square = rows.square().sum(1, keepdim=True)
    if centered:
        mean, m2 = moments(rows, 1)
        rows = (rows - mean.unsqueeze(1)) * inverse_norm(m2.unsqueeze(1), square)
    else:
        rows = rows * inverse_norm(square)
    rows = rows.to(dtype)
    total = rows.to(square.dtype).sum(1)
    if bias is None:
        return Unit(rows.view_as(weight), None, total)
    return Unit(rows[:, :-1].reshape(weight.shape), rows[:, -1], total)


def weight_stats(weight: Tensor, bias: Tensor | None, centered: bool) -> Tensor:
    """(2, out): 1/|w| and μw of each unit, of which the cosine has no use."""
    rows = weight.to(stats_dtype(weight.dtype)).flatten(1)
    if bias is not None:
        rows = torch.cat([rows, bias.to(rows.dtype).unsqueeze(1)], 1)
    square = rows.square().sum(1)
    if not centered:
        return torch.stack([inverse_norm(square), torch.zeros_like(square)])
    mean, m2 = moments(rows, 1)
    return torch.stack([inverse_norm(m2, square), mean])


def finish(cosine: Tensor, scale: Tensor | None, spec: Spec, dtype: torch.dtype) -> Tensor:
    """y: the bound, whose clamp passes gradients unchanged, the scale and the activation.

    cosine: float32 or float64. scale: broadcasts against it.
    """
    cosine = cosine + (cosine.clamp(-1, 1) - cosine).detach()
    factor = spec.gain if scale is None else scale.to(cosine.dtype) * spec.gain
    return spec.act.value(cosine * factor).to(dtype)


def channelwise(scale: Tensor | None, dims: int) -> Tensor | None:
    return None if scale is None else scale.reshape(-1, *[1] * dims)


def into_cosine(
    grad: Tensor, kept: Tensor, scale: Tensor | None, spec: Spec
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(d, d·c, gradient of each unit's scale), d being the gradient of c.

    grad: of y, float32 or float64. kept: y where the activation keeps it, else c.
    scale: broadcasts against them.
    """
    factor = spec.gain if scale is None else scale * spec.gain
    if spec.act.keeps_output:
        d = grad * spec.act.slope(kept.to(grad.dtype))
        dot = d * kept  # d·c = dy·y, whatever the scale
        share = None if scale is None else dot * reciprocal(scale)
        return d * factor, dot, _over_positions(share)
    d, cosine = grad, kept.to(grad.dtype)
    if spec.activation is not None:
        d = grad * spec.act.slope(cosine * factor)
    dot = d * cosine
    share = None if scale is None else dot * spec.gain
    return d * factor, dot * factor, _over_positions(share)


def _over_positions(share: Tensor | None) -> Tensor | None:
    return None if share is None else share.sum([i for i in range(share.dim()) if i != 1])


def per_unit(values: Tensor, like: Tensor) -> Tensor:
    """(out,) shaped to broadcast against weights (out, …)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """(out,) shaped to broadcast against outputs (N, out, …), or against (out,)."""
    return values.view(-1, *[1] * (like.dim() - 2))


def like_scale(per_unit: Tensor, scale: Tensor) -> Tensor:
    """The gradient of a scale, of one number or of one each, from that of each unit."""
    total = per_unit if scale.numel() == per_unit.numel() else per_unit.sum()
    return total.reshape(scale.shape).to(scale.dtype)
