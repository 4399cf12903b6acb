"""The passes of a linear layer whose rows are normalised before its product: `kernels.early`.

Forward is one launch and the product, which is y; nothing of y is kept. Backward makes x̂ again from
x, which the layer before holds anyway: one launch, the two products, one launch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cosnorm.ops.triton.plan import Plan, stream_of
from cosnorm.ops.triton.products import flat, in_rows, laid, product, product_grad


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    plan: Plan,
    keep: bool,
) -> tuple[Tensor, list[Tensor | None]]:
    """y, and of what backward keeps the statistics, and v, the copy of wider weights."""
    if plan.several and torch.cuda.current_device() != plan.index:
        with torch.cuda.device(plan.index):
            return forward(input, weight, bias, scale, plan, keep)
    stream = stream_of(plan.index) if plan.on_cuda else 0
    x, w, b, at_b = input, weight, bias, None
    at_x, at_w = x.data_ptr(), w.data_ptr()
    if at_x & 15 or not plan.lies:
        x = laid(x, plan)
        at_x = x.data_ptr()
    if at_w & 15 or not plan.dense_rows:
        w = in_rows(w, plan)
        at_w = w.data_ptr()
    if b is not None:
        b = b if plan.flat and not b.data_ptr() & 15 else flat(b)
        at_b = b.data_ptr()
    arena = torch.empty(plan.arena, dtype=torch.float32, device=plan.device)
    hat = torch.empty((plan.rows[0], plan.pitch), dtype=plan.dtype, device=plan.device)
    v = torch.empty((plan.units, plan.pitch), dtype=plan.dtype, device=plan.device)
    plan.launches["normalise", True, False, False](
        stream, (at_x, at_w, at_b, v.data_ptr(), hat.data_ptr(), arena.data_ptr(), None, None),
        (x, w, b, v, hat, arena, None, None),
    )  # fmt: skip
    y = product(plan, hat, v, None)
    if plan.shaped is not None:
        y.resize_(plan.shaped)  # no view: callers may change y in place
    return y, [arena, v] if keep else []


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Tensor | None],
    plan: Plan,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    if plan.several and torch.cuda.current_device() != plan.index:
        with torch.cuda.device(plan.index):
            return backward(grad, input, weight, bias, scale, kept, plan, need)
    stream = stream_of(plan.index) if plan.on_cuda else 0
    arena, unit = kept
    assert arena is not None and unit is not None
    # What was saved comes back as hooks give it: other places, and other orders in memory.
    x, w, b, dy = laid(input, plan), weight, bias, laid(grad, plan)
    at_x, at_w, at_b, at_arena = x.data_ptr(), w.data_ptr(), None, arena.data_ptr()
    if at_w & 15 or (w.stride() != plan.weight_stride and not plan.lies_as_weight(w)):
        w = in_rows(w, plan)
        at_w = w.data_ptr()
    if at_arena & 15 or not arena.is_contiguous():
        arena = flat(arena)
        at_arena = arena.data_ptr()
    if b is not None:
        b = b if b.is_contiguous() and not b.data_ptr() & 15 else flat(b)
        at_b = b.data_ptr()
    (rows, depth), fields, units = plan.rows, need[0], need[1] or need[2]
    hat = shares = at_hat = at_shares = None
    if units:
        hat = torch.empty((rows, depth), dtype=plan.dtype, device=plan.device)
        at_hat = hat.data_ptr()
        if b is not None:
            shares = torch.empty((plan.blocks, plan.units), dtype=torch.float32, device=plan.device)
            at_shares = shares.data_ptr()
    v = unit[:, :depth]  # without the bias's entry
    if units or b is not None:
        plan.launches["normalise", units, True, units and b is not None](
            stream, (at_x, at_w, at_b, None, at_hat, at_arena, dy.data_ptr(), at_shares),
            (x, w, b, None, hat, arena, dy, shares),
        )  # fmt: skip
    if not (fields or units):
        return None, None, None, None
    dx, dv = product_grad(plan, dy, x if hat is None else hat, v, fields, units)
    dw = db = at_dx = at_dv = at_dw = at_db = None
    if dx is not None:
        at_dx = dx.data_ptr()
    if dv is not None:
        dw = dv if dv.dtype is w.dtype else torch.empty_like(w)
        at_dv, at_dw = dv.data_ptr(), dw.data_ptr()
        if b is not None:
            db = torch.empty_like(b)
            at_db = db.data_ptr()
    plan.launches["end_early", fields, units](
        stream, (at_dx, at_x, at_dx, at_arena, at_dv, at_shares, at_w, at_b, at_dw, at_db),
        (dx, x, dx, arena, dv, shares, w, b, dw, db),
    )  # fmt: skip
    return dx, dw, db, None
