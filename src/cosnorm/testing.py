"""One rule of tolerance, for tests and benchmarks alike.

    error(ours) ≤ 2 · error(plain torch in the same dtype) + SLACK[dtype]

Errors are relative, in the 2-norm, against the formula in float64. A number that is a sum, such as
the gradient of one learned scale, is measured by the norm of what was summed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

# What rounding alone may add: half an ε of the low dtypes, a few of the high ones.
SLACK = {
    torch.float64: 1e-14,
    torch.float32: 1e-6,
    torch.bfloat16: 4e-3,
    torch.float16: 5e-4,
}


def error(got: Tensor, want: Tensor, terms: Tensor | None = None) -> float:
    """|got - want| / |want|; what is not finite never passes.

    Args:
        want: float64.
        terms: what `want` is the sum of, where it is one.
    """
    if not got.isfinite().all():
        return float("inf")
    size = want.norm() if terms is None else terms.norm()
    return ((got.double() - want).norm() / size.clamp(min=1e-30)).item()


def fault(label: str, found: float, plain: float, dtype: torch.dtype) -> list[str]:
    """What to tell of an error that the rule does not allow: nothing, or one line.

    Args:
        found, plain: errors of ours and of plain torch.
    """
    allowed = 2 * plain + SLACK[dtype]
    return [] if found <= allowed else [f"{label}: error {found:.2e}, allowed {allowed:.2e}"]


def values_and_grads(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], seed: Tensor
) -> list[Tensor]:
    """The output of a function, and its gradients by each tensor, for the output's gradient."""
    leaves = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors
    ]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed.to(output.dtype))]


def assert_exact(
    got: Sequence[Tensor],
    want: Sequence[Tensor],
    plain: Sequence[Tensor],
    dtype: torch.dtype,
    terms: Tensor | None = None,
) -> None:
    """Raise AssertionError for each result that the rule does not allow.

    Args:
        got: what `values_and_grads` gives of ours.
        want, plain: the same of the formula in float64 and of plain torch.
        terms: what single numbers among them are sums of.
    """
    faults = []
    for place, (ours, right, near) in enumerate(zip(got, want, plain, strict=True)):
        summed = terms if right.numel() == 1 else None
        errors = error(ours, right, summed), error(near, right, summed)
        faults += fault(f"result {place}", *errors, dtype)
    assert not faults, "; ".join(faults)


def compare(
    similar: Any, exact: Any, plain: Any, tensors: Sequence[Tensor], dtype: torch.dtype
) -> list[str]:
    """What a layer with ReLU gets wrong by the rule, forward and every gradient.

    Each function takes (relu, input, weight). A unit near zero may fall on either side of ReLU's
    corner, so gradients are compared where the unit in question was on.

    Args:
        similar: the layer.
        exact: its formula, called in float64.
        plain: the plain layer, whose errors are taken against itself in float64.
        dtype: of the table.

    Returns:
        A line for each fault.
    """
    wide = [t.double() for t in tensors]
    with torch.no_grad():
        on = similar(True, *tensors) > 0
    seed = torch.randn(on.shape, device=on.device).to(tensors[0].dtype).double()
    ours = values_and_grads(partial(similar, True), tensors, seed)
    right = values_and_grads(partial(exact, False), wide, seed * on)
    right[0] = right[0].relu()
    theirs = values_and_grads(partial(plain, False), tensors, seed)
    rights = values_and_grads(partial(plain, False), wide, seed)
    faults = []
    for label, got, want, near, far in zip(
        ("output", "input", "weight"), ours, right, theirs, rights, strict=True
    ):
        faults += fault(label, error(got, want), error(near, far), dtype)
    return faults
