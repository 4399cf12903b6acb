"""What tests of the kernels share: devices, tensors, and the comparison with the reference."""

from functools import partial

import pytest
import torch

from cosnorm.ops import backend, direct
from cosnorm.ops.direct import Kind
from cosnorm.testing import assert_exact, values_and_grads

# Where there is a GPU the kernels are compiled for it, and none is left for the CPU.
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [GPU] if torch.cuda.is_available() else ["cpu", GPU]
HALF = {"cpu": torch.float16, "cuda": torch.bfloat16}  # the interpreter is wrong for bfloat16
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def check(spec, tensors, dtype):
    """Values and all gradients of a layer against its formula in float64.

    The same steps in torch give the error that is allowed twice. With ReLU, gradients are compared
    where the unit was on: rounding may move it across the corner.
    """
    bias, scale = tensors[2] is not None, tensors[3] is not None
    given = [t for t in tensors if t is not None]

    def run(function, spec, x, w, *rest):
        return function(x, w, rest[0] if bias else None, rest[-1] if scale else None, spec)

    y = run(direct.call, Kind(spec), *given).detach()
    seed = torch.randn(y.shape, device=y.device).to(y.dtype).double()
    relu = spec.activation == "relu"
    smooth = spec._replace(activation=None) if relu else spec
    formula = partial(run, direct.reference_of(spec), smooth)
    want = values_and_grads(formula, [t.double() for t in given], seed * (y > 0) if relu else seed)
    want[0] = want[0].relu() if relu else want[0]
    got = values_and_grads(partial(run, direct.call, Kind(spec)), given, seed)
    backend.set_backend("torch")
    steps = values_and_grads(partial(run, direct.call, Kind(spec)), given, seed)
    backend.set_backend("triton")
    assert_exact(got, want, steps, dtype, terms=seed * want[0])


def tensors_of(size, kernel, bias, scale, device, dtype, last=False):
    layout = LAST[len(size)] if last else torch.contiguous_format
    tensors = [torch.randn(shape).contiguous(memory_format=layout) for shape in (size, kernel)]
    tensors += [torch.randn(kernel[0]) if bias else None]
    tensors += [torch.rand(kernel[0] if scale == "each" else 1) + 0.5 if scale else None]
    return [t if t is None else t.to(device, dtype) for t in tensors]
