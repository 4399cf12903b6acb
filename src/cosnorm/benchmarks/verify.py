"""The ops against the float64 reference on the device at hand: no speed is printed before this."""

import copy
import itertools
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cosnorm import fold, reference
from cosnorm import functional as F
from cosnorm.nn import CosineConv2d, PearsonConv2d, Sequential
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


def _fault(label: str, error: float, allowed: float) -> list[str]:
    """What to tell of an error that is not allowed; NaN is not."""
    return [] if error <= allowed else [f"{label}: error {error:.2e}, allowed {allowed:.2e}"]


def compare(similar: Any, exact: Any, plain: Any, tensors: list[Tensor], slack: float) -> list[str]:
    """What `similar` gets wrong, forward and every gradient, by the rule of twice plain's error.

    Each takes (relu, input, weight); exact is the formula in float64. A unit near zero may fall on
    either side of ReLU's corner, so gradients are compared where the unit in question was on.
    """
    wide = [t.double() for t in tensors]
    with torch.no_grad():
        on = similar(True, *tensors) > 0
    seed = torch.randn(on.shape, device=on.device).to(tensors[0].dtype).double()
    faults = []
    ours = _grads(partial(similar, True), tensors, seed)
    right = _grads(partial(exact, False), wide, seed * on)
    right[0] = right[0].relu()
    rows = zip(
        ("output", "input", "weight"), ours, right,
        _grads(partial(plain, False), tensors, seed), _grads(partial(plain, False), wide, seed),
        strict=True,
    )  # fmt: skip
    for label, got, want, plain_got, plain_want in rows:
        allowed = 2 * _error(plain_got, plain_want) + slack
        faults += _fault(label, _error(got, want), allowed)
    return faults


class Case(NamedTuple):
    """A layer in a dtype and a memory layout."""

    kind: str
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    arguments: dict[str, Any]
    dtype: torch.dtype
    centered: bool
    last: bool

    def __str__(self) -> str:
        name = "pearson" if self.centered else "cosine"
        layout = "NHWC" if self.last else "NCHW"
        return f"{name} {self.kind} {self.size} {self.kernel} {layout} {str(self.dtype)[6:]}"


def cases(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> list[Case]:
    choices = itertools.product(_layers_for(device), dtypes, (False, True), (False, True))
    return [
        Case(*layer, dtype, centered, last)
        for layer, dtype, centered, last in choices
        if layer[0] == "conv2d" or not last
    ]


def _layers_for(device: torch.device) -> list[tuple[str, tuple, tuple, dict[str, Any]]]:
    large = [  # enough for passes beside the products
        ("conv2d", (64, 256, 24, 24), (512, 256, 3, 3), {"padding": 1}),
        ("linear", (4096, 2048), (4096, 2048), {}),
    ]
    return (large if device.type == "cuda" else []) + [
        ("linear", (70, 300), (65, 300), {}),
        ("conv1d", (3, 6, 31), (10, 3, 5), {"groups": 2, "dilation": 2, "padding": 3}),
        ("conv2d", (2, 3, 17, 15), (8, 3, 3, 3), {"padding": 1}),
        ("conv2d", (2, 63, 9, 10), (65, 63, 3, 3), {"padding": 1}),
        (
            "conv2d",
            (2, 64, 9, 8),
            (32, 16, 3, 2),
            {"groups": 4, "stride": (2, 1), "padding": (1, 2)},
        ),
        ("conv2d", (2, 130, 6, 6), (33, 130, 1, 1), {}),
        ("conv3d", (2, 5, 5, 6, 7), (7, 5, 3, 2, 3), {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
    ]


def faults_of(case: Case, device: torch.device) -> list[str]:
    """What the layer gets wrong: alone, under autocast, folded, and in a chain."""
    kind, size, kernel, arguments, dtype, centered, last = case
    layout = torch.channels_last if last else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(shape, generator=generator).to(device, dtype).contiguous(memory_format=layout)
        for shape in (size, kernel)
    )
    layers = _layers(kind, arguments, centered)
    with without_tf32():  # what is checked is the ops
        wrong = compare(*layers, [x, w], SLACK[dtype])
        if last and dtype in (torch.bfloat16, torch.float16):
            wrong += [f"autocast: {fault}" for fault in _mixed(layers, x, w)]
        if last and dtype != torch.float64:
            wrong += _folded(arguments, centered, layers[1], x, w)
            wrong += _chained(arguments, centered, x, w)
    return [f"{case}: {fault}" for fault in wrong]


def verify(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> None:
    """Checks every case, and says so; raises AssertionError with all that is wrong."""
    chosen = cases(device, dtypes)
    compiling = device.type == "cuda"
    also = "; the first time, kernels are compiled, for minutes" if compiling else ""
    print(f"checking {len(chosen)} cases against float64{also}", flush=True)
    faults = [fault for case in chosen for fault in faults_of(case, device)]
    if faults:
        raise AssertionError("the ops do not pass on this device:\n" + "\n".join(faults))


def _layers(kind: str, arguments: dict[str, Any], centered: bool) -> tuple[Any, Any, Any]:
    """The layer, the formula, and the plain layer, each with a scale of 2 or none."""
    ours, torchs = getattr(F, f"cosine_{kind}"), getattr(torch.nn.functional, kind)

    def similar(relu: bool, x: Tensor, w: Tensor) -> Tensor:
        act = "relu" if relu else None
        return ours(x, w, **arguments, centered=centered, scale=2.0, activation=act)

    def exact(relu: bool, x: Tensor, w: Tensor) -> Tensor:
        if kind == "linear":
            return reference.cosine_linear(x, w, None, None, 2.0, centered, relu).output
        names = {"stride": 1, "padding": 0, "dilation": 1}
        stride, padding, dilation = (
            _each(arguments.get(name, rest), w.dim() - 2) for name, rest in names.items()
        )
        groups = arguments.get("groups", 1)
        return reference.cosine_conv(
            x, w, None, None, stride, padding, dilation, groups, 2.0, centered, relu
        ).output

    def plain(relu: bool, x: Tensor, w: Tensor) -> Tensor:
        return torchs(x, w, **arguments)

    return similar, exact, plain


def _each(size: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (size,) * dims if isinstance(size, int) else size


def _mixed(layers: tuple[Any, Any, Any], x: Tensor, w: Tensor) -> list[str]:
    """float32 weights under autocast, as one trains."""
    similar, exact, plain = layers

    def under(function: Any) -> Any:
        def run(relu: bool, x: Tensor, w: Tensor) -> Tensor:
            enabled = x.dtype != torch.float64
            with torch.autocast(x.device.type, low if enabled else torch.bfloat16, enabled=enabled):
                return function(relu, x, w)

        return run

    low = x.dtype
    generator = torch.Generator().manual_seed(1)
    fine = w.float() + torch.randn(w.shape, generator=generator).to(w.device) * 1e-3
    return compare(under(similar), exact, under(plain), [x, fine], SLACK[low])


def _chained(arguments: dict[str, Any], centered: bool, x: Tensor, w: Tensor) -> list[str]:
    """The layer between two others in a `Sequential`, where neighbours share their passes.

    Against the three in float64; the same three one by one give the error that is allowed twice.
    """
    if arguments.get("groups", 1) > 1:
        return []
    kind = PearsonConv2d if centered else CosineConv2d
    sizes = (x.shape[1], x.shape[1], 1), (x.shape[1], len(w), w.shape[2:]), (len(w), 40, 1)
    options = ({}, arguments, {})
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layers = [kind(*s, **o, activation="relu") for s, o in zip(sizes, options, strict=True)]
    chained = Sequential(*layers).to(w.device, w.dtype)
    with torch.no_grad():
        layers[1].weight.copy_(w)
    alone = nn.Sequential(*chained)
    exact = nn.Sequential(*copy.deepcopy(chained)).double()
    seed = torch.randn_like(alone(x).detach())
    got, near = _of(chained, x, seed), _of(alone, x, seed)
    faults = []
    for i, want in enumerate(_of(exact, x.double(), seed.double())):
        allowed = 2 * _error(near[i], want) + 4 * SLACK[x.dtype]
        faults += _fault(f"chained, tensor {i}", _error(got[i], want), allowed)
    return faults


def _of(network: nn.Module, x: Tensor, seed: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = network(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *network.parameters()], seed)]


def _folded(
    arguments: dict[str, Any], centered: bool, exact: Any, x: Tensor, w: Tensor
) -> list[str]:
    """The layer as `fold` leaves it, forward."""
    kind = PearsonConv2d if centered else CosineConv2d
    made = kind(x.shape[1], len(w), w.shape[2:], **arguments, scale=2.0, activation="relu")
    model = nn.Sequential(made).to(w.device, w.dtype).eval()
    with torch.no_grad():
        made.weight.copy_(w)
        fold(model)
        error = _error(model(x), exact(True, x.double(), w.double()))
    return _fault("folded", error, 4 * SLACK[x.dtype])
