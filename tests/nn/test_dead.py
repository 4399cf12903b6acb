"""Layers whose weight vectors have no direction: found, said once, and by convert given a start."""

import warnings

import pytest
import torch
from torch import nn

import cosnorm
from cosnorm.conversion.layers import TransposedCosineLinear, TransposedPearsonLinear
from cosnorm.nn import CosineConv2d, PearsonConvTranspose1d, PearsonLinear
from cosnorm.nn.dead import warn_if_dead

ANEW = "initialised anew: its weights had no direction and would never learn"


def filled(layer, value, bias=0.0):
    nn.init.constant_(layer.weight, value)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (5, 4)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 5)),
    "without bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4)),
}


@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("case", LAYERS)
def test_zeros_are_initialised_anew_and_it_is_said(case, similarity):
    build, shape = LAYERS[case]
    model = nn.Sequential(filled(build(), 0.0))
    weight = model[0].weight
    account = cosnorm.convert(model, similarity, head={"0": 4.0})
    assert account[0].reason == f"head: learned scale from 4; {ANEW}"
    assert model[0].weight is weight
    assert model[0].scale.item() == 4
    bound = {"linear": 4, "conv": 18, "transposed": 9, "without bias": 4}[case] ** -0.5
    assert 0.5 * bound < weight.abs().max() <= bound
    model(torch.randn(shape)).square().sum().backward()
    assert (weight.grad.flatten(1).abs().sum(1) > 0).all()


def test_constants_are_dead_for_pearson_only():
    for similarity, fresh in (("pearson", True), ("cosine", False)):
        model = nn.Sequential(filled(nn.Linear(4, 3), 0.5, 0.5))
        account = cosnorm.convert(model, similarity, head=None)
        assert (account[0].reason == ANEW) is fresh


@pytest.mark.parametrize(
    "layer",
    [
        filled(nn.Linear(4, 3), 0.0, 1.0),
        nn.Linear(4, 3),
        filled(nn.Linear(4, 3), 0.0).requires_grad_(False),
        nn.Linear(4, 3, device="meta"),
    ],
    ids=["a bias", "alive", "frozen", "meta"],
)
def test_others_are_left_alone(layer):
    before = layer.weight
    account = cosnorm.convert(nn.Sequential(layer), head=None)
    assert account[0].reason == ""
    if not before.is_meta:
        assert torch.equal(layer.weight, before)


def test_one_dead_unit_is_no_dead_layer():
    layer = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        layer.weight[1] = 0
    cosnorm.convert(nn.Sequential(layer), head=None)
    assert torch.equal(layer.weight[1], torch.zeros(4))


def test_transformers_layout_starts_as_a_linear_layer_does():
    layer = TransposedCosineLinear(4, 400)
    layer.reset_parameters()
    assert layer.weight.shape == (4, 400)
    assert 0.49 < layer.weight.abs().max() <= 0.5


@pytest.mark.parametrize(
    ("layer", "vectors"),
    [
        (filled(cosnorm.nn.CosineLinear(4, 3, bias=True), 0.0), "zero"),
        (filled(cosnorm.nn.PearsonConv2d(4, 3, 3), 2.0), "constant"),
        (filled(cosnorm.nn.PearsonConvTranspose2d(4, 6, 3, groups=2), 2.0), "constant"),
    ],
)
def test_a_layer_that_cannot_learn_says_so(layer, vectors):
    expected = f"{type(layer).__name__}: all weight vectors are {vectors}, so .* reset_parameters"
    with pytest.warns(UserWarning, match=expected):
        warn_if_dead(layer)
    assert layer.looked_at
    layer.reset_parameters()
    warn_if_dead(layer)  # a warning would be an error here


def test_transformers_layout_is_looked_at_by_units():
    layer = TransposedPearsonLinear(4, 3, bias=True)
    warn_if_dead(layer)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(3.0).expand(4, 3))
        layer.bias.copy_(torch.arange(3.0))
    with pytest.warns(UserWarning, match="all weight vectors are constant"):
        warn_if_dead(layer)


def test_it_is_silent_where_nothing_learns_or_the_step_is_recorded():
    layer = filled(cosnorm.nn.CosineLinear(4, 3), 0.0)
    layer.weight.requires_grad_(False)
    warn_if_dead(layer)
    layer.weight.requires_grad_(True)

    class Recorded(nn.Module):
        def forward(self, x):
            warn_if_dead(layer)
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(Recorded(), backend="eager", fullgraph=True)(torch.randn(2))
        torch.fx.experimental.proxy_tensor.make_fx(Recorded())(torch.randn(2))
    assert not layer.looked_at


@pytest.mark.parametrize(
    "kind, sizes, shape",
    [
        (PearsonLinear, (4, 3), (2, 4)),
        (TransposedCosineLinear, (4, 3), (2, 4)),
        (CosineConv2d, (2, 3, 3), (1, 2, 4, 4)),
        (PearsonConvTranspose1d, (2, 3, 3), (1, 2, 4)),
    ],
)
def test_a_layer_in_training_says_it_once(kind, sizes, shape):
    layer, x = kind(*sizes), torch.randn(shape)
    nn.init.zeros_(layer.weight)
    layer.eval()(x)  # a warning would be an error here
    with pytest.warns(UserWarning, match="will never learn; call reset_parameters"):
        layer.train()(x)
    layer(x)
    assert kind(*sizes)(x).any()
