"""Random layers for hypothesis, and the comparison of values and all gradients."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from cosnorm.ops.activations import ACTIVATIONS

# Repeatable, and without a clock: the first example of a process pays for imports.
exhaustive = settings(max_examples=150, deadline=None, derandomize=True, database=None)
brief = settings(exhaustive, max_examples=40)


@st.composite
def ours(draw, units: int) -> dict[str, Any]:
    """The keyword arguments that torch does not have; a scale kind stands for its tensor."""
    return {
        "centered": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 2.5, -0.5, "one", "per_output"])),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
    }


def one_or_each(values, dims: int):
    """An int, or a tuple of one for each dimension."""
    return st.one_of(values, st.tuples(*[values] * dims))


def normal(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def with_scale(arguments: dict[str, Any], units: int, draw: Callable[..., Tensor]) -> dict:
    size = {"one": 1, "per_output": units}.get(str(arguments["scale"]))
    return arguments if size is None else {**arguments, "scale": draw(size)}


def agree(ours: Callable, oracle: Callable, tensors: list, rest: tuple, named: dict) -> None:
    """Equal values and gradients of every tensor, the scale's as well."""
    results = []
    for function in (ours, oracle):
        leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
        scale = named.get("scale")
        if isinstance(scale, Tensor):
            scale = scale.clone().requires_grad_()
        output = function(*leaves, *rest, **{**named, "scale": scale})
        wanted = [t for t in (*leaves, scale) if isinstance(t, Tensor)]
        cotangent = normal(7)(*output.shape)
        grads = torch.autograd.grad(output, wanted, cotangent, allow_unused=True)
        zeros = [
            torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True)
        ]
        results.append((output.detach(), *zeros))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
