"""A layer in torch, on any device and under torch.compile: nothing is differentiated.

`forward` gives y and what backward keeps, `backward` the four gradients; see `backend.Backend`.
There is nothing to work out beforehand: the plan of a layer is its spec.
"""

from collections.abc import Sequence

from torch import Tensor

from cosnorm.ops.eager import conv_transpose, steps
from cosnorm.ops.eager.steps import infer
from cosnorm.ops.spec import Spec

__all__ = ["backward", "forward", "infer", "plan_for"]

Grads = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def plan_for(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
    folded: bool = False,
) -> Spec:
    return spec


def forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, spec: Spec, keep: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """keep: whether there will be a backward."""
    room = conv_transpose if spec.transposed else steps
    return room.forward(input, weight, bias, scale, spec, keep)


def backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    kept: Sequence[Tensor | None],
    spec: Spec,
    need: Sequence[bool],
) -> Grads:
    """Gradients of input, weight, bias and scale; `need` says which are wanted."""
    room = conv_transpose if spec.transposed else steps
    return room.backward(grad, input, weight, bias, scale, kept, spec, need)
