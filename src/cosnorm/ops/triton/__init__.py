"""A layer by Triton kernels around torch's product: see `kernels` for the passes, `plan` for how
they are launched. `early` is the room of layers that need other passes. What is not served here,
torch does.

On a GPU the host has to be as quick as torch's own layers, which it is in few calls alone: what a
plan knows is not asked again, and the passes are written one after the other, without helpers.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import triton
from torch import Tensor

from cosnorm.ops.reference.numerics import like_scale
from cosnorm.ops.spec import Spec
from cosnorm.ops.triton import early
from cosnorm.ops.triton.plan import Plan, plan_for, stream_of
from cosnorm.ops.triton.products import flat, in_rows, laid, product, product_grad

__all__ = ["backward", "early", "forward", "infer", "plan_for", "serves"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST = 1 << 30  # maps of statistics that a kernel can count


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


_working: dict[torch.device, bool] = {}


def _works(device: torch.device) -> bool:
    """Whether Triton can build and run a kernel here; asked once for a device."""
    if device in _working:
        return _working[device]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return True  # nothing can be asked now; what is captured has mostly run before
    try:
        with _synchronising(device):
            probe = torch.zeros(1, device=device)
            with torch.cuda.device_of(probe):
                _touch[1,](probe, enable_fp_fusion=True)  # pyright: ignore[reportCallIssue]
            _working[device] = bool(probe.item() == 1)
    except torch.OutOfMemoryError:
        return False  # that may pass
    except Exception as fault:
        _working[device] = False
        warnings.warn(
            f"Triton cannot run kernels on {device}, so torch computes the layers, more slowly: "
            f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}",
            stacklevel=2,
        )
    return _working[device]


@contextmanager
def _synchronising(device: torch.device) -> Iterator[None]:
    """Let the host wait for the device, where the user has it forbidden (`set_sync_debug_mode`).

    Where nothing is forbidden nothing is set: torch warns of the mode, whatever it is set to.
    """
    mode = torch.cuda.get_sync_debug_mode() if device.type == "cuda" else 0
    if mode == 0:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    plan: Plan,
    keep: bool,
    total: Tensor | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """y, and of what backward keeps: y or c, but of LEAN layers neither; the statistics; and v
    where it is a cast copy. total: Σv of folded Pearson layers.
    """
    if plan.several and torch.cuda.current_device() != plan.index:
        with torch.cuda.device(plan.index):
            return forward(input, weight, bias, scale, plan, keep, total)
    stream = stream_of(plan.index) if plan.on_cuda else 0
    x, w, s, lift = input, weight, scale, plan.lift
    at_x, at_w, at_b = x.data_ptr(), w.data_ptr(), None
    if at_x & 15 or not plan.lies:
        x = laid(x, plan)
        at_x = x.data_ptr()
    if at_w & 15 or not plan.dense_rows:
        w = in_rows(w, plan)
        at_w = w.data_ptr()
    if bias is not None:
        bias = bias if plan.flat and not bias.data_ptr() & 15 else flat(bias)
        at_b = bias.data_ptr()
    v, vb, at_v, at_vb, at_sums, sums = w, bias, at_w, at_b, None, None
    arena = torch.empty(plan.arena, dtype=torch.float32, device=plan.device)
    at_arena = arena.data_ptr()
    if plan.unit:
        v = torch.empty_like(w, dtype=plan.dtype)
        at_v = v.data_ptr()
        if bias is not None:
            vb = torch.empty_like(bias, dtype=plan.dtype)
            at_vb = vb.data_ptr()
    if plan.sums:
        sums = torch.empty(plan.sums, dtype=torch.float32, device=plan.device)
        at_sums = sums.data_ptr()
    plan.launches["prepare",](
        stream, (at_x, at_w, at_b, at_v, at_vb, at_arena, at_sums),
        (x, w, bias, v, vb, arena, sums), lift,
    )  # fmt: skip
    z = product(plan, x, v, vb)
    y = z if z.dtype is x.dtype else torch.empty_like(z, dtype=x.dtype)
    c = at_c = at_total = at_s = None
    if keep and not plan.keeps_output:
        c = torch.empty_like(y)
        at_c = c.data_ptr()
    if s is not None:
        s = s if plan.flat and not s.data_ptr() & 15 else flat(s)
        at_s = s.data_ptr()
    if total is not None:
        total = flat(total) if total.data_ptr() & 15 or not total.is_contiguous() else total
        at_total = total.data_ptr()
    plan.launches["finish", keep](
        stream, (z.data_ptr(), y.data_ptr(), at_c, at_sums, at_arena, at_total, at_s),
        (z, y, c, sums, arena, total, s), plan.gain, lift,
    )  # fmt: skip
    if not keep:
        return y, []
    value = None if plan.lean else y if c is None else c
    return y, [value, arena, v if plan.keeps_unit else None]


def infer(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    total: Tensor | None,
    scale: Tensor | None,
    plan: Plan,
) -> Tensor:
    """y alone, of weights that are units already; total: Σv, for Pearson."""
    return forward(input, weight, bias, scale, plan, False, total)[0]


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Tensor | None],
    plan: Plan,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    if plan.several and torch.cuda.current_device() != plan.index:
        with torch.cuda.device(plan.index):
            return backward(grad, input, weight, bias, scale, kept, plan, need)
    stream = stream_of(plan.index) if plan.on_cuda else 0
    (value, arena, v), lift = kept, plan.lift
    assert arena is not None
    # What was saved comes back as hooks give it: other places, and other orders in memory.
    x, w, b, s, dy = laid(input, plan), weight, bias, scale, laid(grad, plan)
    at_x, at_w, at_arena = x.data_ptr(), w.data_ptr(), arena.data_ptr()
    at_value = at_b = at_s = at_vb = at_shares = vb = shares = None
    if at_w & 15 or (w.stride() != plan.weight_stride and not plan.lies_as_weight(w)):
        w = in_rows(w, plan)
        at_w = w.data_ptr()
    if at_arena & 15 or not arena.is_contiguous():
        arena = flat(arena)
        at_arena = arena.data_ptr()
    if value is not None:
        value = laid(value, plan)
        at_value = value.data_ptr()
    if b is not None:
        b = b if b.is_contiguous() and not b.data_ptr() & 15 else flat(b)
        at_b = b.data_ptr()
    if s is not None:
        s = s if s.is_contiguous() and not s.data_ptr() & 15 else flat(s)
        at_s = s.data_ptr()
    fields, units = need[0], need[1] or need[2]  # the projection of one is made of both
    need_bias, need_scale = units and b is not None, need[3] and s is not None
    if need_bias or need_scale:
        # Where blocks of positions leave their shares of every unit, for each kind of sum.
        size = ((need_bias + need_scale) * plan.blocks, plan.units)
        shares = torch.empty(size, dtype=torch.float32, device=plan.device)
        at_shares = shares.data_ptr()
    if v is None:
        v, vb, at_vb = w, b, at_b
        if plan.unit:
            v = torch.empty_like(w, dtype=plan.dtype)
            vb = b if b is None else torch.empty_like(b, dtype=plan.dtype)
            at_vb = vb if vb is None else vb.data_ptr()
    at_v, g = v.data_ptr(), torch.empty_like(dy, dtype=plan.dtype)
    plan.launches["start_grad", need_bias, need_scale](
        stream,
        (dy.data_ptr(), at_value, at_arena, at_s, g.data_ptr(), at_shares, at_w, at_b, at_v, at_vb),
        (dy, value, arena, s, g, shares, w, b, v, vb), plan.gain, lift,
    )  # fmt: skip
    dx = dw = db = dscale = None
    if need_scale and scale is not None and shares is not None:
        dscale = like_scale(shares[-plan.blocks :].sum(0), scale)
    if not (fields or units):
        return dx, dw, db, dscale
    dx0, dv = product_grad(plan, g, x, v, fields, units)
    at_dx0 = at_dx = at_sums = at_dv = at_dw = at_db = sums = None
    if dx0 is not None:
        dx = dx0 if dx0.dtype is x.dtype else torch.empty_like(dx0, dtype=x.dtype)
        at_dx0, at_dx = dx0.data_ptr(), dx.data_ptr()
        if plan.sums:
            sums = torch.empty(plan.sums, dtype=torch.float32, device=plan.device)
            at_sums = sums.data_ptr()
            plan.launches["spread",](stream, (at_arena, at_sums), (arena, sums))
    if dv is not None:
        dw = dv if dv.dtype is w.dtype else torch.empty_like(w)
        at_dv, at_dw = dv.data_ptr(), dw.data_ptr()
        if b is not None:
            db = torch.empty_like(b)
            at_db = db.data_ptr()
    plan.launches["end_grad", fields, units](
        stream,
        (at_dx0, at_x, at_dx, at_arena, at_sums, at_dv, at_shares, at_w, at_b, at_dw, at_db),
        (dx0, x, dx, arena, sums, dv, shares, w, b, dw, db), lift,
    )  # fmt: skip
    return dx, dw, db, dscale
