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

from cosnorm.ops import backend, eager, reference
from cosnorm.ops.backend import Way, way_for
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
_is_wrapped = _private("_functorch.is_functorch_wrapped_tensor", False)
_is_zero_tensor = _private("_is_zerotensor", False, Tensor)
# Where torch does not say, it refuses forward mode at `Similarity`, which has no rule for it.
_knows_forward_mode = hasattr(forward_ad, "_current_level")


def reference_of(spec: Spec) -> Callable[..., Tensor]:
    if spec.geometry is None:
        return reference.cosine_linear
    return reference.cosine_conv_transpose if spec.transposed else reference.cosine_conv


class Kind:
    """What calls between tensors of one kind share: a spec and, once one was made, their way."""

    __slots__ = ("spec", "way")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.way: Way | None = None


def call(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, kind: Kind
) -> Tensor:
    """act(gain · scale · c), of arguments that have been checked; input: batched, (N, C, …).

    kind: of shapes, strides, dtypes and device, so that calls of one kind have one way.
    """
    if _transforms_active() or forward_mode():
        return reference_of(kind.spec)(input, weight, bias, scale, kind.spec)
    if not is_unseen(input, weight, bias, scale):
        op = getattr(torch.ops.cosnorm, kind.spec.name)
        return op(input, weight, bias, scale, *kind.spec.statics)
    way = kind.way
    if way is None or way.era != backend.era:
        way = kind.way = way_for(input, weight, bias, scale, kind.spec)
    if torch.is_grad_enabled() and (
        weight.requires_grad
        or input.requires_grad
        or (bias is not None and bias.requires_grad)
        or (scale is not None and scale.requires_grad)
    ):
        return _differentiable(input, weight, bias, scale, way)
    return way.backend.forward(input, weight, bias, scale, way.plan, False)[0]


def compiled(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, kind: Kind
) -> Tensor:
    """What `call` is to torch.compile and torch.export."""
    if exporting() or transforming():
        return reference_of(kind.spec)(input, weight, bias, scale, kind.spec)
    return Traced.apply(input, weight, bias, scale, kind.spec)  # pyright: ignore[reportReturnType]


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
    for tensor in tensors:  # in the way of every call: one frame, no generator
        if tensor is None:
            continue
        if type(tensor) is Tensor:
            if _is_legacy_batched(tensor) or _is_wrapped(tensor):
                return False
        elif type(tensor) is not nn.Parameter:  # which neither of these is
            return False
        if not (tensor.is_cuda or tensor.is_cpu) or tensor.is_neg() or _is_zero_tensor(tensor):
            return False
    return True


class Similarity(torch.autograd.Function):
    """A layer by its backend. Where backward has to be differentiated, the reference is instead."""

    @staticmethod
    def forward(ctx, input, weight, bias, scale, way):
        ctx.way = way
        output, kept = way.backend.forward(input, weight, bias, scale, way.plan, True)
        ctx.save_for_backward(input, weight, bias, scale, *kept)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad is None:
            return None, None, None, None, None
        input, weight, bias, scale, *kept = ctx.saved_tensors
        way, need = ctx.way, ctx.needs_input_grad
        if torch.is_grad_enabled() or forward_mode():  # `wants_reference`, without a frame
            tensors = (input, weight, bias, scale)
            return *pullback(grad, tensors, way.spec, need[:4]), None
        if torch.compiler.is_compiling() or not is_unseen(grad):  # compiled autograd, or a mode
            tensors = (input, weight, bias, scale)
            return *seen_backward(grad, tensors, way.spec, need[:4]), None
        grads = way.backend.backward(grad, input, weight, bias, scale, kept, way.plan, need)
        return *grads, None


# What `Similarity.apply` comes to where no transform is under way, which `call` has seen to.
_differentiable: Callable[..., Tensor] = super(torch.autograd.Function, Similarity).apply  # pyright: ignore[reportAttributeAccessIssue]


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
