"""A call of a layer, by the shortest way that is right where it is made.

torch.export, torch.func, forward-mode   the reference, in torch's own ops
torch.compile                            `Traced`: the formula and its explicit backward, in aten
a mode, tracer or subclass looks on      the op of torch.library (`registration`)
otherwise                                `Similarity`: a backend, and autograd
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from cosnorm.ops import eager, reference
from cosnorm.ops.backend import backend_for
from cosnorm.ops.spec import Spec, memory_format

Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # input, weight, bias, scale

# Before 2.13 the compiler knows no answer; transforms inside a compiled region are refused then.
_COMPILES_THE_QUESTION = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def _private(name: str, otherwise: Any, home: Any = torch._C) -> Callable[..., Any]:
    """A question that torch answers under a private name; where it is gone, the careful answer."""
    for part in name.split("."):
        home = getattr(home, part, None)
    return (lambda *_: otherwise) if home is None else home


_dispatch_modes = _private("_len_torch_dispatch_stack", 1)
_transforms_active = _private("_are_functorch_transforms_active", False)
_tracing_state = _private("_get_tracing_state", None)
_is_legacy_batched = _private("_functorch.is_legacy_batchedtensor", False)
_is_zero_tensor = _private("_is_zerotensor", False, Tensor)
# Where torch does not say, it refuses forward mode at `Similarity`, which has no rule for it.
_knows_forward_mode = hasattr(forward_ad, "_current_level")


def reference_of(spec: Spec) -> Callable[..., Tensor]:
    if spec.geometry is None:
        return reference.cosine_linear
    return reference.cosine_conv_transpose if spec.transposed else reference.cosine_conv


def call(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec
) -> Tensor:
    """act(gain · scale · c), of arguments that have been checked; input: batched, (N, C, …)."""
    if torch.compiler.is_compiling():
        if exporting() or transforming():
            return reference_of(spec)(input, weight, bias, scale, spec)
        return Traced.apply(input, weight, bias, scale, spec)  # pyright: ignore[reportReturnType]
    if transforming():
        return reference_of(spec)(input, weight, bias, scale, spec)
    if not is_unseen(input, weight, bias, scale):
        return getattr(torch.ops.cosnorm, spec.name)(input, weight, bias, scale, *spec.statics)
    backend = backend_for(input, weight, spec)
    if torch.is_grad_enabled() and (
        input.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (scale is not None and scale.requires_grad)
    ):
        return Similarity.apply(input, weight, bias, scale, spec, backend)  # pyright: ignore[reportReturnType]
    return backend.forward(input, weight, bias, scale, spec, False)[0]


def exporting() -> bool:
    """Whether torch.export is tracing: it gets the formula, in torch's own ops.

    Not torch.compiler.is_exporting(): to torch 2.11 that is true under torch.compile as well.
    """
    return getattr(torch.compiler, "_is_exporting_flag", torch.compiler.is_exporting())


def transforming() -> bool:
    """Whether torch.func or forward-mode differentiation is under way.

    Torch differentiates the reference by any of them, an autograd function by none.
    """
    if not _COMPILES_THE_QUESTION and torch.compiler.is_compiling():
        return False
    return _transforms_active() or forward_mode()


def forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return _knows_forward_mode and forward_ad._current_level >= 0


def is_unseen(*tensors: Tensor | None) -> bool:
    """Whether a call is between tensors in memory and autograd alone: no tracer, no mode that looks
    at ops, no transform, no subclass, nothing that torch would resolve on the way.
    """
    if _dispatch_modes() or _tracing_state() is not None or _transforms_active():
        return False
    for tensor in tensors:  # noqa: SIM110  # in the way of every call: no generator
        if tensor is not None and not _is_in_memory(tensor):
            return False
    return True


def _is_in_memory(tensor: Tensor) -> bool:
    kind = type(tensor)
    if (kind is not Tensor and kind is not nn.Parameter) or not (tensor.is_cuda or tensor.is_cpu):
        return False
    return not (tensor.is_neg() or _is_zero_tensor(tensor) or _is_legacy_batched(tensor))


class Similarity(torch.autograd.Function):
    """A layer by its backend. Where backward has to be differentiated, the reference is instead."""

    @staticmethod
    def forward(ctx, input, weight, bias, scale, spec, backend):
        ctx.backend, ctx.spec = backend, spec
        output, kept = backend.forward(input, weight, bias, scale, spec, True)
        ctx.save_for_backward(input, weight, bias, scale, *kept)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad is None:
            return None, None, None, None, None, None
        input, weight, bias, scale, *kept = ctx.saved_tensors
        tensors, need = (input, weight, bias, scale), ctx.needs_input_grad
        if wants_reference():
            return *pullback(grad, tensors, ctx.spec, need[:4]), None, None
        if not is_unseen(grad, *tensors):
            return *seen_backward(grad, tensors, ctx.spec, need[:4]), None, None
        grads = ctx.backend.backward(grad, input, weight, bias, scale, kept, ctx.spec, need)
        return *grads, None, None


class Traced(torch.autograd.Function):
    """What torch.compile sees: no op of ours, so that its passes join their neighbours'."""

    @staticmethod
    def forward(ctx, input, weight, bias, scale, spec):
        output, kept = eager.forward(input, weight, bias, scale, spec, True)
        ctx.save_for_backward(input, weight, bias, scale, *kept)
        ctx.spec = spec
        if 1 in output.shape[2:] and spec.geometry is not None:
            # Of sizes of one a layout says nothing, and compilers choose; a copy is as torch's.
            output = output.clone(memory_format=memory_format(input, weight))
        return output

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        input, weight, bias, scale, *kept = ctx.saved_tensors
        need = ctx.needs_input_grad[:4]
        grads = eager.backward(grad, input, weight, bias, scale, kept, ctx.spec, need)
        return *grads, None


def seen_backward(
    grad: Tensor, tensors: Sequence[Tensor | None], spec: Spec, need: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by the op, for whoever looks on."""
    op = getattr(torch.ops.cosnorm, f"{spec.name}_backward")
    grads = op(grad, *tensors, *spec.statics, list(need))
    return [g if wants else None for g, wants in zip(grads, need, strict=True)]


def wants_reference() -> bool:
    """Whether a gradient is itself to be differentiated, backward or forward."""
    return torch.is_grad_enabled() or forward_mode()


def pullback(
    grad: Tensor, tensors: Tensors, spec: Spec, need: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by differentiating the reference, themselves differentiable."""
    wanted = [i for i, wants in enumerate(need) if wants and tensors[i] is not None]

    def output(*chosen: Tensor) -> Tensor:
        full: list[Any] = list(tensors)
        for i, tensor in zip(wanted, chosen, strict=True):
            full[i] = tensor
        return reference_of(spec)(*full, spec)

    grads = torch.func.vjp(output, *[tensors[i] for i in wanted])[1](grad)
    result: list[Tensor | None] = [None] * len(tensors)
    for i, g in zip(wanted, grads, strict=True):
        result[i] = g
    return result
