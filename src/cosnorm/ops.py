"""The ops as torch.library knows them: schema, fake, autograd and vmap of each.

`cosnorm::cosine_linear`, `cosine_conv1d/2d/3d` and `cosine_conv_transpose1d/2d/3d`, each with its
`_backward`. An op returns (output, cosine, rnorm, mean, weight_stats, unit), of which callers use
the first and backward the rest. Backward is the fast formula; where it has to be differentiated
again, the reference is differentiated instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import register_decomposition

from cosnorm import algorithm, reference, transposed
from cosnorm.kernels.steps import (
    LINEAR,
    Geometry,
    Kept,
    keeps_unit,
    memory_format,
    output_size,
)
from cosnorm.reference import keeps_cosine, stats_dtype

_TENSORS = "Tensor input, Tensor weight, Tensor? bias, Tensor? scale"
_KEPT = "Tensor output, Tensor cosine, Tensor rnorm, Tensor mean, Tensor weight_stats, Tensor unit"
_TAIL = "float gain, bool centered, bool relu"
_CONV = "int[] stride, int[] padding, int[] dilation, int groups, "
_TRANSPOSE = "int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation, "

library = torch.library.Library("cosnorm", "DEF")


@dataclass(frozen=True)
class Family:
    """What the ops of one kind have in common; the static arguments follow four tensors."""

    statics: str
    reference: Callable[..., reference.Result]
    forward: Callable[..., Kept]
    backward: Callable[..., Sequence[Tensor | None]]
    shapes: Callable[..., tuple[Sequence[int], Sequence[int], int]]


def _linear_forward(input, weight, bias, scale, gain, centered, relu) -> Kept:
    if input.dim() == 2:
        return algorithm.forward(input, weight, bias, scale, LINEAR, gain, centered, relu)
    rows = input.reshape(-1, input.shape[-1])
    kept = algorithm.forward(rows, weight, bias, scale, LINEAR, gain, centered, relu)
    lead = input.shape[:-1]

    def unfold(map: Tensor) -> Tensor:
        return map.view(*lead, map.shape[-1]) if map.dim() == 2 else map

    return _each_map(kept, unfold)


def _each_map(kept: Kept, change: Callable[[Tensor], Tensor]) -> Kept:
    output, cosine, rnorm, mean = map(change, kept[:4])
    return Kept(output, cosine, rnorm, mean, *kept[4:])


def _linear_backward(grad, input, weight, bias, scale, kept, gain, centered, relu, need):
    def fold(map: Tensor) -> Tensor:
        return map.reshape(-1, map.shape[-1]) if map.numel() or map.dim() > 1 else map

    kept = _each_map(kept, fold)
    dx, *rest = algorithm.backward(
        fold(grad),
        fold(input),
        weight,
        bias,
        scale,
        kept,
        LINEAR,
        gain,
        centered,
        relu,
        need,
    )
    return None if dx is None else dx.view(input.shape), *rest


def _conv_forward(input, weight, bias, scale, stride, padding, dilation, groups, *tail) -> Kept:
    geometry = Geometry(stride, padding, dilation, groups)
    return algorithm.forward(input, weight, bias, scale, geometry, *tail)


def _conv_backward(
    grad, input, weight, bias, scale, kept, stride, padding, dilation, groups, *tail
):
    geometry = Geometry(stride, padding, dilation, groups)
    return algorithm.backward(grad, input, weight, bias, scale, kept, geometry, *tail)


def _transpose_forward(input, weight, bias, scale, *statics) -> Kept:
    result = transposed.cosine_conv_transpose(input, weight, bias, scale, *statics)
    none = result.rnorm.new_empty(0)
    unit = result.output.new_empty(0)
    return Kept(result.output, result.cosine, none, none.clone(), none.clone(), unit)


def _transpose_backward(grad, input, weight, bias, scale, kept, *statics):
    geometry, tail = transposed.Geometry(*statics[:5]), statics[5:]
    return transposed.cosine_conv_transpose_backward(
        grad, input, weight, bias, scale, kept.output, kept.cosine, geometry, *tail
    )


def _linear_shapes(input, weight, *_):
    return (*input.shape[:-1], weight.shape[0]), (*input.shape[:-1], 1), weight.shape[0]


def _conv_shapes(input, weight, stride, padding, dilation, groups, *_):
    geometry = Geometry(stride, padding, dilation, groups)
    size = output_size(input.shape[2:], weight.shape[2:], geometry)
    batch, out = input.shape[0], weight.shape[0]
    return (batch, out, *size), (batch, groups, *size), out


def _transpose_shapes(input, weight, stride, padding, output_padding, groups, dilation, *_):
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, o, d in zip(
            input.shape[2:],
            weight.shape[2:],
            stride,
            padding,
            output_padding,
            dilation,
            strict=True,
        )
    ]
    return (input.shape[0], weight.shape[1] * groups, *size), (0,), 0


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
    if torch.is_grad_enabled():
        return (*pullback(family.reference, grad, tensors, ctx.statics, need), *none)
    op = getattr(torch.ops.cosnorm, f"{name}_backward")
    # One of output and cosine was kept; the other place takes the same tensor, unread.
    grads = op(grad, *tensors, kept, kept, *stats, *ctx.statics, need)
    return (*(g if wants else None for g, wants in zip(grads, need, strict=True)), *none)


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


def _by_reference(family: Family, input, weight, bias, scale, *statics) -> Kept:
    """The op in torch's own ops, which exporters can take apart."""
    if family.forward is _transpose_forward:
        return _transpose_forward(input, weight, bias, scale, *statics)
    result = family.reference(input, weight, bias, scale, *statics)
    stats = reference.weight_stats(weight, bias, statics[-2])
    unit = _empty_unit(input, weight)
    if unit.numel():
        rnorm, mean = (t.view(-1, *[1] * (weight.dim() - 1)) for t in stats)
        unit = ((weight.to(stats.dtype) - mean) * rnorm).to(unit.dtype)
    return Kept(*result, stats, unit)


def _decomposition(family: Family, input, weight, bias, scale, *statics) -> tuple[Tensor, ...]:
    """What exporters such as torch.onnx's put in the place of an op they don't know."""
    kept = _by_reference(family, input, weight, bias, scale, *statics)
    return laid_out(kept, input, weight)


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
    decompose = register_decomposition(getattr(torch.ops.cosnorm, name).default, unsafe=True)
    decompose(partial(_decomposition, family))
    torch.library.register_vmap(f"cosnorm::{name}", partial(_vmap, name), lib=library)
    looped = partial(_loop, getattr(torch.ops.cosnorm, backward))
    torch.library.register_vmap(f"cosnorm::{backward}", looped, lib=library)


_register(
    "cosine_linear",
    Family("", reference.cosine_linear, _linear_forward, _linear_backward, _linear_shapes),
)
_CONVOLUTION = Family(_CONV, reference.cosine_conv, _conv_forward, _conv_backward, _conv_shapes)
fake_conv = partial(_fake, _CONVOLUTION)
for _dims in (1, 2, 3):
    _register(f"cosine_conv{_dims}d", _CONVOLUTION)
    _register(
        f"cosine_conv_transpose{_dims}d",
        Family(
            _TRANSPOSE,
            transposed.cosine_conv_transpose,
            _transpose_forward,
            _transpose_backward,
            _transpose_shapes,
        ),
    )
