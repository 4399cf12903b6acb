"""A call without the dispatcher is the op; and where somebody looks at ops, it is one."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from cosnorm import functional as F
from cosnorm.ops import backend, direct

CASES = {
    "cosine_linear": ((3, 5), (4, 5)),
    "cosine_conv1d": ((2, 3, 7), (4, 3, 3)),
    "cosine_conv2d": ((2, 3, 6, 5), (4, 3, 2, 3)),
    "cosine_conv3d": ((1, 2, 4, 4, 3), (3, 2, 2, 2, 2)),
    "cosine_conv_transpose2d": ((2, 3, 4, 4), (3, 4, 2, 2)),
}


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def layer(name, **options):
    size, kernel = CASES[name]
    units = kernel[1] if "transpose" in name else kernel[0]
    shapes = (size, kernel, (units,), (units,))
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def values(*tensors):
        x, w, b, s = tensors
        y = getattr(F, name)(x, w, b, scale=s, **options)
        return y, torch.autograd.grad(y, tensors, torch.ones_like(y))

    return tensors, values


@pytest.mark.parametrize("options", [{}, {"centered": True, "activation": "relu"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_mode_sees_ops_and_gets_the_same_bits(name, options):
    tensors, values = layer(name, **options)
    with torch.autograd.profiler.profile() as profile:
        y, grads = values(*tensors)
    assert not any(event.name.startswith("cosnorm::") for event in profile.function_events)
    with Seen() as seen:
        y_seen, grads_seen = values(*tensors)
    assert {f"cosnorm::{name}", f"cosnorm::{name}_backward"} <= seen.names
    assert torch.equal(y, y_seen)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads_seen, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_backward_alone_may_be_seen(name):
    (x, w, b, s), _ = layer(name)
    y = getattr(F, name)(x, w, b, scale=s)
    want = torch.autograd.grad(y, (x, w, b, s), torch.ones_like(y), retain_graph=True)
    with Seen() as seen:
        got = torch.autograd.grad(y, (x, w, b, s), torch.ones_like(y))
    assert f"cosnorm::{name}_backward" in seen.names
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_who_is_seen():
    plain = torch.zeros(2)
    assert direct.is_unseen(plain, None, torch.nn.Parameter(plain))
    assert not direct.is_unseen(plain, plain.as_subclass(Subclass))
    assert not direct.is_unseen(plain.to("meta"))
    assert not direct.is_unseen(torch.zeros(2, dtype=torch.complex64).conj().imag)
    assert not direct.is_unseen(torch._efficientzerotensor(2))
    leaked = []
    torch.func.grad(lambda x: (leaked.append(x), x.sum())[1])(plain)
    assert not direct.is_unseen(leaked[0])  # out of a transform that is over
    with Seen():
        assert not direct.is_unseen(plain)
    with torch.device("cpu"):  # a mode of functions, not of ops
        assert direct.is_unseen(plain)


@pytest.fixture
def triton():
    pytest.importorskip("triton", reason="its kernels read memory as it is")
    before = backend.set_backend("triton")
    yield
    backend.set_backend(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")
def test_what_torch_resolves_on_the_way_is_resolved(triton):
    """A negative bit, set by the gradient of a conjugate; a gradient of zeros without memory."""
    x, w = torch.randn(2, 3, 5, 5, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    y = F.cosine_conv2d(x, w, padding=1, centered=True, activation="relu")
    lazy = torch.complex(torch.zeros_like(y), torch.randn_like(y)).conj().imag
    assert lazy.is_neg()
    got = torch.autograd.grad(y, (x, w), lazy, retain_graph=True)
    want = torch.autograd.grad(y, (x, w), lazy.resolve_neg(), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    nothing = torch.autograd.grad(y, (x, w), torch._efficientzerotensor(y.shape))
    assert not any(g.any() for g in nothing)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by forward_ad itself
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")
@pytest.mark.parametrize("name", CASES)
def test_transforms_of_a_gradient(name, triton):
    (x, w, b, s), _ = layer(name, centered=True)
    y = getattr(F, name)(x, w, b, scale=s, centered=True)
    seeds = torch.randn(3, *y.shape)

    def gradients(seed):
        return torch.autograd.grad(y, (x, w, b, s), seed, retain_graph=True)

    batched = torch.vmap(gradients)(seeds)
    for i, seed in enumerate(seeds):
        for a, g in zip(batched, gradients(seed), strict=True):
            torch.testing.assert_close(a[i], g, rtol=1e-4, atol=1e-5)
    with forward_ad.dual_level():  # gradients are linear in their seed
        duals = gradients(forward_ad.make_dual(seeds[0], seeds[1]))
        for dual, g in zip(duals, gradients(seeds[1]), strict=True):
            tangent = forward_ad.unpack_dual(dual).tangent
            torch.testing.assert_close(tangent, g, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_tensors_that_a_transform_has_left_behind(name):
    (x, w, b, s), values = layer(name)
    leaked = []
    torch.func.grad(lambda x: (leaked.append(x), x.sum())[1])(x.detach())
    y = getattr(F, name)(leaked[0], w, b, scale=s)
    torch.testing.assert_close(y, values(x, w, b, s)[0])


def test_nothing_is_kept_of_what_needs_no_gradient():
    x, w = torch.randn(3, 5), torch.randn(4, 5, requires_grad=True)
    assert F.cosine_linear(x, w).requires_grad
    with torch.no_grad():
        assert not F.cosine_linear(x, w).requires_grad
    assert F.cosine_linear(x, w.detach()).grad_fn is None


def test_gradients_of_a_batch_of_gradients():
    tensors, _ = layer("cosine_conv2d")
    x, w, b, s = tensors
    y = F.cosine_conv2d(x, w, b, scale=s)
    seeds = torch.randn(3, *y.shape)
    batched = torch.autograd.grad(y, tensors, seeds, is_grads_batched=True, retain_graph=True)
    for i, seed in enumerate(seeds):
        one = torch.autograd.grad(y, tensors, seed, retain_graph=True)
        for a, g in zip(batched, one, strict=True):
            torch.testing.assert_close(a[i], g)
