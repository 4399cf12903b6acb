"""A layer by Triton kernels around torch's product: see `kernels` for the passes, `plan` for how
they are launched. What is not served here, torch does.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import triton
from torch import Tensor

from cosnorm.ops.eager.steps import product_grad
from cosnorm.ops.reference.numerics import full_precision, like_scale
from cosnorm.ops.spec import Spec
from cosnorm.ops.triton.plan import Plan, plan_for, stream_of

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST = 1 << 30  # maps of statistics that a kernel can count
_HERE = nullcontext()


def serves(input: Tensor, weight: Tensor, spec: Spec) -> bool:
    """float64, transposed convolutions, over 2³⁰ fields and empty tensors are left to torch."""
    return (
        not spec.transposed
        and input.dtype in _DTYPES
        and weight.dtype in _DTYPES
        and 0 < input.numel() < _MOST * weight.shape[1]
        and weight.numel() > 0
        and _works(input.device)
    )


@triton.jit
def _touch(x_ptr):
    triton.language.store(x_ptr, 1.0)


@cache
def _works(device: torch.device) -> bool:
    """Whether Triton can build and run a kernel here; asked once for a device."""
    try:
        probe = torch.zeros(1, device=device)
        with _on(probe):
            _touch[1,](probe)
        return bool(probe.item() == 1)
    except Exception as fault:
        warnings.warn(
            f"Triton cannot run kernels on {device}, so torch computes the layers, more slowly: "
            f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}",
            stacklevel=2,
        )
        return False


def _on(tensor: Tensor) -> AbstractContextManager:
    """The device of a tensor as the current one."""
    if _one_device():
        return _HERE
    return torch.cuda.device_of(tensor)


@cache
def _one_device() -> bool:
    return torch.cuda.device_count() < 2


def _stream(tensor: Tensor) -> int:
    return stream_of(tensor.get_device()) if tensor.is_cuda else 0


def _ready(tensor: Tensor | None) -> Tensor | None:
    """A vector that lies dense at a round address."""
    if tensor is None or (tensor.is_contiguous() and not tensor.data_ptr() & 15):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _laid(x: Tensor, plan: Plan) -> Tensor:
    """An input, output or gradient in the memory order of the plan, at a round address."""
    if x.is_contiguous(memory_format=plan.format) and not x.data_ptr() & 15:
        return x
    return x.clone(memory_format=plan.format)


def _rows(weight: Tensor, plan: Plan) -> Tensor:
    weight = weight if plan.dense_rows else weight.contiguous()
    return weight.clone() if weight.data_ptr() & 15 else weight


def _exactly(input: Tensor, plan: Plan) -> AbstractContextManager:
    """Autocast off where it would cast the factors of a product: float16 is float32 there."""
    return _HERE if plan.dtype is input.dtype else full_precision(input)


def forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """y, and of what backward keeps: y or c, but of LEAN layers neither; the statistics; and v
    where it is a cast copy.
    """
    plan = plan_for(input, weight, bias, scale, spec)
    with _on(input):
        x, w = _laid(input, plan), _rows(weight, plan)
        bias, scale, stream = _ready(bias), _ready(scale), _stream(x)
        arena = torch.empty(plan.arena, dtype=torch.float32, device=x.device)
        sums = _sums(x, plan)
        v, vb = _empty_unit(w, bias, plan)
        plan.launch("prepare")(stream, (x, w, bias, v, vb, arena, sums), plan.lift)
        z = _product(plan, x, v, vb)
        y, c = _finished(plan, stream, z, x, arena, sums, None, scale, keep)
    if not keep:
        return y, []
    value = None if plan.lean else y if c is None else c
    return y, [value, arena, v if plan.keeps_unit else None]


def _product(plan: Plan, x: Tensor, v: Tensor, vb: Tensor | None) -> Tensor:
    with _exactly(x, plan):
        x = x if x.dtype is plan.dtype else x.to(plan.dtype)
        if plan.convolution is not None:
            return torch.convolution(x, v, vb, *plan.convolution)
        if x.dim() == 2:
            return torch.nn.functional.linear(x, v, vb)
        z = torch.nn.functional.linear(x.view(plan.rows), v, vb)
        return z.resize_(*x.shape[:-1], plan.units)  # no view: callers may change y in place


def _sums(x: Tensor, plan: Plan) -> Tensor | None:
    """Where THIN layers leave what they have summed up, for one direction."""
    return torch.empty(plan.sums, dtype=torch.float32, device=x.device) if plan.sums else None


def _empty_unit(w: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
    """Where unit weights go; cosines of weights in the dtype of the product need none."""
    if plan.raw:
        return w, bias
    v = torch.empty_like(w, dtype=plan.dtype)
    return v, None if bias is None else torch.empty_like(bias, dtype=plan.dtype)


def _finished(
    plan: Plan,
    stream: int,
    z: Tensor,
    x: Tensor,
    arena: Tensor,
    sums: Tensor | None,
    total: Tensor | None,
    scale: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """y, in place of the product where dtypes are equal, and c where backward keeps it."""
    z = _laid(z, plan)
    y = z if z.dtype == x.dtype else torch.empty_like(z, dtype=x.dtype)
    c = torch.empty_like(y) if keep and not plan.keeps_output else None
    launch = plan.launch("finish", keep)
    launch(stream, (z, y, c, sums, arena, total, scale), plan.spec.gain, plan.lift)
    return y, c


def infer(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    total: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
) -> Tensor:
    """y alone, of weights that are units already; total: Σv, for Pearson."""
    with _on(input):
        plan = plan_for(input, weight, bias, scale, spec, True)
        x, stream = _laid(input, plan), _stream(input)
        arena = torch.empty(plan.arena, dtype=torch.float32, device=x.device)
        sums, unread = _sums(x, plan), weight.detach()
        plan.launch("prepare")(stream, (x, unread, bias, unread, bias, arena, sums), 1.0)
        z = _product(plan, x, weight, bias)
        return _finished(plan, stream, z, x, arena, sums, _ready(total), _ready(scale), False)[0]


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Tensor | None],
    spec: Spec,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    value, arena, unit = kept
    assert arena is not None
    plan = plan_for(input, weight, bias, scale, spec)
    with _on(input):
        x, w = _laid(input, plan), _rows(weight, plan)
        dy, value = _laid(grad, plan), None if value is None else _laid(value, plan)
        b, s = _ready(bias), _ready(scale)
        units = need[1] or need[2]  # the projection of one is made of both
        need_bias, need_scale = units and bias is not None, need[3] and scale is not None
        shares = _shares(x, plan, need_bias + need_scale)
        g = torch.empty_like(dy, dtype=plan.dtype)
        v, vb = (unit, None) if unit is not None else _empty_unit(w, b, plan)
        stream = _stream(x)
        plan.launch("start_grad", need_bias, need_scale)(
            stream, (dy, value, arena, s, g, shares, w, b, v, vb), spec.gain, plan.lift
        )
        dx0, dv = _product_grad(plan, g, x, v, (need[0], units, False))
        dx, dw, db = _corrected(plan, stream, dx0, dv, shares, x, w, b, arena)
        dscale = None
        if need_scale and scale is not None and shares is not None:
            dscale = like_scale(shares[-plan.units :].sum(1), scale)
        return dx, dw, db, dscale


def _shares(x: Tensor, plan: Plan, kinds: int) -> Tensor | None:
    """Where blocks of positions leave their shares of every unit, for each kind of sum."""
    if not kinds:
        return None
    size = (kinds * plan.units, plan.blocks)
    return torch.empty(size, dtype=torch.float32, device=x.device)


def _product_grad(
    plan: Plan, g: Tensor, x: Tensor, v: Tensor, need: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    with _exactly(x, plan):
        like = x.shape
        x = x if x.dtype is plan.dtype else x.to(plan.dtype)
        if plan.convolution is None and x.dim() != 2:
            g, x = g.view(-1, plan.units), x.view(plan.rows)
        dx, dv, _ = product_grad(g, x, v, plan.spec, need)
        return dx if dx is None or dx.dim() == len(like) else dx.resize_(like), dv


def _corrected(
    plan: Plan,
    stream: int,
    dx0: Tensor | None,
    dv: Tensor | None,
    shares: Tensor | None,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    arena: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The last pass: dx₀ becomes dx in its place, dv becomes dw."""
    if dx0 is None and dv is None:
        return None, None, None
    dx = dw = db = None
    if dx0 is not None:
        dx0 = _laid(dx0, plan)
        dx = dx0 if dx0.dtype == x.dtype else torch.empty_like(dx0, dtype=x.dtype)
    if dv is not None:
        if dv.stride() != w.stride():
            dv = torch.empty_like(w, dtype=dv.dtype).copy_(dv)
        dw = dv if dv.dtype is w.dtype else torch.empty_like(w)
        db = None if b is None else torch.empty_like(b)
    sums = None if dx0 is None else _sums(x, plan)
    if sums is not None:
        plan.launch("spread")(stream, (arena, sums))
    launch = plan.launch("end_grad", dx0 is not None, dv is not None)
    launch(stream, (dx0, x, dx, arena, sums, dv, shares, w, b, dw, db), plan.lift)
    return dx, dw, db
