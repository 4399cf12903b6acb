"""The layers with every vector written out, in float64: what all of their tests answer to.

Nothing here is shared with the package. A plain convolution's fields are gathered entry by entry
from an input padded by explicit indices; the vectors of an output of a transposed convolution are
listed from the rule `output = input·stride - padding + tap·dilation`. Autograd gives the gradients.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def similarity(x: Tensor, w: Tensor, centered: bool) -> Tensor:
    """Cosine or Pearson along the last dimension, 0 where a vector has no direction."""
    return (direction(x, centered) * direction(w, centered)).sum(-1)


def direction(v: Tensor, centered: bool) -> Tensor:
    """v/|v| or (v-μ)/|v-μ|, the zero vector for one that is zero or constant."""
    assert v.dtype == torch.float64
    if v.shape[-1] == 0:
        return v
    square = v.square().sum(-1, keepdim=True)
    v = v - v.mean(-1, keepdim=True) if centered else v
    norm2 = v.square().sum(-1, keepdim=True)
    alive = norm2 > 16 * torch.finfo(v.dtype).eps ** 2 * square
    return torch.where(alive, v, 0.0) / torch.where(alive, norm2, 1.0).sqrt()


# In elementary functions, apart from torch's own.
ACTIVATIONS = {
    None: lambda y: y,
    "relu": lambda y: torch.where(y > 0, y, 0.0),
    "gelu": lambda y: y * (1 + torch.erf(y / 2**0.5)) / 2,
    "silu": lambda y: y / (1 + torch.exp(-y)),
    "hardswish": lambda y: y * ((y + 3) / 6).clamp(0, 1),
}


def finish(
    c: Tensor, scale: float | Tensor | None, activation: str | None, unit_dim: int
) -> Tensor:
    """y = act(scale · c), the units along `unit_dim`."""
    if isinstance(scale, Tensor):
        scale = scale.reshape([-1 if i == unit_dim else 1 for i in range(c.dim())])
    y = c if scale is None else c * scale
    return ACTIVATIONS[activation](y)


def linear(x, w, b=None, *, centered=False, scale=None, activation=None) -> Tensor:
    if b is not None:
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        w = torch.cat([w, b[:, None]], -1)
    c = similarity(x.unsqueeze(-2), w, centered)
    return finish(c, scale, activation, c.dim() - 1)


def padded_indices(length: int, before: int, after: int, mode: str) -> list[int | None]:
    """Where each entry of the padded axis comes from, None for a zero."""
    found: list[int | None] = []
    for i in range(-before, length + after):
        if 0 <= i < length:
            found.append(i)
        elif mode == "zeros":
            found.append(None)
        elif mode == "replicate":
            found.append(min(max(i, 0), length - 1))
        elif mode == "circular":
            found.append(i % length)
        else:
            assert mode == "reflect"
            found.append(-i if i < 0 else 2 * (length - 1) - i)
    return found


def pad(x: Tensor, sides: Sequence[tuple[int, int]], mode: str = "zeros") -> Tensor:
    """x with its last len(sides) axes padded, (before, after) for each."""
    for axis, (before, after) in enumerate(sides, start=x.dim() - len(sides)):
        source = padded_indices(x.shape[axis], before, after, mode)
        picked = x.index_select(axis, torch.tensor([i or 0 for i in source], dtype=torch.long))
        mask = torch.tensor([i is not None for i in source])
        x = torch.where(mask.view(-1, *[1] * (x.dim() - 1 - axis)), picked, 0.0)
    return x


def sides_of(padding, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(r // 2, r - r // 2) for r in reach]
    return [(p, p) for p in each(padding, len(kernel))]


def each(value, dims: int) -> list[int]:
    return [value] * dims if isinstance(value, int) else list(value)


def conv(
    x, w, b=None, stride=1, padding=0, dilation=1, groups=1,
    *, centered=False, scale=None, activation=None, padding_mode="zeros",
) -> Tensor:  # fmt: skip
    dims = w.dim() - 2
    if x.dim() == dims + 1:
        return conv(
            x[None], w, b, stride, padding, dilation, groups,
            centered=centered, scale=scale, activation=activation, padding_mode=padding_mode,
        )[0]  # fmt: skip
    kernel, stride, dilation = list(w.shape[2:]), each(stride, dims), each(dilation, dims)
    x = pad(x, sides_of(padding, kernel, dilation), padding_mode)
    size = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]

    def source(out: Sequence[int], tap: Sequence[int]) -> int:
        steps = zip(out, stride, tap, dilation, strict=True)
        return flat_index([o * s + t * d for o, s, t, d in steps], x.shape[2:])

    taps = list(itertools.product(*map(range, kernel)))
    where = [[source(out, tap) for tap in taps] for out in itertools.product(*map(range, size))]
    entries = x.flatten(2)[:, :, torch.tensor(where, dtype=torch.long)]  # (N, C, fields, taps)
    fields = entries.unflatten(1, (groups, -1)).permute(0, 1, 3, 2, 4).flatten(3)
    filters = w.flatten(1).unflatten(0, (groups, -1))  # (groups, out, n)
    if b is not None:
        fields = torch.cat([fields, torch.ones_like(fields[..., :1])], -1)
        filters = torch.cat([filters, b.view(groups, -1, 1)], -1)
    c = similarity(fields[:, :, None], filters[None, :, :, None], centered)
    c = c.flatten(1, 2).unflatten(2, size)
    return finish(c, scale, activation, 1)


def flat_index(position: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for p, n in zip(position, shape, strict=True):
        assert 0 <= p < n
        flat = flat * n + p
    return flat


def conv_transpose(
    x, w, b=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1,
    *, centered=False, scale=None, activation=None,
) -> Tensor:  # fmt: skip
    dims = w.dim() - 2
    if x.dim() == dims + 1:
        return conv_transpose(
            x[None], w, b, stride, padding, output_padding, groups, dilation,
            centered=centered, scale=scale, activation=activation,
        )[0]  # fmt: skip
    kernel = list(w.shape[2:])
    stride, padding, extra, dilation = (
        each(v, dims) for v in (stride, padding, output_padding, dilation)
    )
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, o, d in zip(
            x.shape[2:], kernel, stride, padding, extra, dilation, strict=True
        )
    ]
    inputs = x.flatten(2).unflatten(1, (groups, -1))  # (N, groups, C, positions)
    weights = w.flatten(2).unflatten(0, (groups, -1)).movedim(1, 2)  # (groups, out, C, taps)
    values = []
    for out in itertools.product(*map(range, size)):
        pairs = reaching(out, x.shape[2:], kernel, stride, padding, dilation)
        at = torch.tensor([flat_index(i, x.shape[2:]) for i, _ in pairs], dtype=torch.long)
        by = torch.tensor([flat_index(t, kernel) for _, t in pairs], dtype=torch.long)
        fields = inputs[..., at].flatten(2)[:, :, None]
        filters = weights[..., by].flatten(2)[None]
        if b is not None:
            one = fields.new_ones(*fields.shape[:-1], 1)
            fields = torch.cat([fields, one], -1)
            filters = torch.cat([filters, b.view(1, groups, -1, 1)], -1)
        c = similarity(fields, filters, centered)
        values.append(c.expand(x.shape[0], *c.shape[1:]).flatten(1, 2))
    return finish(torch.stack(values, -1).unflatten(2, size), scale, activation, 1)


def reaching(out, size, kernel, stride, padding, dilation) -> list[tuple[tuple, tuple]]:
    """(input position, tap) of everything that reaches the output position `out`."""
    axes = [
        [(i, t) for i in range(n) for t in range(k) if i * s - p + t * d == o]
        for o, n, k, s, p, d in zip(out, size, kernel, stride, padding, dilation, strict=True)
    ]
    return [
        (tuple(i for i, _ in pair), tuple(t for _, t in pair)) for pair in itertools.product(*axes)
    ]
