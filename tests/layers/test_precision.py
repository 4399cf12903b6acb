"""Precision, bound and scale invariance, in every dtype and under autocast.

Tolerance: against float64, at most twice the error of torch's plain layer of the same dtype (its
output divided by the norms in float64) plus one entry of a table of dtypes.
"""

import layer_oracle as oracle
import pytest
import torch
from torch import Tensor

import cosnorm.functional as F
from cosnorm import nn
from cosnorm.ops.reference import numerics

LOW = [torch.bfloat16, torch.float16]
DTYPES = [torch.float64, torch.float32, *LOW]
# One rounding of a result of size 1, twice: once of the product and once of the output.
TABLE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def worst(got: Tensor, expected: Tensor) -> float:
    return (got.double() - expected.double()).abs().max().item()


def norms(x: Tensor, centered: bool) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if centered else x
    return x.norm(dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("n", [7, 63, 1023])
def test_linear_is_as_exact_as_torchs(n, centered, dtype):
    x, w = torch.randn(20, n).to(dtype), torch.randn(16, n).to(dtype)
    grad = torch.randn(20, 16).to(dtype)
    exact = [t.double().requires_grad_() for t in (x, w)]
    expected = oracle.linear(*exact, centered=centered)
    expected_grads = torch.autograd.grad(expected, exact, grad.double())
    ours = [t.clone().requires_grad_() for t in (x, w)]
    y = F.cosine_linear(*ours, centered=centered)
    grads = torch.autograd.grad(y, ours, grad)
    plain = [t.clone().requires_grad_() for t in (x, w)]
    product = torch.nn.functional.linear(*plain)
    exact_product = torch.nn.functional.linear(x.double(), w.double())
    size = norms(x.double(), centered)[:, None] * norms(w.double(), centered)
    plain_error = ((product.double() - exact_product) / size).abs().max().item()
    assert y.dtype == dtype
    assert worst(y, expected) <= 2 * plain_error + TABLE[dtype]
    plain_grads = torch.autograd.grad(product, plain, grad)
    exact_plain = torch.autograd.grad(torch.nn.functional.linear(*exact), exact, grad.double())
    for got, right, theirs, plain_right in zip(
        grads, expected_grads, plain_grads, exact_plain, strict=True
    ):
        relative = worst(theirs, plain_right) / plain_right.abs().max().item()
        allowed = (2 * relative + TABLE[dtype]) * right.abs().max().item()
        assert worst(got, right) <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_are_exact_in_every_dtype(bias, centered, dtype):
    cases = [
        (F.cosine_conv2d, oracle.conv, (4, 10, 3, 3), (2, 1, 1, 2)),
        (F.cosine_conv_transpose2d, oracle.conv_transpose, (20, 2, 3, 3), (2, 1, 1, 2)),
    ]
    for function, written_out, shape, rest in cases:
        x, w = torch.randn(2, 20, 6, 5).to(dtype), torch.randn(shape).to(dtype)
        b = torch.randn(4).to(dtype) if bias else None
        tensors = [t for t in (x, w, b) if t is not None]
        ours = [t.clone().requires_grad_() for t in tensors]
        exact = [t.double().requires_grad_() for t in tensors]
        y = function(*ours, *([] if bias else [None]), *rest, centered=centered, scale=2.0)
        expected = written_out(
            *exact, *([] if bias else [None]), *rest, centered=centered, scale=2.0
        )
        assert y.dtype == dtype and worst(y, expected) <= 2 * TABLE[dtype]
        grad = torch.randn(y.shape).to(dtype)
        grads = torch.autograd.grad(y, ours, grad)
        rights = torch.autograd.grad(expected, exact, grad.double())
        for got, right in zip(grads, rights, strict=True):
            assert got.dtype == dtype
            assert worst(got, right) <= 4 * TABLE[dtype] * right.abs().max().item()


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", ["linear", "conv", "transpose"])
@pytest.mark.parametrize("power", range(-15, 16, 3))
def test_the_magnitude_of_the_input_is_forgotten(power, kind, centered):
    """y(λx) = y(x), and the gradient falls as 1/λ; the same for the weights."""
    function, shapes = {
        "linear": (F.cosine_linear, ((5, 30), (7, 30))),
        "conv": (F.cosine_conv2d, ((2, 4, 6, 6), (5, 4, 3, 3))),
        "transpose": (F.cosine_conv_transpose2d, ((2, 4, 4, 4), (4, 5, 3, 3))),
    }[kind]
    factor = 10.0**power
    x, w = (torch.randn(s, requires_grad=True) for s in shapes)
    y = function(x, w, centered=centered)
    cotangent = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, w), cotangent)
    for sx, sw in ((factor, 1.0), (1.0, factor)):
        big = (x * sx).detach().requires_grad_(), (w * sw).detach().requires_grad_()
        again = function(*big, centered=centered)
        torch.testing.assert_close(again, y, rtol=1e-5, atol=2e-6)
        for create_graph in (True, False):  # by the reference, by the formula
            gx, gw = torch.autograd.grad(again, big, cotangent, True, create_graph)
            torch.testing.assert_close(gx * sx, dx, rtol=1e-4, atol=1e-5 * dx.abs().max().item())
            torch.testing.assert_close(gw * sw, dw, rtol=1e-4, atol=1e-5 * dw.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("n", [2, 3, 9, 64, 577, 2048])
def test_parallel_vectors_stay_within_the_bound(n, centered, dtype):
    w = torch.randn(64, n).to(dtype)
    x = torch.cat([w, -w, 3 * w, w / 16]).to(dtype)
    for y in (
        F.cosine_linear(x, w, centered=centered),
        F.cosine_linear(x, w, centered=centered, scale=torch.ones(1)),
        F.cosine_linear(x, w, centered=centered, scale=-2) / -2,
        F.cosine_conv1d(x[:, :, None], w[:, :, None], centered=centered)[..., 0],
        F.cosine_conv_transpose1d(x[:, :, None], w.t()[..., None], centered=centered)[..., 0],
    ):
        assert (y.abs() <= 1).all()
        table = torch.tensor([1.0, -1, 1, 1])[:, None].expand(4, 64)
        found = y.unflatten(0, (4, 64)).diagonal(dim1=1, dim2=2)
        assert worst(found, table) <= 4 * TABLE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_clamp_lets_gradients_pass(dtype):
    """At parallel vectors the gradient is that of c = 1, orthogonal to both: next to nothing."""
    w = torch.randn(8, 50).to(dtype)
    x = (2 * w).clone().requires_grad_()
    y = F.cosine_linear(x, w).diagonal()
    (dx,) = torch.autograd.grad(y.sum(), x)
    scale = 1 / w.double().norm(dim=1).min().item()
    assert dx.abs().max().item() <= 8 * TABLE[dtype] * scale
    off = torch.autograd.grad(F.cosine_linear(x, w)[0, 1], x)[0]
    assert off[0].abs().max().item() > 10 * TABLE[dtype] * scale / 8


@pytest.fixture(params=["float32", "float16"])
def product(request, monkeypatch):
    """In which dtype float16 is multiplied: the latter as on a GPU, with lifted weights."""
    if request.param == "float16":
        monkeypatch.setattr(numerics, "HALF_PRODUCTS", ("cpu", "cuda"))
    return request.param


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-4])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("entries", [4, 255, 4095])
def test_float16_of_every_size(entries, centered, size):
    """What x·v loses below the least number of float16 is no more than what rounding took of x."""
    x, w = torch.randn(20, entries).mul(size).half(), torch.randn(6, entries).half()
    ours = [t.clone().requires_grad_() for t in (x, w)]
    exact = [t.double().requires_grad_() for t in (x, w)]
    y = F.cosine_linear(*ours, centered=centered)
    expected = oracle.linear(*exact, centered=centered)
    lost = 2**-24 / size  # half of the least number
    assert worst(y, expected) <= 2 * TABLE[torch.float16] + 2 * lost
    grad = torch.randn(y.shape).mul(size).half()
    right = torch.autograd.grad(expected, exact, grad.double())
    for g, r in zip(torch.autograd.grad(y, ours, grad), right, strict=True):
        bound = 4 * TABLE[torch.float16] * r.abs().max().item()
        assert worst(g, r) <= bound + 4 * lost


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", ["linear", "conv", "transpose"])
def test_float16_near_the_top_of_its_range(kind, centered, product):
    """65504 · n does not fit into float16, nor do its squares; the result does.

    Sums of gradients over many fields have to fit where the product is taken in float16, as they
    have to of inputs of size one in a plain layer.
    """
    function, written_out, shapes = {
        "linear": (F.cosine_linear, oracle.linear, ((4, 200), (6, 200))),
        "conv": (F.cosine_conv2d, oracle.conv, ((2, 16, 5, 5), (6, 16, 3, 3))),
        "transpose": (
            F.cosine_conv_transpose2d,
            oracle.conv_transpose,
            ((2, 6, 3, 3), (6, 4, 3, 3)),
        ),
    }[kind]
    x = torch.rand(shapes[0]).mul(0.2).add(0.8).mul(65504).half()
    w = torch.rand(shapes[1]).mul(0.5).add(0.5).mul(65504).half()
    x.view(-1)[0] = w.view(-1)[0] = 65504
    ours = [t.clone().requires_grad_() for t in (x, w)]
    exact = [t.double().requires_grad_() for t in (x, w)]
    y, expected = function(*ours, centered=centered), written_out(*exact, centered=centered)
    assert torch.isfinite(y).all()
    assert worst(y, expected) <= 2 * TABLE[torch.float16]
    grad = torch.rand(y.shape).sub(0.5).mul(1e5 if product == "float32" else 3e2).half()
    got = torch.autograd.grad(y, ours, grad)
    right = torch.autograd.grad(expected, exact, grad.double())
    for g, r in zip(got, right, strict=True):
        assert torch.isfinite(g).all()
        # and the step between the least numbers
        assert worst(g, r) <= 4 * TABLE[torch.float16] * r.abs().max().item() + 4 * 2**-24


@pytest.mark.parametrize("offset", [10.0, 1000.0])
@pytest.mark.parametrize("kind", ["linear", "conv", "wide conv", "transpose"])
def test_pearson_survives_a_large_offset(kind, offset):
    """The bound is what rounding x itself leaves: offset · ε, relative to a signal of 1."""
    function, written_out, shapes = {
        "linear": (F.cosine_linear, oracle.linear, ((8, 500), (6, 500))),
        "conv": (F.cosine_conv2d, oracle.conv, ((2, 3, 8, 8), (6, 3, 5, 5))),
        "wide conv": (F.cosine_conv2d, oracle.conv, ((2, 64, 6, 6), (6, 64, 3, 3))),
        "transpose": (
            F.cosine_conv_transpose2d,
            oracle.conv_transpose,
            ((2, 8, 4, 4), (8, 5, 3, 3)),
        ),
    }[kind]
    plain = torch.randn(shapes[0]), torch.randn(shapes[1])
    for x, w in ((plain[0] + offset, plain[1]), (plain[0], plain[1] + offset)):
        ours = [t.clone().requires_grad_() for t in (x, w)]
        exact = [t.double().requires_grad_() for t in (x, w)]
        y, expected = function(*ours, centered=True), written_out(*exact, centered=True)
        eps = offset * torch.finfo(torch.float32).eps
        assert worst(y, expected) <= 4 * eps
        grad = torch.randn_like(y)
        got = torch.autograd.grad(y, ours, grad)
        right = torch.autograd.grad(expected, exact, grad.double())
        for g, r in zip(got, right, strict=True):
            assert worst(g, r) <= 8 * eps * r.abs().max().item()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("way", ["op", "reference"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_rounded_weights_do_not_bring_the_offset_back(kind, way, dtype):
    """Rounded, the centred weights no longer add up to zero; times the mean of x, it would show."""
    function, written_out, shapes = {
        "linear": (F.cosine_linear, oracle.linear, ((8, 30), (40, 30))),
        "conv": (F.cosine_conv2d, oracle.conv, ((2, 4, 5, 5), (40, 4, 3, 3))),
    }[kind]
    x, w = (torch.randn(shapes[0]) + 64).to(dtype), torch.randn(shapes[1]).to(dtype)
    if way == "op":
        y = function(x, w, centered=True)
    else:  # under torch.func it is the reference that computes
        y = torch.vmap(lambda x: function(x, w, centered=True))(x[None])[0]
    expected = written_out(x.double(), w.double(), centered=True)
    assert y.dtype == dtype and worst(y, expected) <= TABLE[dtype] / 2


LAYERS = {
    "linear": (lambda **o: nn.PearsonLinear(60, 7, **o), (5, 60)),
    "conv": (lambda **o: nn.CosineConv2d(8, 6, 3, groups=2, **o), (2, 8, 6, 6)),
    "pearson conv": (lambda **o: nn.PearsonConv1d(8, 6, 3, padding="same", **o), (2, 8, 9)),
    "transpose": (lambda **o: nn.PearsonConvTranspose2d(4, 6, 3, **o), (2, 4, 4, 4)),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("options", [{}, {"bias": True, "learn_scale": True}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_autocast_rounds_the_input_once_and_keeps_the_norms_wide(name, options, dtype):
    build, shape = LAYERS[name]
    layer, x = build(**options), torch.randn(shape)
    exact = build(**options, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    with torch.autocast("cpu", dtype):
        y = layer(x.requires_grad_())
        plain = torch.nn.functional.linear(torch.randn(2, 3), torch.randn(4, 3))
    assert y.dtype == plain.dtype == dtype
    rounded = x.detach().to(dtype).double().requires_grad_()
    expected = exact(rounded)
    assert worst(y, expected) <= 2 * TABLE[dtype]
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    expected.backward(cotangent.double())
    assert x.grad.dtype == torch.float32
    assert worst(x.grad, rounded.grad) <= 4 * TABLE[dtype] * rounded.grad.abs().max().item()
    for got, right in zip(layer.parameters(), exact.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        assert worst(got.grad, right.grad) <= 4 * TABLE[dtype] * right.grad.abs().max().item()


def test_autocast_may_be_off_inside_and_parameters_may_differ():
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert F.cosine_linear(x, w).dtype == torch.float32
        mixed = F.cosine_linear(x.half(), w, torch.randn(5).bfloat16(), centered=True)
        assert mixed.dtype == torch.bfloat16
        assert F.cosine_linear(x.double(), w.double()).dtype == torch.float64
    with torch.autocast("cpu", torch.float16):
        assert F.cosine_linear(x, w, torch.randn(5).bfloat16()).dtype == torch.float16
