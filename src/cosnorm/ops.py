"""The ops as torch.library knows them: schema, fake, autograd and vmap of each.

`cosnorm::cosine_linear`, `cosine_conv1d/2d/3d` and `cosine_conv_transpose1d/2d/3d`, each with its
`_backward`. An op returns (output, cosine, rnorm, mean, weight_stats, unit), of which callers use
the first and backward the rest. Backward is the fast formula; where it has to be differentiated
again, the reference is differentiated instead.

The dispatcher takes longer to reach an op and its backward than a small layer takes. `call` goes
around it where nobody is there who would look at an op on the way.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor  # pyright: ignore[reportMissingImports]
from torch.autograd import forward_ad

from cosnorm import reference
from cosnorm.families import FAMILIES, Family
from cosnorm.kernels.steps import Kept, keeps_unit, memory_format
from cosnorm.reference import keeps_cosine, stats_dtype

_TENSORS = "Tensor input, Tensor weight, Tensor? bias, Tensor? scale"
_KEPT = "Tensor output, Tensor cosine, Tensor rnorm, Tensor mean, Tensor weight_stats, Tensor unit"
_TAIL = "float gain, bool centered, bool relu"

library = torch.library.Library("cosnorm", "DEF")


def is_unseen(*tensors: Tensor | None) -> bool:
    """Whether a call is between tensors in memory and autograd alone: no compiler, no tracer, no
    mode that looks at ops, no transform, no subclass, nothing that torch would resolve on the way.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    return all(t is None or _is_in_memory(t) for t in tensors)


def _is_in_memory(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type in ("cpu", "cuda")
    lazy = tensor.is_neg() or tensor._is_zerotensor() or is_legacy_batchedtensor(tensor)
    return plain and not lazy


def goes_direct(*tensors: Tensor | None) -> bool:
    """Whether a call may go around the dispatcher. A mode of torch's functions would be asked at
    every step inside."""
    return not torch._C._len_torch_function_stack() and is_unseen(*tensors)


def wants_reference() -> bool:
    """Whether a gradient is itself to be differentiated, backward or forward."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


def pullback(
    function: Callable[..., reference.Result],
    grad: Tensor,
    tensors: Sequence[Tensor | None],
    statics: Sequence[Any],
    need: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients by differentiating the reference, themselves differentiable."""
    wanted = [i for i, wants in enumerate(need) if wants and tensors[i] is not None]

    def output(*chosen: Tensor) -> Tensor:
        full = list(tensors)
        for i, tensor in zip(wanted, chosen, strict=True):
            full[i] = tensor
        return function(*full, *statics).output

    grads = torch.func.vjp(output, *[tensors[i] for i in wanted])[1](grad)
    result: list[Tensor | None] = [None] * len(tensors)
    for i, g in zip(wanted, grads, strict=True):
        result[i] = g
    return result


def _fake(family: Family, input, weight, bias, scale, *statics) -> tuple[Tensor, ...]:
    shape, field, units = family.shapes(input, weight, *statics)
    centered, relu = statics[-2:]
    layout = memory_format(input, weight) if input.dim() == weight.dim() else None
    output = input.new_empty(shape)
    if layout is not None:
        output = output.contiguous(memory_format=layout)
    wide = stats_dtype(input.dtype)
    return (
        output,
        torch.empty_like(output) if keeps_cosine(scale, relu) else input.new_empty(0),
        input.new_empty(field, dtype=wide),
        input.new_empty(field if centered else (0,), dtype=wide),
        weight.new_empty((2, units) if units else (0,), dtype=stats_dtype(weight.dtype)),
        _empty_unit(input, weight) if units else input.new_empty(0),
    )


def _empty_unit(input: Tensor, weight: Tensor) -> Tensor:
    if not keeps_unit(input, weight):
        return input.new_empty(0)
    dtype, layout = reference.compute_dtype(input), memory_format(weight)
    return torch.empty_like(weight, dtype=dtype, memory_format=layout)


def _fake_backward(grad, input, weight, bias, scale, *rest) -> tuple[Tensor, ...]:
    return tuple(
        input.new_empty(0) if t is None or not wants else empty_settled(t, (input, weight))
        for t, wants in zip((input, weight, bias, scale), rest[-1], strict=True)
    )


def empty_settled(like: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    return torch.empty_like(like, memory_format=_grad_format(like, pair))


def settled(grad: Tensor, like: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    """A gradient in the memory layout that has been promised for it; pair: input and weight."""
    return grad.contiguous(memory_format=_grad_format(like, pair))


def _grad_format(like: Tensor, pair: tuple[Tensor, Tensor]) -> torch.memory_format:
    """A gradient lies as its tensor does; that of the input as the output of the layer."""
    if like.dim() != pair[1].dim():
        return torch.contiguous_format
    return memory_format(*pair) if like is pair[0] else memory_format(like)


def _run(family: Family, input, weight, bias, scale, *statics) -> tuple[Tensor, ...]:
    output, *rest = laid_out(family.forward(input, weight, bias, scale, *statics), input, weight)
    return owned(output), *rest


def laid_out(kept: Kept, input: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """In the memory layouts that `_fake` has promised."""
    output, cosine, *stats, unit = kept
    if input.dim() == weight.dim():
        layout = memory_format(input, weight)
        output = output.contiguous(memory_format=layout)
        cosine = cosine.contiguous(memory_format=layout) if cosine.dim() > 1 else cosine
    if unit.dim() > 1:
        unit = unit.contiguous(memory_format=memory_format(weight))
    return output, cosine, *(t.contiguous() for t in stats), unit


def owned(output: Tensor) -> Tensor:
    """A tensor that is no view: of an op with several outputs, autograd lets no view be changed."""
    return torch.ops.aten._unsafe_view(output, output.shape) if output._is_view() else output


def _run_backward(family: Family, grad, input, weight, bias, scale, *rest) -> tuple[Tensor, ...]:
    kept, statics = Kept(*rest[:6]), rest[6:]
    grads = family.backward(grad, input, weight, bias, scale, kept, *statics)
    pair = (input, weight)
    return tuple(
        input.new_empty(0) if g is None or t is None or not wants else settled(g, t, pair)
        for g, t, wants in zip(grads, (input, weight, bias, scale), statics[-1], strict=True)
    )


def _setup_context(ctx, inputs, output) -> None:
    input, weight, bias, scale, *statics = inputs
    y, cosine, *stats = output
    kept = cosine if keeps_cosine(scale, statics[-1]) else y
    ctx.save_for_backward(input, weight, bias, scale, kept, *stats)
    ctx.statics = statics
    ctx.set_materialize_grads(False)


def _autograd(family: Family, name: str, ctx, grad, *_):
    none = (None,) * len(ctx.statics)
    need = [bool(n) for n in ctx.needs_input_grad[:4]]
    if grad is None:
        return (None, None, None, None, *none)
    input, weight, bias, scale, kept, *stats = ctx.saved_tensors
    tensors = (input, weight, bias, scale)
    if wants_reference():
        return (*pullback(family.reference, grad, tensors, ctx.statics, need), *none)
    if goes_direct(grad, *tensors):
        op = partial(_run_backward, family)
    else:
        op = getattr(torch.ops.cosnorm, f"{name}_backward")
    # One of output and cosine was kept; the other place takes the same tensor, unread.
    grads = op(grad, *tensors, kept, kept, *stats, *ctx.statics, need)
    return (*(g if wants else None for g, wants in zip(grads, need, strict=True)), *none)


class CosineLayer(torch.autograd.Function):
    """What torch.library makes of an op for autograd, for `call`: arguments of the op, its name."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, name = arguments
        ctx.name = name
        outputs = _run(FAMILIES[name], *inputs)
        _setup_context(ctx, inputs, outputs)
        return outputs[0]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return *_autograd(FAMILIES[ctx.name], ctx.name, ctx, grad), None


def call(name: str, *arguments: Any) -> Tensor:
    """The output of an op."""
    tensors = arguments[:4]
    if not goes_direct(*tensors):
        return getattr(torch.ops.cosnorm, name)(*arguments)[0]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return CosineLayer.apply(*arguments, name)  # pyright: ignore[reportReturnType]
    return _run(FAMILIES[name], *arguments)[0]


def _vmap(name: str, info, in_dims, input, weight, bias, scale, *statics):
    if all(d is None for d in in_dims[1:4]) and in_dims[0] is not None:
        return _vmap_input(name, input.movedim(in_dims[0], 0), weight, bias, scale, statics)

    return _loop(
        getattr(torch.ops.cosnorm, name), info, in_dims, input, weight, bias, scale, *statics
    )


def _loop(op: Callable[..., Sequence[Tensor]], info, in_dims, *args):
    """One call for each, stacked: within a rule of vmap there is no calling vmap again."""

    def call(pick: Callable[[Tensor, int], Tensor]) -> Sequence[Tensor]:
        pairs = zip(args, in_dims, strict=True)
        return op(*(pick(a, d) if isinstance(d, int) else a for a, d in pairs))

    if info.batch_size:
        each = [call(lambda a, d, i=i: a.select(d, i)) for i in range(info.batch_size)]
        stacked = tuple(torch.stack(outputs) for outputs in zip(*each, strict=True))
    else:  # nothing to call with, but the shapes of what would come
        one = call(lambda a, d: a.new_zeros([n for i, n in enumerate(a.shape) if i != d]))
        stacked = tuple(t.new_empty((0, *t.shape)) for t in one)
    return stacked, (0,) * len(stacked)


def _vmap_input(name: str, input, weight, bias, scale, statics):
    """Only the input is batched: its extra dimension joins the batch."""
    op = getattr(torch.ops.cosnorm, name)
    if weight.dim() == 2:
        outputs = op(input, weight, bias, scale, *statics)
        return tuple(outputs), tuple(
            0 if i < 4 and t.dim() > 1 else None for i, t in enumerate(outputs)
        )
    outputs = op(input.flatten(0, 1), weight, bias, scale, *statics)
    size = input.shape[:2]
    batched = [i < 4 and t.dim() > 2 for i, t in enumerate(outputs)]
    pairs = list(zip(outputs, batched, strict=True))
    maps = tuple(t.unflatten(0, size) if is_map else t for t, is_map in pairs)
    return maps, tuple(0 if is_map else None for is_map in batched)


def _register(name: str, family: Family) -> None:
    returns = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    backward = f"{name}_backward"
    library.define(f"{name}({_TENSORS}, {family.statics}{_TAIL}) -> {returns}")
    library.define(
        f"{backward}(Tensor grad, {_TENSORS}, {_KEPT}, {family.statics}{_TAIL}, bool[] need)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    )
    library.impl(name, partial(_run, family), "CompositeExplicitAutograd")
    library.impl(backward, partial(_run_backward, family), "CompositeExplicitAutograd")
    torch.library.register_fake(f"cosnorm::{name}", partial(_fake, family), lib=library)
    torch.library.register_fake(f"cosnorm::{backward}", _fake_backward, lib=library)
    torch.library.register_autograd(
        f"cosnorm::{name}",
        partial(_autograd, family, name),
        setup_context=_setup_context,
        lib=library,
    )
    torch.library.register_vmap(f"cosnorm::{name}", partial(_vmap, name), lib=library)
    looped = partial(_loop, getattr(torch.ops.cosnorm, backward))
    torch.library.register_vmap(f"cosnorm::{backward}", looped, lib=library)


fake_conv = partial(_fake, FAMILIES["cosine_conv2d"])

for _name, _family in FAMILIES.items():
    _register(_name, _family)
