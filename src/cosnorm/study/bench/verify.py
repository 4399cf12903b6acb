"""The ops against the float64 reference on the device at hand: no speed is printed before this."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cosnorm import fold
from cosnorm import functional as F
from cosnorm.nn import CosineConv2d, PearsonConv2d
from cosnorm.ops import reference
from cosnorm.ops.reference import without_tf32
from cosnorm.ops.spec import Geometry, Spec
from cosnorm.testing import compare, error, fault


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
    """What the layer gets wrong: alone, under autocast, and folded."""
    kind, size, kernel, arguments, dtype, centered, last = case
    layout = torch.channels_last if last else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(shape, generator=generator).to(device, dtype).contiguous(memory_format=layout)
        for shape in (size, kernel)
    )
    layers = _layers(kind, arguments, centered)
    with without_tf32():  # what is checked is the ops
        wrong = compare(*layers, [x, w], dtype)
        if last and dtype in (torch.bfloat16, torch.float16):
            wrong += [f"autocast: {fault}" for fault in _mixed(layers, x, w)]
        if last and dtype != torch.float64:
            wrong += _folded(arguments, centered, layers, x, w)
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
        choices = ("pearson" if centered else "cosine", "relu" if relu else None, 2.0)
        if kind == "linear":
            return reference.cosine_linear(x, w, None, None, Spec(*choices))
        names = {"stride": 1, "padding": 0, "dilation": 1}
        stride, padding, dilation = (
            _each(arguments.get(name, rest), w.dim() - 2) for name, rest in names.items()
        )
        geometry = Geometry(stride, padding, dilation, arguments.get("groups", 1))
        return reference.cosine_conv(x, w, None, None, Spec(*choices, geometry))

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
    return compare(under(similar), exact, under(plain), [x, fine], low)


def _folded(
    arguments: dict[str, Any], centered: bool, layers: tuple[Any, Any, Any], x: Tensor, w: Tensor
) -> list[str]:
    """The layer as `fold` leaves it, forward."""
    _, exact, plain = layers
    kind = PearsonConv2d if centered else CosineConv2d
    made = kind(x.shape[1], len(w), w.shape[2:], **arguments, scale=2.0, activation="relu")
    model = nn.Sequential(made).to(w.device, w.dtype).eval()
    with torch.no_grad():
        made.weight.copy_(w)
        fold(model)
        found = error(model(x), exact(True, x.double(), w.double()))
        near = error(plain(False, x, w), plain(False, x.double(), w.double()))
    return fault("folded", found, near, x.dtype)
