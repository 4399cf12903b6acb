"""The ops against the float64 reference on the device at hand: no speed is printed before this."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cosnorm import functional as F
from cosnorm.reference import without_tf32

# Beyond twice the error of plain torch in the same dtype (the rule), what rounding alone may add.
SLACK = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.bfloat16: 4e-3,
    torch.float16: 5e-4,
}


def _grads(function: Any, tensors: list[Tensor], seed: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed.to(output.dtype))]


def _error(got: Tensor, want: Tensor) -> float:
    """Relative in the 2-norm; NaN never passes."""
    if not got.isfinite().all():
        return float("inf")
    return ((got.double() - want).norm() / want.norm().clamp(min=1e-30)).item()


def compare(similar: Any, plain: Any, tensors: list[Tensor], slack: float) -> list[str]:
    """What `similar` gets wrong, forward and every gradient, by the rule of twice plain's error.

    Each takes (relu, input, weight). A unit near zero may fall on either side of ReLU's corner, so
    gradients are compared where the unit in question was on.
    """
    wide = [t.double() for t in tensors]
    with torch.no_grad():
        on = similar(True, *tensors) > 0
    seed = torch.randn(on.shape, device=on.device).to(tensors[0].dtype).double()
    faults = []
    ours = _grads(partial(similar, True), tensors, seed)
    exact = _grads(partial(similar, False), wide, seed * on)
    exact[0] = exact[0].relu()
    rows = zip(
        ("output", "input", "weight"), ours, exact,
        _grads(partial(plain, False), tensors, seed), _grads(partial(plain, False), wide, seed),
        strict=True,
    )  # fmt: skip
    for label, got, want, plain_got, plain_want in rows:
        error, allowed = _error(got, want), 2 * _error(plain_got, plain_want) + slack
        if not error <= allowed:
            faults.append(f"{label}: error {error:.2e}, allowed {allowed:.2e}")
    return faults


def _cases(cuda: bool) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    if cuda:  # large enough for passes beside the products
        yield "conv2d", (64, 256, 24, 24), (512, 256, 3, 3), {"padding": 1}
        yield "linear", (4096, 2048), (4096, 2048), {}
    yield "linear", (70, 300), (65, 300), {}
    yield "conv1d", (3, 6, 31), (10, 3, 5), {"groups": 2, "dilation": 2, "padding": 3}
    for size, kernel, arguments in (
        ((2, 3, 17, 15), (8, 3, 3, 3), {"padding": 1}),
        ((2, 63, 9, 10), (65, 63, 3, 3), {"padding": 1}),
        ((2, 64, 9, 8), (32, 16, 3, 2), {"groups": 4, "stride": (2, 1), "padding": (1, 2)}),
        ((2, 130, 6, 6), (33, 130, 1, 1), {}),
    ):
        yield "conv2d", size, kernel, arguments
    yield "conv3d", (2, 5, 5, 6, 7), (7, 5, 3, 2, 3), {"padding": (1, 0, 1), "stride": (1, 2, 1)}


def verify(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> int:
    """Checks every case; returns how many passed, raises AssertionError with all that failed."""
    faults, passed = [], 0
    generator = torch.Generator().manual_seed(0)
    for (kind, size, kernel, arguments), dtype, centered, last in itertools.product(
        list(_cases(device.type == "cuda")), dtypes, (False, True), (False, True)
    ):
        if last and kind != "conv2d":
            continue
        layout = torch.channels_last if last else torch.contiguous_format
        tensors = [
            torch.randn(shape, generator=generator)
            .to(device, dtype)
            .contiguous(memory_format=layout)
            for shape in (size, kernel)
        ]
        similar, plain = (_layer(kind, arguments, prefix, centered) for prefix in ("cosine_", ""))
        with without_tf32():  # what is checked is the ops
            wrong = compare(similar, plain, tensors, SLACK[dtype])
        faults += [f"{kind}{size} {dtype} centered={centered} last={last} {w}" for w in wrong]
        passed += not wrong
    assert not faults, "the ops do not pass on this device:\n" + "\n".join(faults)
    return passed


def _layer(kind: str, arguments: dict[str, Any], prefix: str, centered: bool) -> Any:
    if prefix:
        function = getattr(F, prefix + kind)
        return lambda relu, x, w: function(
            x, w, **arguments, centered=centered, scale=2.0, activation="relu" if relu else None
        )
    function = getattr(torch.nn.functional, kind)
    return lambda relu, x, w: function(x, w, **arguments)
