"""Networks as one: each learns as it would alone, whatever its neighbours do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosnorm.methods import METHODS
from cosnorm.nn import CosineConv2d, CosineLinear, PearsonLinear
from cosnorm.nn.stacked import StackedLinear, stacked
from cosnorm.study.models import Recipe, mlp

CHOICES = [
    (method, bias, affine)
    for method, entry in METHODS.items()
    for bias in (False, True)
    for affine in ((False, True) if entry.affine else (False,))
]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}


def networks_of(dtype=torch.float64, count=3, **recipe):
    return [mlp((3, 4), 5, Recipe(**recipe), width=16).to(dtype) for _ in range(count)]


def step_of(network, x, y, lr):
    network.zero_grad()
    F.cross_entropy(network(x), y).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= lr * parameter.grad


def step_as_one(whole, x, y, lr):
    whole.zero_grad()
    losses = F.cross_entropy(whole(x).flatten(0, 1), y.flatten(), reduction="none")
    losses.view(y.shape).mean(1).sum().backward()
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.grad is not None:
                parameter -= lr * parameter.grad
    for layer in whole:
        if isinstance(layer, StackedLinear):
            layer.descend(lr)


def assert_rows(whole, networks, tolerance):
    rows = {name.replace("one.", ""): tensor for name, tensor in whole.state_dict().items()}
    for row, network in enumerate(networks):
        assert network.state_dict().keys() == rows.keys()
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(
                rows[name][row], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
            )


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("method", "bias", "affine"), CHOICES)
def test_each_learns_as_it_would_alone(method, bias, affine, dtype, deferred):
    networks = networks_of(dtype, method=method, bias=bias, affine=affine)
    whole = stacked(networks)
    for layer in whole[1:]:
        layer.deferred = deferred
    for _ in range(8):
        x, y = torch.rand(3, 10, 3, 4, dtype=dtype), torch.randint(5, (3, 10))
        for network, own_x, own_y in zip(networks, x, y, strict=True):
            step_of(network, own_x, own_y, lr=0.3)
        step_as_one(whole, x, y, lr=0.3)
    assert_rows(whole, networks, TOLERANCE[dtype])


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_a_direction(method):
    """Zero for the cosine and constant for Pearson, in the input and in the weights."""
    networks = networks_of(method=method)
    with torch.no_grad():
        for network in networks:
            network[1].weight[0] = 0
            network[1].weight[1] = 0.7
    whole = stacked(networks)
    x, y = torch.rand(3, 10, 3, 4, dtype=torch.float64), torch.randint(5, (3, 10))
    x[:, 0], x[:, 1] = 0, 0.3
    for network, own_x, own_y in zip(networks, x, y, strict=True):
        step_of(network, own_x, own_y, lr=0.3)
    step_as_one(whole, x, y, lr=0.3)
    assert_rows(whole, networks, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_is_no_longer_one_of_numbers_leaves_the_others_alone(method):
    networks = networks_of(method=method)
    with torch.no_grad():
        networks[1][1].weight.fill_(torch.nan)
    whole = stacked(networks)
    x, y = torch.rand(3, 10, 3, 4, dtype=torch.float64), torch.randint(5, (3, 10))
    for row in (0, 2):
        step_of(networks[row], x[row], y[row], lr=0.3)
    step_as_one(whole, x, y, lr=0.3)
    rows = {name.replace("one.", ""): tensor for name, tensor in whole.state_dict().items()}
    for row in (0, 2):
        for name, tensor in networks[row].state_dict().items():
            torch.testing.assert_close(rows[name][row], tensor)
    assert rows["1.weight"][1].isnan().all()


@pytest.mark.parametrize(
    "settings", [{"scale": "fixed", "scale_start": 3.0}, {"scale": "per_class"}]
)
def test_every_kind_of_scale(settings):
    networks = networks_of(method="pearson", **settings)
    whole = stacked(networks)
    x, y = torch.rand(3, 10, 3, 4, dtype=torch.float64), torch.randint(5, (3, 10))
    for network, own_x, own_y in zip(networks, x, y, strict=True):
        step_of(network, own_x, own_y, lr=0.3)
    step_as_one(whole, x, y, lr=0.3)
    assert_rows(whole, networks, 1e-10)


def test_a_gelu_stays_one():
    layers = [CosineLinear(4, 3, activation="gelu") for _ in range(2)]
    x = torch.randn(2, 5, 4)
    y = StackedLinear(layers)(x)
    for row, layer in enumerate(layers):
        torch.testing.assert_close(y[row], layer(x[row]))


def test_what_is_no_stack_of_layers_is_refused():
    with pytest.raises(
        TypeError, match=r"must be of one class of CosineLinear, .*got CosineConv2d"
    ):
        StackedLinear([CosineConv2d(1, 1, 1)])
    with pytest.raises(TypeError, match="got CosineLinear, PearsonLinear: train the networks one"):
        StackedLinear([CosineLinear(2, 2), PearsonLinear(2, 2)])
    with pytest.raises(TypeError, match=r"must be nn\.Sequential; got Linear: train them one by"):
        stacked([nn.Linear(2, 2), nn.Linear(2, 2)])
