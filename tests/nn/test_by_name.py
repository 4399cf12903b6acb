"""One word chooses the method; everything else of the call stays."""

import inspect

import pytest
import torch
from torch import nn as torch_nn

from cosnorm import nn
from cosnorm.methods import METHODS

DIMENSIONS = {"linear": 0, "conv1d": 1, "conv2d": 2, "conv3d": 3}
NAMES = {
    "pearson": "Pearson",
    "cosine": "Cosine",
    "batch": "BatchNorm",
    "weight": "WeightNorm",
    "layer": "LayerNorm",
    "none": "Plain",
    "group": "GroupNorm",
    "rms": "RMSNorm",
}


def build(factory, method, **options):
    kernel = (3,) if DIMENSIONS[factory] else ()
    return getattr(nn, factory)(method, 4, 6, *kernel, **options)


def test_methods_are_the_papers_in_its_order_then_others():
    papers = ("pearson", "cosine", "batch", "weight", "layer", "none")
    assert tuple(METHODS) == (*papers, "group", "rms")


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("factory", DIMENSIONS)
def test_every_method_has_every_layer_with_weight_scale_and_activation(factory, method):
    options = {"scale": 3.0, "learn_scale": "per_output", "activation": "relu", "bias": True}
    layer = build(factory, method, **options, dtype=torch.float64)
    kind = factory.replace("conv", "Conv").replace("linear", "Linear")
    assert type(layer) is getattr(nn, NAMES[method] + kind)
    assert layer.weight.shape[:2] == (6, 4)
    assert torch.equal(layer.scale, torch.full((6,), 3.0, dtype=torch.float64))
    assert torch.equal(layer.bias, torch.zeros(6, dtype=torch.float64))
    x = torch.randn(5, 4, *[6] * DIMENSIONS[factory], dtype=torch.float64)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (5, 6, *[4] * DIMENSIONS[factory])
    assert y.min() >= 0
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("factory", DIMENSIONS)
def test_arguments_are_torchs_in_torchs_order(factory):
    kind = getattr(torch_nn, factory.replace("conv", "Conv").replace("linear", "Linear"))
    torchs = [p for p in inspect.signature(kind).parameters if p not in ("device", "dtype")]
    ours = inspect.signature(getattr(nn, factory)).parameters
    last = ["affine", "scale", "learn_scale", "activation", "device", "dtype"]
    assert list(ours) == ["method", *torchs, *last]
    assert all(ours[key].kind is inspect.Parameter.KEYWORD_ONLY for key in last)


@pytest.mark.parametrize("method", list(METHODS))
def test_convolution_arguments_arrive(method):
    layer = nn.conv2d(method, 4, 6, (3, 1), (2, 1), (2, 0), (2, 1), 2, False, "reflect")
    torchs = torch_nn.Conv2d(4, 6, (3, 1), (2, 1), (2, 0), (2, 1), 2, False, "reflect")
    x = torch.randn(2, 4, 9, 9)
    assert layer(x).shape == torchs(x).shape
    assert layer.padding_mode == "reflect"
    assert layer.weight.shape == torchs.weight.shape


@pytest.mark.parametrize("factory", DIMENSIONS)
def test_affine_where_it_has_a_meaning(factory):
    for method in ("batch", "weight", "layer", "group", "rms"):
        assert build(factory, method, affine=True).affine
    for method in ("pearson", "cosine", "none"):
        with pytest.raises(ValueError, match=f"layer, group, rms; got method '{method}'"):
            build(factory, method, affine=True)


@pytest.mark.parametrize("factory", DIMENSIONS)
def test_unknown_method(factory):
    with pytest.raises(ValueError, match=r"one of pearson, cosine, .*, rms; got 'instance'"):
        build(factory, "instance")
