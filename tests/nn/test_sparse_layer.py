"""The sparse layer is the dense layer: values, gradients, state, and the steps of plain SGD."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosnorm.methods import METHODS
from cosnorm.nn.by_name import linear
from cosnorm.nn.sparse import SparseLinear
from cosnorm.testing import SLACK, error


def csr(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return x.to_sparse_csr()


def sparse_rows(rows, columns, density=0.2, offset=0.0):
    x = torch.rand(rows, columns) + offset
    return x * (torch.rand(rows, columns) < density)


def pair(method, inputs, outputs, **options):
    """A sparse layer and the dense one, in double precision, with the same state."""
    sparse = SparseLinear(method, inputs, outputs, **options)
    dense = linear(method, inputs, outputs, **options).double()
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


def gradients(layer, x, cotangent):
    y = layer(x)
    y.backward(cotangent.to(y.dtype))
    return y.detach(), {name: p.grad for name, p in layer.named_parameters()}


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_the_dense_layer(method, activation):
    sparse, dense = pair(method, 300, 17, activation=activation)
    x, cotangent = sparse_rows(9, 300), torch.randn(9, 17)
    y, got = gradients(sparse, csr(x), cotangent)
    expected_y, expected = gradients(dense, x.double(), cotangent)
    torch.testing.assert_close(y.double(), expected_y, rtol=1e-5, atol=2e-6)
    for name, grad in expected.items():
        size = float(grad.abs().max())
        torch.testing.assert_close(got[name].double(), grad, rtol=1e-5, atol=3e-6 * max(size, 1))


@pytest.mark.parametrize("method", ["batch", "weight", "layer"])
def test_affine_is_that_of_the_dense_layer(method):
    sparse, dense = pair(method, 40, 6, affine=True)
    assert sparse.state_dict().keys() == dense.state_dict().keys()
    x, cotangent = sparse_rows(5, 40), torch.randn(5, 6)
    y, got = gradients(sparse, csr(x), cotangent)
    expected_y, expected = gradients(dense, x.double(), cotangent)
    torch.testing.assert_close(y.double(), expected_y, rtol=1e-4, atol=1e-5)
    assert got.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(got[name].double(), grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("learn_scale", [False, True, "per_output"])
@pytest.mark.parametrize("method", METHODS)
def test_bias_and_scale_are_those_of_the_dense_layer(method, learn_scale):
    options = {"bias": True, "scale": 3.0, "learn_scale": learn_scale}
    torch.manual_seed(0)
    sparse = SparseLinear(method, 40, 6, **options)
    with torch.no_grad():
        sparse.bias.normal_()
    dense, single = linear(method, 40, 6, **options).double(), linear(method, 40, 6, **options)
    assert sparse.state_dict().keys() == dense.state_dict().keys()
    dense.load_state_dict(sparse.state_dict())
    single.load_state_dict(sparse.state_dict())
    x, cotangent = sparse_rows(5, 40), torch.randn(5, 6)
    x[1] = 0  # with a bias, not a vector without direction
    found, expected, rounded = (
        {"y": y, **grads}
        for y, grads in (
            gradients(layer, rows, cotangent)
            for layer, rows in ((sparse, csr(x)), (dense, x.double()), (single, x))
        )
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Of single precision itself: batch norm cancels a bias, but for rounding.
        off = float((rounded[name] - value).abs().max())
        close = 3e-6 * max(float(value.abs().max()), 1) + 2 * off
        torch.testing.assert_close(found[name].double(), value, rtol=0, atol=close)


@pytest.mark.parametrize("mean", [0.0, 0.03, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_with_a_large_mean(bias, mean):
    """As exact as the dense layer, gradients too, but for the rounding of the mean itself."""
    torch.manual_seed(0)
    sparse = SparseLinear("pearson", 2000, 8, bias=bias)
    with torch.no_grad():
        sparse.weight += mean
        if sparse.bias is not None:
            sparse.bias.normal_().add_(mean)
    dense = linear("pearson", 2000, 8, bias=bias)
    dense.load_state_dict(sparse.state_dict())
    x, seed = sparse_rows(4, 2000, density=0.1), torch.randn(4, 8)
    exact = copy.deepcopy(dense).double()
    for layer, rows in ((sparse, csr(x)), (dense, x), (exact, x.double())):
        layer.y = layer(rows)
        layer.y.backward(seed.to(layer.y.dtype))
    for of in (
        lambda layer: layer.y.detach(), *(
            lambda layer, name=name: getattr(layer, name).grad
            for name in ("weight", "bias")[: 1 + bias]
        )
    ):  # fmt: skip
        right = of(exact)
        allowed = 2 * error(of(dense), right) + SLACK[torch.float32] + 1e-7 * mean
        assert error(of(sparse), right) <= allowed


@pytest.mark.filterwarnings("ignore:.*all weight vectors are constant")  # those of one column
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 300),
    outputs=st.integers(1, 9),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    method=st.sampled_from(["pearson", "cosine", "weight"]),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore:.*will never learn")  # one column has no correlation
@settings(max_examples=60, deadline=None)
def test_equal_for_any_shape_and_density(rows, columns, outputs, density, method, seed):
    torch.manual_seed(seed)
    sparse, dense = pair(method, columns, outputs)
    x, cotangent = sparse_rows(rows, columns, density), torch.randn(rows, outputs)
    y, got = gradients(sparse, csr(x), cotangent)
    expected_y, expected = gradients(dense, x.double(), cotangent)
    if method == "pearson" and columns < 8:
        # Of a few entries the spread can be all rounding: single and double precision differ.
        assert y.abs().max() <= 1
        return
    torch.testing.assert_close(y.double(), expected_y, rtol=1e-4, atol=1e-5)
    grad = expected["weight"]
    close = 2e-4 * max(float(grad.abs().max()), 1)
    torch.testing.assert_close(got["weight"].double(), grad, rtol=1e-4, atol=close)


@pytest.mark.parametrize("method", ["pearson", "cosine"])
def test_zero_rule(method):
    layer = SparseLinear(method, 20, 4)
    x = sparse_rows(3, 20, density=0.5)
    x[1] = 0
    if method == "pearson":
        x[2] = 0.3
        with torch.no_grad():
            layer.weight[2] = 0.7
    with torch.no_grad():
        layer.weight[3] = 0
    y, got = gradients(layer, csr(x), torch.ones(3, 4))
    assert torch.equal(y[1], torch.zeros(4))
    assert torch.equal(y[:, 3], torch.zeros(3))
    assert torch.equal(got["weight"][3], torch.zeros(20))
    if method == "pearson":
        assert torch.equal(y[2], torch.zeros(4))
        assert torch.equal(y[:, 2], torch.zeros(3))
        assert torch.equal(got["weight"][2], torch.zeros(20))


def test_rows_of_any_magnitude():
    layer = SparseLinear("cosine", 50, 8)
    x = sparse_rows(4, 50)
    expected = layer(csr(x))
    for factor in (1e-15, 1e-3, 1e15):
        torch.testing.assert_close(layer(csr(factor * x)), expected)


def test_bound():
    layer = SparseLinear("cosine", 3, 2)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[0.1, 0.7, 0.3], [0.3, 0.3, 0.3]])
    x = torch.tensor([[0.1, 0.7, 0.3], [0.3, 0.3, 0.3]])
    assert layer(csr(x)).abs().max() <= 1


def test_a_constant_but_for_rounding_is_constant():
    layer = SparseLinear("pearson", 500, 3)
    with torch.no_grad():
        layer.weight[1] = 0.1
        layer.weight[2] = 1000.0
    y = layer(csr(sparse_rows(4, 500)))
    assert torch.equal(y[:, 1:], torch.zeros(4, 2))
    assert y[:, 0].abs().min() > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_step_of_plain_sgd_from_the_parts_of_the_gradient(method, bias):
    usual, deferred = SparseLinear(method, 600, 7, bias), SparseLinear(method, 600, 7, bias)
    deferred.load_state_dict(usual.state_dict())
    deferred.deferred = True
    x, cotangent = csr(sparse_rows(5, 600)), torch.randn(5, 7)
    usual(x).backward(cotangent)
    deferred(x).backward(cotangent)
    assert deferred.weight.grad is None
    assert not bias or torch.equal(deferred.bias.grad, usual.bias.grad)
    with torch.no_grad():
        usual.weight -= 0.5 * usual.weight.grad
    deferred.descend(0.5)
    assert deferred.pending == []
    torch.testing.assert_close(deferred.weight, usual.weight, rtol=1e-5, atol=1e-6)


def test_gradients_of_two_passes_add_up():
    usual, deferred = SparseLinear("pearson", 30, 4), SparseLinear("pearson", 30, 4)
    deferred.load_state_dict(usual.state_dict())
    deferred.deferred = True
    for _ in range(2):
        x, cotangent = csr(sparse_rows(5, 30)), torch.randn(5, 4)
        usual(x).backward(cotangent)
        deferred(x).backward(cotangent)
    with torch.no_grad():
        usual.weight -= 0.5 * usual.weight.grad
    deferred.descend(0.5)
    torch.testing.assert_close(deferred.weight, usual.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_frozen_weight_stays(deferred):
    layer = SparseLinear("cosine", 30, 4, bias=True)
    layer.weight.requires_grad_(False)
    layer.deferred = deferred
    layer(csr(sparse_rows(5, 30))).sum().backward()
    assert layer.pending == [] and layer.weight.grad is None and layer.bias.grad.any()


def test_gradient_has_the_layout_of_the_weight():
    layer = SparseLinear("cosine", 30, 4)
    layer(csr(sparse_rows(5, 30))).sum().backward()
    assert layer.weight.shape == (4, 30)
    assert layer.weight.stride() == layer.weight.grad.stride() == (1, 4)


def test_wrong_input_is_refused():
    layer = SparseLinear("cosine", 30, 4)
    with pytest.raises(ValueError, match=r"rows of 30 columns; got torch.strided of"):
        layer(torch.rand(2, 30))
    with pytest.raises(ValueError, match=r"30 columns; got torch.sparse_csr of shape \(2, 31\)"):
        layer(csr(torch.rand(2, 31)))
    with pytest.raises(ValueError, match=r"got torch.sparse_csr of shape \(2, 3, 30\): call"):
        layer(torch.rand(2, 3, 30).to_sparse_csr())
    with pytest.raises(ValueError, match=r"input must be sparse CSR, .*; got list: call"):
        layer([1.0])
    with pytest.raises(ValueError, match=r"method must be one of pearson, .*, rms; got 'instance'"):
        SparseLinear("instance", 3, 3)
    with pytest.raises(ValueError, match="activation must be None or 'relu'; got 'gelu'"):
        SparseLinear("none", 3, 3, activation="gelu")
    with pytest.raises(TypeError, match=r"dtype of the weights, torch.float32; got torch.float64"):
        layer(csr(torch.rand(2, 30).double()))


@pytest.mark.parametrize("method", ["pearson", "cosine", "none"])
def test_what_the_dense_layer_refuses_is_refused(method):
    for make in (SparseLinear, linear):
        with pytest.raises(
            ValueError, match=f"affine belongs to the methods .*; got method '{method}"
        ):
            make(method, 8, 4, affine=True)
    with pytest.raises(TypeError, match="bias must be True or False, got 'yes'"):
        SparseLinear(method, 8, 4, "yes")
