"""The linear layer in plain torch."""

import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.reference.numerics import (
    centred_norm,
    compute_dtype,
    finish,
    full_precision,
    inverse_norm,
    moments,
    stats_dtype,
    unit_weight,
)
from cosnorm.ops.spec import Spec


def row_stats(input: Tensor, centered: bool, bias: bool) -> tuple[Tensor, Tensor]:
    """(1/|x|, μ) of each row, with a last dimension of one."""
    x = input.to(stats_dtype(input.dtype))
    if not centered:
        return inverse_norm(x.square().sum(-1, keepdim=True) + float(bias)), x.new_empty(0)
    mean, m2 = (t.unsqueeze(-1) for t in moments(x, -1))
    return centred_norm(x.shape[-1], mean, m2, bias)


def cosine_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec
) -> Tensor:
    """act(gain · scale · c) for each row of `input` (…, in) and of `weight` (out, in)."""
    with full_precision(input):
        dtype = compute_dtype(input)
        unit = unit_weight(weight, bias, spec.centered, dtype)
        rnorm, mean = row_stats(input, spec.centered, bias is not None)
        product = F.linear(input.to(dtype), unit.weight, unit.bias).to(rnorm.dtype)
        if spec.centered:
            product = product - mean * unit.total
        return finish(product * rnorm, scale, spec, input.dtype)
