"""torch.func over every layer: vmap, per-sample gradients, Jacobians, jvp, functional_call."""

import pytest
import torch
from layer_cases import normal
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import cosnorm.functional as F
from cosnorm import nn

# torch's own, of its forward-mode formulas for other ops
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

CASES = {
    "linear": (F.cosine_linear, (3, 5), (4, 5), {}),
    "conv1d": (F.cosine_conv1d, (2, 4, 6), (6, 2, 3), {"groups": 2, "padding": 1}),
    "conv2d": (F.cosine_conv2d, (2, 2, 4, 4), (3, 2, 2, 3), {"stride": 2, "padding": "valid"}),
    "transpose1d": (F.cosine_conv_transpose1d, (2, 3, 4), (3, 2, 3), {"stride": 2}),
}
CHOICES = [
    {"centered": True},
    {"centered": False, "activation": "relu", "scale": 2.0},
]


def case(name, choice):
    function, x, w, rest = CASES[name]
    make = normal(3)
    units = w[1] if "transpose" in name else w[0]
    call = lambda x, w, b=None: function(x, w, b, **rest, **choice)  # noqa: E731
    return call, make(*x), make(*w), make(units), make


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(
    "which", [(0, None, None), (None, 0, None), (0, 0, None), (1, None, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("name", CASES)
def test_vmap_equals_a_loop(name, which, choice):
    call, x, w, b, make = case(name, choice)
    sized = [make(3, *t.shape) for t in (x, w, b)]
    given = [
        t if dim is None else many.movedim(0, dim)
        for t, many, dim in zip((x, w, b), sized, which, strict=True)
    ]
    got = vmap(call, which)(*given)
    for i in range(3):
        one = [
            t if dim is None else many[i]
            for t, many, dim in zip((x, w, b), sized, which, strict=True)
        ]
        torch.testing.assert_close(got[i], call(*one))
    nested = vmap(vmap(call, (0, None)), (None, 0))(sized[0], sized[1])
    torch.testing.assert_close(nested[1, 2], call(sized[0][2], sized[1][1]))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_per_sample_gradients_equal_a_loop(name, choice):
    call, x, w, b, make = case(name, choice)
    rows = x.unsqueeze(1)

    def loss(x, w, b):
        return call(x, w, b).sin().sum()

    got = vmap(grad(loss, (0, 1, 2)), (0, None, None))(rows, w, b)
    for i, row in enumerate(rows):
        leaves = [t.clone().requires_grad_() for t in (row, w, b)]
        right = torch.autograd.grad(loss(*leaves), leaves)
        for g, r in zip(got, right, strict=True):
            torch.testing.assert_close(g[i], r)
    ensemble = make(3, *w.shape)
    got = vmap(grad(loss, 1), (None, 0, None))(x, ensemble, b)
    for i in range(3):
        torch.testing.assert_close(got[i], grad(loss, 1)(x, ensemble[i], b))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_jacobians_of_both_modes_and_jvp_agree(name, choice):
    call, x, w, b, make = case(name, choice)
    for argument in (0, 1, 2):
        reverse = jacrev(call, argument)(x, w, b)
        torch.testing.assert_close(jacfwd(call, argument)(x, w, b), reverse)
    reverse = jacrev(call, 0)(x, w, b)
    tangent = make(*x.shape)
    value, push = jvp(lambda x: call(x, w, b), (x,), (tangent,))
    torch.testing.assert_close(value, call(x, w, b))
    torch.testing.assert_close(push, (reverse * tangent).flatten(value.dim()).sum(-1))
    with forward_ad.dual_level():
        dual = call(forward_ad.make_dual(x, tangent), w, b)
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, push)


@pytest.mark.parametrize("name", ["linear", "conv1d", "transpose1d"])
def test_hessians(name):
    call, x, w, b, _ = case(name, {"centered": True})

    def loss(w):
        return call(x, w, b).square().sum()

    second = hessian(loss)(w)
    torch.testing.assert_close(second, jacrev(jacrev(loss))(w))
    torch.testing.assert_close(second, torch.autograd.functional.hessian(loss, w))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_batched_cotangents(name, choice):
    call, x, w, b, make = case(name, choice)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    y = call(*leaves)
    many = make(3, *y.shape)
    got = torch.autograd.grad(y, leaves, many, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        right = torch.autograd.grad(y, leaves, many[i], retain_graph=True)
        for g, r in zip(got, right, strict=True):
            torch.testing.assert_close(g[i], r)


@pytest.mark.parametrize("size", [3, 0])
@pytest.mark.parametrize("dims", [(0, None), (1, None), (None, 0), (0, 1)])
def test_the_ops_themselves_have_a_rule(dims, size):
    linear, conv = torch.ops.cosnorm.cosine_linear, torch.ops.cosnorm.cosine_conv1d
    back = torch.ops.cosnorm.cosine_linear_backward
    need = [True, True, False, False]
    cases = [
        (lambda x, w: [linear(x, w, None, None, "pearson", None, 1.0)], (2, 5), (4, 5)),
        (
            lambda x, w: [conv(x, w, None, None, [1], [0], [1], 1, "pearson", "relu", 1.0)],
            (2, 5, 6),
            (4, 5, 3),
        ),
        (
            lambda x, w: back(x @ w.t(), x, w, None, None, "cosine", "gelu", 2.0, need)[:2],
            (2, 5),
            (4, 5),
        ),
    ]
    for op, *shapes in cases:
        many = [
            torch.randn(shape if dim is None else (*shape[:dim], size, *shape[dim:]))
            for shape, dim in zip(shapes, dims, strict=True)
        ]
        outputs = vmap(op, dims)(*many)
        single = op(*[torch.randn(shape) for shape in shapes])
        assert [t.shape for t in outputs] == [(size, *t.shape) for t in single]
        for i in range(size):
            one = op(*[t if d is None else t.select(d, i) for t, d in zip(many, dims, strict=True)])
            for got, right in zip(outputs, one, strict=True):
                torch.testing.assert_close(got[i], right)


def test_vmap_over_batches_of_nothing():
    w = torch.randn(4, 5)
    assert vmap(lambda x: F.cosine_linear(x, w))(torch.randn(3, 0, 5)).shape == (3, 0, 4)
    assert vmap(lambda x: F.cosine_linear(x, w))(torch.randn(0, 2, 5)).shape == (0, 2, 4)
    k = torch.randn(4, 5, 1)
    assert vmap(lambda x: F.cosine_conv1d(x, k))(torch.randn(3, 0, 5, 2)).shape == (3, 0, 4, 2)


@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "ConvTranspose2d"])
def test_an_ensemble_of_modules(kind):
    shape = (7, 4) if kind == "Linear" else (2, 4, 5, 5)
    extra = () if kind == "Linear" else (3,)
    models = [getattr(nn, f"Pearson{kind}")(4, 6, *extra, bias=True) for _ in range(3)]
    x = torch.randn(shape)
    parameters, buffers = stack_module_state(models)
    got = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    for i, model in enumerate(models):
        torch.testing.assert_close(got[i], model(x), rtol=1e-4, atol=1e-5)


def test_functional_call_takes_other_parameters():
    layer = nn.CosineLinear(4, 3, learn_scale=True)
    x, state = torch.randn(2, 4), {"weight": torch.randn(3, 4), "scale": torch.tensor([2.0])}
    expected = F.cosine_linear(x, state["weight"], scale=2.0)
    torch.testing.assert_close(functional_call(layer, state, (x,)), expected)


def test_transforms_on_the_meta_device():
    x, w = torch.randn(2, 5, 4, device="meta"), torch.randn(3, 4, device="meta")
    assert vmap(lambda x: F.cosine_linear(x, w, centered=True))(x).shape == (2, 5, 3)


def test_tangents_of_constant_vectors_are_zero():
    x, t = torch.ones(2, 5), torch.randn(2, 5)
    w = torch.randn(3, 5)
    value, push = jvp(lambda x: F.cosine_linear(x, w, centered=True), (x,), (t,))
    assert not value.any() and not push.any()
