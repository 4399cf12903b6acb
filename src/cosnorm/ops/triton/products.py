"""Products of a layer by torch, and tensors in the order in memory that a plan has of them."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from cosnorm.ops.eager import products as eager_products
from cosnorm.ops.reference.numerics import full_precision
from cosnorm.ops.triton.plan import Plan


def laid(x: Tensor, plan: Plan) -> Tensor:
    """A tensor of the layer in the memory order of the plan, at a round address."""
    if x.is_contiguous(memory_format=plan.format) and not x.data_ptr() & 15:
        return x
    return x.clone(memory_format=plan.format)


def flat(vector: Tensor) -> Tensor:
    return vector.clone(memory_format=torch.contiguous_format)


def in_rows(weight: Tensor, plan: Plan) -> Tensor:
    """A copy of the weights, or of their gradient, dense row by row as the plan has them."""
    like = {"dtype": weight.dtype, "device": weight.device}
    return torch.empty_strided(weight.shape, plan.weight_stride, **like).copy_(weight)


def product(plan: Plan, x: Tensor, v: Tensor, vb: Tensor | None) -> Tensor:
    # A launch takes the dtypes of its first call. float16 is float32 in some products; autocast
    # may be on where it was not, as in backward alone.
    if plan.dtype is not x.dtype or (
        torch.is_autocast_enabled(plan.kind)
        and torch.get_autocast_dtype(plan.kind) is not plan.dtype
    ):
        with full_precision(x):
            return product(plan, x.to(plan.dtype), v, vb)
    if plan.convolution is not None:
        return laid(torch.convolution(x, v, vb, *plan.convolution), plan)
    if plan.shaped is None or vb is None:
        return linear(x, v, vb)
    z = linear(x.view(plan.rows), v, vb)
    return z.resize_(plan.shaped)  # no view, which linear would give: callers may change y in place


def product_grad(
    plan: Plan, g: Tensor, x: Tensor, v: Tensor, fields: bool, units: bool
) -> tuple[Tensor | None, Tensor | None]:
    """dx₀, which lies as x does, and dv, as w."""
    if plan.dtype is not x.dtype or torch.is_autocast_enabled(plan.kind):  # as in `product`
        with full_precision(x):
            return product_grad(plan, g, x.to(plan.dtype), v, fields, units)
    if plan.convolution is not None:
        dx, dv, _ = eager_products.product_grad(g, x, v, plan.spec, (fields, units, False))
        if dv is not None and dv.stride() != plan.weight_stride and not plan.lies_as_weight(dv):
            dv = in_rows(dv, plan)
        return dx if dx is None else laid(dx, plan), dv
    dx = torch.matmul(g, v) if fields else None
    if units and plan.shaped is not None:
        g, x = g.view(-1, plan.units), x.view(plan.rows)
    return dx, torch.mm(g.t(), x) if units else None
