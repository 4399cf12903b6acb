"""The layers where something is missing: triton, a compiler for its kernels, torch's private names.

Each in a process of its own, since what is missing is looked for at import.
"""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from cosnorm import functional as F
from cosnorm.ops import backend

PRIVATE = (
    "_C._len_torch_dispatch_stack",
    "_C._are_functorch_transforms_active",
    "_C._get_tracing_state",
    "_C._functorch.is_legacy_batchedtensor",
    "_C._functorch.is_functorch_wrapped_tensor",
    "_C._cuda_getCurrentRawStream",
    "autograd.forward_ad._current_level",
)
# torch itself cannot do without these names: they are gone while cosnorm is imported, which looks
# for them then, and come back for torch.
WITHOUT = """
import sys
import torch
gone = []
for path in {names!r}:
    *rooms, name = path.split(".")
    home = torch
    for room in rooms:
        home = getattr(home, room)
    if hasattr(home, name):  # a CPU build of torch has fewer
        gone.append((home, name, getattr(home, name)))
        delattr(home, name)
if {blocked}:
    sys.modules["triton"] = None
import cosnorm, cosnorm.functional, cosnorm.nn, cosnorm.conversion
for home, name, value in gone:
    if name == "_current_level":  # torch does without it here, so it stays away
        continue
    assert not any(
        value is each for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("cosnorm") for each in vars(module).values()
    ), name
    setattr(home, name, value)
"""
LAYERS = """
import warnings
from cosnorm import nn
torch.manual_seed(0)
cosnorm.set_backend({backend!r})
cases = [
    (nn.PearsonLinear(6, 5, bias=True, activation="gelu"), (3, 6)),
    (nn.CosineConv2d(4, 6, 3, groups=2, learn_scale="per_output", activation="relu"), (2, 4, 5, 5)),
    (nn.PearsonConvTranspose1d(4, 3, 3, stride=2), (2, 4, 5)),
]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for layer, size in cases:
        x = torch.randn(size, requires_grad=True)
        y = layer(x)
        y.square().sum().backward()
        wide = x.detach().double().requires_grad_()
        exact = layer.double()(wide)
        exact.square().sum().backward()
        torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
cosnorm.convert(model)
cosnorm.fold(model.eval())
assert model(torch.randn(3, 4)).shape == (3, 2)
for warning in caught:
    print(warning.message)
"""


def output_of(program, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "CC")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_private_names():
    program = WITHOUT.format(names=PRIVATE, blocked=True) + LAYERS.format(backend="auto")
    assert output_of(program) == []


@pytest.mark.parametrize("choice", ["auto", "triton"])
def test_without_triton(choice):
    program = WITHOUT.format(names=(), blocked=True) + LAYERS.format(backend=choice)
    assert output_of(program) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs kernels here")
def test_where_triton_runs_no_kernel_torch_does_after_one_warning():
    """No compiler, no GPU: the kernels are asked for and can't be had."""
    pytest.importorskip("triton")
    program = WITHOUT.format(names=(), blocked=False) + LAYERS.format(backend="triton")
    (line,) = output_of(program, PATH="")
    assert line.startswith("Triton cannot run kernels on cpu, so torch computes the layers")


def test_a_kernel_that_cannot_be_built_is_told_of_once(monkeypatch):
    pytest.importorskip("triton")
    from cosnorm.ops import triton

    class Refuses:
        def __getitem__(self, grid):
            raise RuntimeError("Failed to find C compiler.\nAnd more")

    x, w = torch.randn(3, 6), torch.randn(4, 6, requires_grad=True)
    want = F.cosine_linear(x, w)
    monkeypatch.setattr(triton, "_touch", Refuses())
    triton._working.clear()
    before = backend.set_backend("triton")
    try:
        with pytest.warns(UserWarning, match=r"RuntimeError: Failed to find C compiler\.$"):
            got = F.cosine_linear(x, w)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = F.cosine_linear(x, w)
    finally:
        backend.set_backend(before)
        triton._working.clear()
    assert torch.equal(got, want) and torch.equal(again, want)


def test_a_want_of_memory_may_pass(monkeypatch):
    pytest.importorskip("triton")
    from cosnorm.ops import triton

    class Full:
        def __getitem__(self, grid):
            raise torch.OutOfMemoryError("full")

    device = torch.device("cpu")
    monkeypatch.setattr(triton, "_working", {})
    monkeypatch.setattr(triton, "_touch", Full())
    assert not triton._works(device)
    assert triton._working == {}


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_a_default_device_changes_nothing_of_the_way(kind):
    """It is a mode of functions, and no one who looks at ops."""
    w = torch.randn((4, 6) if kind == "linear" else (4, 6, 3), requires_grad=True)
    x, call = torch.randn((3, 6) if kind == "linear" else (3, 6, 5)), getattr(F, f"cosine_{kind}")
    plain = call(x, w)
    torch.set_default_device("cpu")
    try:
        with torch.autograd.profiler.profile() as profile:
            y = call(x, w)
            y.sum().backward()
    finally:
        torch.set_default_device(None)
    assert type(y.grad_fn) is type(plain.grad_fn)
    assert "Similarity" in y.grad_fn.name()
    assert not any(event.name.startswith("cosnorm::") for event in profile.function_events)
