import math

import pytest
import torch
from torch import nn

from cosnorm.methods import METHODS
from cosnorm.study import models
from cosnorm.study.models import Recipe


def logits(network, shape, rows=4):
    return network(torch.rand(rows, *shape))


@pytest.mark.parametrize("method", METHODS)
def test_every_network_has_every_method(method):
    recipe = Recipe(method=method)
    assert logits(models.mlp(12, 5, recipe, width=8), (12,)).shape == (4, 5)
    vgg = models.vgg((3, 24, 24), 5, recipe, channels=4, width=8)
    assert logits(vgg, (3, 24, 24)).shape == (4, 5)
    small = models.small_conv((1, 8, 8), 5, recipe, channels=4, width=8)
    assert logits(small, (1, 8, 8)).shape == (4, 5)


@pytest.mark.parametrize("pool", ["same", "valid"])
def test_both_readings_of_the_pools_end_at_3_by_3(pool):
    network = models.vgg((3, 24, 24), 10, Recipe(method="cosine"), channels=6, width=7, pool=pool)
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == [*["CosineConv2d"] * 3, "MaxPool2d"] * 3 + ["Flatten", *["CosineLinear"] * 3]
    assert network[13].weight.shape == (7, 3 * 3 * 6)
    assert logits(network, (3, 24, 24)).shape == (4, 10)


def test_the_papers_sizes():
    with torch.device("meta"):
        vgg = models.vgg((3, 24, 24), 10, Recipe(method="batch"))
        mlp = models.mlp(784, 10, Recipe(method="layer"))
    weights = [tuple(p.shape) for name, p in vgg.named_parameters() if name.endswith("weight")]
    convolutions = [(512, 3, 3, 3)] + [(512, 512, 3, 3)] * 8
    assert weights == [*convolutions, (1000, 4608), (1000, 1000), (10, 1000)]
    sizes = sorted(tuple(p.shape) for p in mlp.parameters())
    assert sizes == [(1,), (10, 1000), (1000, 784), (1000, 1000)]


@pytest.mark.parametrize(
    ("scale", "shape"), [("learned", (1,)), ("per_class", (5,)), ("fixed", None)]
)
def test_the_scale_before_softmax(scale, shape):
    recipe = Recipe(method="cosine", scale=scale, scale_start=7.0)
    last = models.mlp(12, 5, recipe, width=8)[-1]
    if shape is None:
        assert last.scale == 7.0
    else:
        assert last.scale.shape == shape
        assert torch.equal(last.scale.detach(), torch.full(shape, 7.0))


def test_hidden_layers_neither_rescale_nor_shift_unless_asked():
    plain = models.mlp(12, 5, Recipe(method="batch"), width=8)
    assert [name for name, _ in plain.named_parameters()] == [
        "1.weight",
        "2.weight",
        "3.weight",
        "3.scale",
    ]
    affine = models.mlp(12, 5, Recipe(method="batch", affine=True), width=8)
    assert affine[1].norm.weight.shape == (8,)
    assert affine[3].norm.weight is None
    own = models.mlp(12, 5, Recipe(method="cosine", affine=True), width=8)
    assert own[1].scale.shape == own[1].bias.shape == (8,)
    assert (own[3].scale.shape, own[3].bias) == ((1,), None)
    for method in METHODS:
        recipe = Recipe(method=method, affine=True)
        dense, sparse = (models.mlp(12, 5, recipe, width=8, sparse=each) for each in (False, True))
        assert dense.state_dict().keys() == sparse.state_dict().keys()


def test_a_network_without_normalisation_has_no_scale():
    network = models.mlp(12, 5, Recipe(method="none"), width=8)
    assert all("scale" not in name for name, _ in network.named_parameters())


def test_batch_norm_settings_reach_every_layer():
    recipe = Recipe(method="batch", bn_momentum=0.3, bn_eps=0.01)
    for network in (
        models.mlp(12, 5, recipe, width=8),
        models.small_conv((1, 8, 8), 5, recipe, channels=4, width=8),
    ):
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert len(norms) >= 3
        assert {(norm.momentum, norm.eps) for norm in norms} == {(0.3, 0.01)}


def test_initialisation_is_a_truncated_normal_of_the_seed():
    networks = []
    for seed in (1, 1, 2):
        network = models.mlp(300, 5, Recipe(method="pearson"), width=200)
        models.initialise(network, 0.1, torch.Generator().manual_seed(seed))
        networks.append(network[1].weight.detach())
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])
    weight = networks[0]
    assert weight.abs().max() <= 0.2
    # The deviation of a normal cut off at two deviations is 0.8796 of the whole one's.
    assert math.isclose(float(weight.std()), 0.1 * 0.8796, rel_tol=0.02)
    assert abs(float(weight.mean())) < 0.002


def test_initialisation_does_not_depend_on_the_memory_layout():
    dense = models.mlp(30, 5, Recipe(method="cosine"), width=20)
    sparse = models.mlp(30, 5, Recipe(method="cosine"), width=20, sparse=True)
    for network in (dense, sparse):
        models.initialise(network, 0.1, torch.Generator().manual_seed(0))
    assert torch.equal(dense[1].weight, sparse[1].weight)
    assert dense.state_dict().keys() == sparse.state_dict().keys()


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        ("vgg", (3, 7, 7), "8×8 or more; got 7×7"),
        ("small_conv", (3, 3, 3), "4×4 or more; got 3×3"),
        ("vgg", (12,), r"needs images .* got rows of shape \(12,\): use the network mlp"),
        ("resnet", (3, 8, 8), "network must be one of mlp, vgg, small_conv; got 'resnet'"),
    ],
)
def test_wrong_input_is_refused(network, shape, message):
    with pytest.raises(ValueError, match=message):
        models.build(network, shape, 10, Recipe(method="cosine"), channels=4, width=4)


def test_valid_pools_need_larger_images():
    with pytest.raises(ValueError, match="22×22 or more; got 21×21"):
        models.vgg((3, 21, 21), 10, Recipe(method="cosine"), channels=2, width=2, pool="valid")
