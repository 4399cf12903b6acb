"""Every op in plain, differentiable torch, written to be read: the oracle and the fallback.

    c = x·w / (|x| |w|)                     cosine
    c = (x-μx)·(w-μw) / (|x-μx| |w-μw|)     Pearson (centered)
    y = act(gain · scale · c)

x is a row of a linear layer or one receptive field of a convolution. A bias extends the vectors to
[x, 1] and [w, b]. Norms, means and sums are float32 (float64 for float64), whatever the dtype of x.
A vector that is zero, for Pearson constant, gives 0 and passes no gradient; |c| ≤ 1 always.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Asked once: not every torch can compile the question.
AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps", "hpu") if torch.amp.is_autocast_available(kind)
)
CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Result(NamedTuple):
    """What an op returns: its output and the little that its backward keeps."""

    output: Tensor
    cosine: Tensor  # c, only where it can't be had from the output: a scale tensor without ReLU
    rnorm: Tensor  # 1/|x| of each row or field, 0 for a vector without direction
    mean: Tensor  # μx, Pearson only


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


def keeps_cosine(scale: Tensor | None, relu: bool) -> bool:
    """Whether backward keeps c itself rather than y.

    As after torch's own layers, what follows may change y in place (ReLU(inplace=True), `y += x`),
    unless our ReLU came first; and y/scale fails where a learned scale passes through zero.
    """
    return not relu


def inverse_norm(norm2: Tensor, square: Tensor | None = None) -> Tensor:
    """1/√norm2, and 0 for a vector without direction.

    norm2: |x|², for Pearson |x-μ|². square: for Pearson Σx², by which a constant is recognised.
    """
    floor = 0.0 if square is None else 16 * torch.finfo(norm2.dtype).eps ** 2 * square
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


def row_stats(input: Tensor, centered: bool, bias: bool) -> tuple[Tensor, Tensor]:
    """(1/|x|, μ) of each row, with a last dimension of one."""
    x = input.to(stats_dtype(input.dtype))
    if not centered:
        return inverse_norm(x.square().sum(-1, keepdim=True) + float(bias)), x.new_empty(0)
    mean, m2 = (t.unsqueeze(-1) for t in moments(x, -1))
    return centred_norm(x.shape[-1], mean, m2, bias)


def slices(map: Tensor, dim: int, size: int, stride: int, dilation: int) -> Tensor:
    """Every window along `dim`, its entries in a new last dimension.

    As Tensor.unfold, whose backward torch cannot batch.
    """
    count = map.shape[dim] - dilation * (size - 1)  # of starts, before the stride thins them
    taps = [tap * dilation for tap in range(size)]
    if stride > 1 and torch.compiler.is_compiling():
        # The number of windows as torch writes that of a convolution: where sizes are left open,
        # it must see that the two are the same.
        starts = torch.arange((count - 1) // stride + 1, device=map.device) * stride
        return torch.stack([map.index_select(dim, starts + tap) for tap in taps], -1)
    return torch.stack(
        [torch.ops.aten.slice(map, dim, tap, tap + count, stride) for tap in taps], -1
    )


def field_stats(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    centered: bool,
    bias: bool,
    slide: Callable[[Tensor, int, int, int, int], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(1/|x|, μ) of each receptive field, (N, groups, *output size).

    Over the channels first, then over the window of a map of one channel. Means and squared
    deviations are merged pairwise, Σ(x-μ)² = Σ M2 + count·Σ(m-μ)², never as E[x²]-E[x]².
    slide: `slices`, or what else gives the same and need not be differentiated.
    """
    x = input.to(stats_dtype(input.dtype)).unflatten(1, (groups, -1))
    pad = [p for size in reversed(padding) for p in (size, size)]

    def windows(map: Tensor, axis: int) -> Tensor:
        return (slide or slices)(map, axis + 2, kernel_size[axis], stride[axis], dilation[axis])

    if not centered:
        square = F.pad(x.square().sum(2), pad)
        for axis in range(len(kernel_size)):
            square = windows(square, axis).sum(-1)
        return inverse_norm(square + float(bias)), x.new_empty(0)
    count = x.shape[2]
    mean, m2 = (F.pad(t, pad) for t in moments(x, 2))
    for axis, size in enumerate(kernel_size):
        mean, spread = moments(windows(mean, axis), -1)
        m2 = windows(m2, axis).sum(-1) + count * spread
        count *= size
    return centred_norm(count, mean, m2, bias)


def finish(
    cosine: Tensor, scale: Tensor | None, gain: float, relu: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(y, c): the bound, whose clamp passes gradients unchanged, the scale and the activation.

    cosine: float32 or float64. scale: broadcasts against it.
    """
    cosine = cosine + (cosine.clamp(-1, 1) - cosine).detach()
    output = cosine * gain if scale is None else cosine * (scale.to(cosine.dtype) * gain)
    kept = cosine.to(dtype) if keeps_cosine(scale, relu) else cosine.new_empty(0, dtype=dtype)
    return (output.relu() if relu else output).to(dtype), kept


def channelwise(scale: Tensor | None, dims: int) -> Tensor | None:
    return None if scale is None else scale.reshape(-1, *[1] * dims)


def cosine_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    gain: float,
    centered: bool,
    relu: bool,
) -> Result:
    """act(gain · scale · c) for each row of `input` (…, in) and of `weight` (out, in)."""
    with full_precision(input):
        dtype = compute_dtype(input)
        unit = unit_weight(weight, bias, centered, dtype)
        rnorm, mean = row_stats(input, centered, bias is not None)
        product = F.linear(input.to(dtype), unit.weight, unit.bias).to(rnorm.dtype)
        if centered:
            product = product - mean * unit.total
        output, cosine = finish(product * rnorm, scale, gain, relu, input.dtype)
        return Result(output, cosine, rnorm, mean)


def cosine_conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    gain: float,
    centered: bool,
    relu: bool,
) -> Result:
    """act(gain · scale · c) for each receptive field of `input` (N, C, …), in 1, 2 or 3 dims."""
    with full_precision(input):
        dtype, dims = compute_dtype(input), input.dim() - 2
        unit = unit_weight(weight, bias, centered, dtype)
        rnorm, mean = field_stats(
            input, weight.shape[2:], stride, padding, dilation, groups, centered, bias is not None
        )
        product = CONVOLUTION[dims](
            input.to(dtype), unit.weight, unit.bias, stride, padding, dilation, groups
        )
        product = product.to(rnorm.dtype).unflatten(1, (groups, -1))
        if centered:
            total = unit.total.view(groups, -1, *[1] * dims)
            product = product - mean.unsqueeze(2) * total
        cosine = (product * rnorm.unsqueeze(2)).flatten(1, 2)
        output, cosine = finish(cosine, channelwise(scale, dims), gain, relu, input.dtype)
        return Result(output, cosine, rnorm, mean)
