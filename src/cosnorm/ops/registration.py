"""The ops as torch.library knows them: schema, fake, autograd, vmap and FLOPs of each.

`cosnorm::cosine_linear`, `cosine_conv1d/2d/3d` and `cosine_conv_transpose1d/2d/3d`, each with its
`_backward`. They are there for whoever looks at ops on their way: FLOP counters, fake tensors,
selective checkpointing, tensor subclasses. Nothing passes from an op to its backward but its
arguments, so backward computes the layer once more.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    conv_backward_flop,
    conv_flop_count,
    register_flop_formula,
)

from cosnorm.ops import direct
from cosnorm.ops.backend import way_for
from cosnorm.ops.spec import Spec, memory_format

_TENSORS = "Tensor input, Tensor weight, Tensor? bias, Tensor? scale"
_CONV = "int[] stride, int[] padding, int[] dilation, int groups, "
_TAIL = "str similarity, str? activation, float gain"
NAMES = {
    "cosine_linear": "",
    **{f"cosine_conv{dims}d": _CONV for dims in (1, 2, 3)},
    **{f"cosine_conv_transpose{dims}d": _CONV + "int[] output_padding, " for dims in (1, 2, 3)},
}

library = torch.library.Library("cosnorm", "DEF")


def _run(input, weight, bias, scale, *statics) -> Tensor:
    tensors = (input, weight, bias, scale)
    way = way_for(*tensors, Spec.of(*statics))
    output = way.backend.forward(*tensors, way.plan, False)[0]
    return _owned(output.contiguous(memory_format=_layout(output, input, weight)))


def _owned(output: Tensor) -> Tensor:
    return output.clone() if output._is_view() else output


def _layout(like: Tensor, input: Tensor, weight: Tensor) -> torch.memory_format:
    return torch.contiguous_format if weight.dim() == 2 else memory_format(input, weight)


def _fake(input, weight, bias, scale, *statics) -> Tensor:
    spec = Spec.of(*statics)
    shape: list[Any] = [*input.shape[:-1], weight.shape[0]]
    if spec.geometry is not None:
        size = spec.geometry.output_size(input.shape[2:], weight.shape[2:])
        shape = [input.shape[0], spec.units(weight), *size]
    output = input.new_empty(shape)
    return output.contiguous(memory_format=_layout(output, input, weight))


def _run_backward(grad, input, weight, bias, scale, *rest) -> tuple[Tensor, ...]:
    *statics, need = rest
    tensors = (input, weight, bias, scale)
    way = way_for(*tensors, Spec.of(*statics))
    kept = way.backend.forward(*tensors, way.plan, True)[1]
    grads = way.backend.backward(grad, *tensors, kept, way.plan, need)
    return tuple(
        input.new_empty(0)
        if g is None or t is None or not wants
        else _owned(g.contiguous(memory_format=_grad_layout(t, input, weight)))
        for g, t, wants in zip(grads, tensors, need, strict=True)
    )


def _grad_layout(like: Tensor, input: Tensor, weight: Tensor) -> torch.memory_format:
    """A gradient lies as its tensor does; that of the input as the output of the layer."""
    if like.dim() != weight.dim() or weight.dim() == 2:
        return torch.contiguous_format
    return memory_format(input, weight) if like is input else memory_format(like)


def _fake_backward(grad, input, weight, bias, scale, *rest) -> tuple[Tensor, ...]:
    tensors = (input, weight, bias, scale)
    return tuple(
        input.new_empty(0)
        if t is None or not wants
        else torch.empty_like(t, memory_format=_grad_layout(t, input, weight))
        for t, wants in zip(tensors, rest[-1], strict=True)
    )


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.statics = inputs[4:]
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad):
    none = (None,) * len(ctx.statics)
    if grad is None:
        return (None, None, None, None, *none)
    spec, need = Spec.of(*ctx.statics), [bool(n) for n in ctx.needs_input_grad[:4]]
    if direct.wants_reference():
        return *direct.pullback(grad, ctx.saved_tensors, spec, need), *none
    return *direct.seen_backward(grad, ctx.saved_tensors, spec, need), *none


def _loop(op: Callable[..., Any], info, in_dims, *args):
    """One call for each, stacked: within a rule of vmap there is no calling vmap again."""

    def call(pick: Callable[[Tensor, int], Tensor]) -> Sequence[Tensor]:
        pairs = zip(args, in_dims, strict=True)
        found = op(*(pick(a, d) if isinstance(d, int) else a for a, d in pairs))
        return (found,) if isinstance(found, Tensor) else found

    if info.batch_size:
        each = [call(lambda a, d, i=i: a.select(d, i)) for i in range(info.batch_size)]
        stacked = [torch.stack(outputs) for outputs in zip(*each, strict=True)]
    else:  # nothing to call with, but the shapes of what would come
        one = call(lambda a, d: a.new_zeros([n for i, n in enumerate(a.shape) if i != d]))
        stacked = [t.new_empty((0, *t.shape)) for t in one]
    return (tuple(stacked), (0,) * len(stacked)) if len(stacked) > 1 else (stacked[0], 0)


def _product_flops(input: Sequence[int], weight: Sequence[int], statics: Sequence[Any]) -> int:
    """Of the product that the plain layer takes as well."""
    spec = Spec.of(*statics)
    if spec.geometry is None:
        return 2 * torch.Size(input).numel() * weight[0]
    size = spec.geometry.output_size(input[2:], weight[2:])
    units = weight[1] * spec.groups if spec.transposed else weight[0]
    shapes = (list(input), list(weight), [input[0], units, *size])
    return conv_flop_count(*shapes, transposed=spec.transposed)


def _flops(input, weight, bias, scale, *statics, out_shape=None, **_) -> int:
    """The product's, 2 for each entry of input and weights, and 2 for each of the output."""
    passes = 2 * (torch.Size(input).numel() + torch.Size(weight).numel() + _numel(out_shape))
    return _product_flops(input, weight, statics) + passes


def _flops_backward(grad, input, weight, bias, scale, *rest, out_shape=None, **_) -> int:
    """The products of the gradients that are wanted, and 4 for each entry.

    As torch counts them: the weights' gradient of a convolution once for each group.
    """
    *statics, need = rest
    sizes = torch.Size(grad).numel() + torch.Size(input).numel() + torch.Size(weight).numel()
    spec, wants = Spec.of(*statics), (bool(need[0]), bool(need[1] or need[2]))
    if spec.geometry is None:
        return sum(wants) * _product_flops(input, weight, statics) + 4 * sizes
    products = [
        conv_backward_flop(  # pyright: ignore[reportCallIssue]  # wrapped: it takes out_val
            grad, input, weight, None, *spec.geometry[:3], spec.transposed, (), spec.groups,
            mask, out_val=(torch.Size(input), torch.Size(weight)),
        )
        for mask in ((wants[0], False), (False, wants[1]))
    ]  # fmt: skip
    return sum(products) + 4 * sizes


def _numel(shape: Any) -> int:
    return 0 if shape is None else torch.Size(shape).numel()


def _register(name: str, sizes: str) -> None:
    backward = f"{name}_backward"
    library.define(f"{name}({_TENSORS}, {sizes}{_TAIL}) -> Tensor")
    library.define(
        f"{backward}(Tensor grad, {_TENSORS}, {sizes}{_TAIL}, bool[] need)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    )
    library.impl(name, _run, "CompositeExplicitAutograd")
    library.impl(backward, _run_backward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cosnorm::{name}", _fake, lib=library)
    torch.library.register_fake(f"cosnorm::{backward}", _fake_backward, lib=library)
    torch.library.register_autograd(
        f"cosnorm::{name}", _autograd, setup_context=_setup_context, lib=library
    )
    formulas: dict[str, Any] = {name: _flops, backward: _flops_backward}
    for each, formula in formulas.items():
        op = getattr(torch.ops.cosnorm, each)
        torch.library.register_vmap(f"cosnorm::{each}", partial(_loop, op), lib=library)
        register_flop_formula(op)(formula)


for _name, _sizes in NAMES.items():
    _register(_name, _sizes)
