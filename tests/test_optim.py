"""Weight decay spared, vectors of length one after each step, rates logged and translated."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from cosnorm import optim
from cosnorm.conversion import convert
from cosnorm.nn import (
    BatchNormLinear,
    CosineConv2d,
    CosineConvTranspose2d,
    CosineLinear,
    LayerNormLinear,
    PearsonConv1d,
    PearsonConvTranspose1d,
    PearsonLinear,
    WeightNormConv2d,
)
from cosnorm.nn.sparse import SparseLinear
from cosnorm.optim import effective_lr, param_groups, project, project_after_step, translated_lr

LAYERS = {
    "cosine": (lambda: CosineLinear(6, 4), (5, 6)),
    "pearson with bias": (lambda: PearsonLinear(6, 4, bias=True), (5, 6)),
    "conv, groups": (lambda: CosineConv2d(4, 6, 3, groups=2, bias=True), (2, 4, 7, 7)),
    "pearson conv": (lambda: PearsonConv1d(3, 5, 3), (2, 3, 9)),
    "transposed, groups": (lambda: CosineConvTranspose2d(4, 6, 3, 2, groups=2), (2, 4, 5, 5)),
    "pearson transposed": (lambda: PearsonConvTranspose1d(4, 6, 4, 2), (2, 4, 5)),
    "weight": (lambda: WeightNormConv2d(4, 6, 3), (2, 4, 7, 7)),
    "batch": (lambda: BatchNormLinear(6, 4), (5, 6)),
}


def filled(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=3.0)
    return layer.double()


@pytest.mark.parametrize("name", LAYERS)
def test_a_projected_layer_computes_what_it_did(name):
    make, shape = LAYERS[name]
    layer, x = filled(make()), torch.randn(shape, dtype=torch.float64)
    before = layer(x)
    project(layer)
    tolerance = 1e-4 if name == "batch" else 1e-12  # batch norm's epsilon is not free of scale
    torch.testing.assert_close(layer(x), before, rtol=tolerance, atol=tolerance)
    model = nn.Sequential(layer)
    rates = effective_lr(model, torch.optim.SGD(model.parameters(), lr=0.3))
    assert rates == {"0": pytest.approx(0.3)}


def test_a_pearson_layer_knows_its_weights_without_their_mean():
    """The rate that is told is the one by which the direction that counts turns in a step."""
    torch.manual_seed(0)
    layer = PearsonLinear(8, 4, bias=True).double()
    with torch.no_grad():
        layer.weight += 10
        layer.bias += 10
    x = torch.randn(5, 8, dtype=torch.float64)
    model, unit = nn.Sequential(layer), nn.Sequential(copy.deepcopy(layer))
    project(unit)
    torch.testing.assert_close(unit(x), model(x))
    torch.testing.assert_close(joint(unit[0]).sum(1), torch.zeros(4).double())
    torch.testing.assert_close(joint(unit[0]).norm(dim=1), torch.ones(4).double())
    for each in (unit, model):
        (each(x) * torch.arange(1.0, 5)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    told = effective_lr(model, optimizer)["0"]
    first = direction(layer)
    optimizer.step()
    turned = (direction(layer) - first).norm(dim=1)
    grads = torch.cat([unit[0].weight.grad, unit[0].bias.grad.unsqueeze(1)], 1).norm(dim=1)
    assert told == pytest.approx(float((turned / grads).mean()), rel=1e-3)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_adams_kin_turn_vectors_by_the_rate_over_their_length(kind):
    """Twice the length, half the turn: what a first step does, and what is told."""
    turns, told = [], []
    for length in (1.0, 2.0):
        torch.manual_seed(0)
        layer = CosineLinear(50, 4).double()
        with torch.no_grad():
            layer.weight.mul_(length / layer.weight.norm(dim=1, keepdim=True))
        optimizer = kind(layer.parameters(), lr=1e-5)
        told.append(effective_lr(layer, optimizer)[""])
        first = nn.functional.normalize(layer.weight.detach().clone())
        layer(torch.randn(8, 50, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        turns.append(float((nn.functional.normalize(layer.weight.detach()) - first).norm()))
    assert turns[0] / turns[1] == pytest.approx(2, rel=0.02)
    assert told == [pytest.approx(1e-5), pytest.approx(0.5e-5)]


def joint(layer):
    return torch.cat([layer.weight, layer.bias.unsqueeze(1)], 1).detach()


def direction(layer):
    rows = joint(layer)
    return nn.functional.normalize(rows - rows.mean(1, keepdim=True))


def test_vectors_without_a_direction_never_turn():
    model = nn.Sequential(CosineLinear(3, 2), PearsonLinear(2, 2, bias=True))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 0, 0], [2, 0, 0]]))
        model[1].weight.fill_(0.1)
        model[1].bias.fill_(0.1)
    kept = model[1].weight.clone()
    rates = effective_lr(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert rates == {"0": pytest.approx(1 / 8), "1": 0.0}
    project(model)
    assert torch.equal(model[1].weight, kept)


class Wrapper(torch.optim.Optimizer):
    """An optimiser around another, as libraries of training have them."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self):
        self.optimizer.step()


def test_an_optimiser_around_another_projects_too():
    model = nn.Sequential(CosineLinear(3, 2))
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=1.0))
    project_after_step(optimizer, model)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model[0].weight.norm(dim=1), torch.ones(2))
    assert effective_lr(model, optimizer) == {"0": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: param_groups([1], 0.1), "model must be a torch.nn.Module; got list"),
        (lambda: project("model"), "model must be a torch.nn.Module; got str"),
        (
            lambda: project_after_step("sgd", CosineLinear(2, 2)),
            "optimizer must be a torch.optim.Optimizer; got str 'sgd'",
        ),
        (lambda: effective_lr(CosineLinear(2, 2), None), "optimizer must be a torch.optim.Opti"),
    ],
)
def test_arguments_of_other_kinds(call, told):
    with pytest.raises(TypeError, match=told):
        call()


@pytest.mark.parametrize("wrong", [True, -0.1, 0, float("nan"), "0.1"])
def test_a_rate_that_is_none(wrong):
    with pytest.raises(ValueError, match="lr must be a number above 0, the rate of dot products"):
        translated_lr(CosineLinear(2, 2), wrong, torch.randn(3, 2))


def test_a_rate_for_models_and_layers_that_are_called_by_keyword():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = CosineLinear(4, 2, scale=0.0)

        def forward(self, *, rows):
            return self.layer(input=rows)

    assert translated_lr(Named(), 0.1, rows=torch.randn(3, 4)) == {"layer": float("inf")}


def test_vectors_of_zeros_and_frozen_layers_stay():
    model = nn.Sequential(CosineLinear(3, 2), CosineLinear(2, 2).requires_grad_(False))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].weight[1] = 2
    frozen = model[1].weight.clone()
    project(model)
    assert model[0].weight[0].tolist() == [0, 0, 0]
    assert float(model[0].weight[1].detach().norm()) == pytest.approx(1)
    assert torch.equal(model[1].weight, frozen)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_after_every_step_of_any_optimiser(kind):
    model = nn.Sequential(PearsonLinear(6, 8), nn.ReLU(), CosineLinear(8, 3, bias=True, scale=5.0))
    optimizer = kind(model.parameters(), lr=0.1)
    handle = project_after_step(optimizer, model)

    def step():
        optimizer.zero_grad()
        model(torch.randn(10, 6)).square().mean().backward()
        optimizer.step()
        joint = torch.cat([model[2].weight, model[2].bias.unsqueeze(1)], 1)
        return torch.cat([model[0].weight.norm(dim=1), joint.norm(dim=1)])

    for _ in range(3):
        torch.testing.assert_close(step(), torch.ones(11))
    handle.remove()
    assert not torch.allclose(step(), torch.ones(11))


def test_an_optimiser_of_another_model_is_refused():
    model, other = CosineLinear(3, 2), CosineLinear(3, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="it updates none of 1: make it from this model's"):
        project_after_step(optimizer, model)


def test_a_layer_of_which_a_part_is_frozen_is_no_reason_to_project():
    model = nn.Sequential(CosineLinear(8, 4, bias=True))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    with pytest.raises(ValueError, match="with their biases; it updates none of 1"):
        project_after_step(optimizer, model)


@pytest.mark.parametrize("kind", [CosineLinear, PearsonLinear])
@pytest.mark.parametrize("rows", [slice(None), slice(1)])
def test_a_layer_that_has_diverged_has_no_rate(kind, rows):
    model = kind(8, 4)
    with torch.no_grad():
        model.weight[rows] = torch.nan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert math.isnan(effective_lr(model, optimizer)[""])


def test_groups_spare_what_has_no_length():
    model = nn.Sequential(
        PearsonLinear(4, 4, bias=True, learn_scale=True),
        LayerNormLinear(4, 4, affine=True),
        nn.Linear(4, 2),
    )
    decayed, spared = param_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0
    assert {id(p) for p in decayed["params"]} == {id(model[1].weight), id(model[2].weight)}
    every = {id(p) for p in model.parameters()}
    assert {id(p) for g in (decayed, spared) for p in g["params"]} == every
    optimizer = torch.optim.SGD([decayed, spared], lr=1.0)
    before = [model[0].weight.clone(), model[2].weight.clone()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(model[0].weight, before[0])
    torch.testing.assert_close(model[2].weight, 0.9 * before[1])


def test_tied_weights_are_in_one_group_once():
    model = nn.Sequential(CosineLinear(4, 4), CosineLinear(4, 4))
    model[1].weight = model[0].weight
    assert [len(group["params"]) for group in param_groups(model, 0.1)] == [1]


class Tied(nn.Module):
    """A word embedding whose weight is the head's too."""

    def __init__(self):
        super().__init__()
        self.words, self.body, self.head = (
            nn.Embedding(9, 6),
            PearsonLinear(6, 6),
            CosineLinear(6, 9),
        )
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.body(self.words(x)))


def shared(first, second):
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("make", "stays"),
    [
        (Tied, "head.weight"),
        (lambda: shared(CosineLinear(6, 6, bias=True), CosineLinear(6, 6, bias=True)), "0.weight"),
        (lambda: shared(CosineLinear(6, 6), PearsonLinear(6, 6)), "0.weight"),
        (lambda: shared(CosineLinear(6, 6), nn.Linear(6, 6)), "0.weight"),
        (lambda: shared(BatchNormLinear(6, 6), BatchNormLinear(6, 6)), "0.weight"),
        (lambda: shared(CosineLinear(6, 6), CosineLinear(6, 6)), None),
        (lambda: shared(PearsonLinear(6, 6, scale=2.0), PearsonLinear(6, 6)), None),
    ],
)
def test_weights_that_are_shared(make, stays):
    """They are projected where one change suits all that have them, else left, and decay."""
    model = filled(make()).eval()
    x = torch.randint(9, (5, 4)) if isinstance(model, Tied) else torch.randn(5, 6).double()
    before, old = model(x), copy.deepcopy(dict(model.named_parameters()))
    project(model)
    torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, old[name])}
    decayed = {
        p for group in param_groups(model, 0.1) if group["weight_decay"] for p in group["params"]
    }
    if stays is None:
        assert moved and not decayed
    else:
        kept = model.get_parameter(stays)
        assert kept in decayed
        assert not any(model.get_parameter(name) is kept for name in moved)


@pytest.mark.parametrize("bias", [False, True])
def test_the_statistics_of_batch_norms_go_along(bias):
    torch.manual_seed(0)
    layer, x = filled(BatchNormLinear(6, 4, bias=bias)), torch.randn(50, 6).double()
    for _ in range(20):
        layer(x)
    layer.eval()
    before = layer(x)
    project(layer)
    assert float(layer.weight.detach().norm(dim=1).max()) == pytest.approx(1)
    torch.testing.assert_close(layer(x), before, rtol=1e-4, atol=1e-4)


def test_a_batch_norm_of_two_blocks_is_left():
    model = nn.Sequential(BatchNormLinear(6, 6), BatchNormLinear(6, 6))
    model[1].norm = model[0].norm
    model(torch.randn(20, 6))
    before = copy.deepcopy(model.state_dict())
    project(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match="it has none: convert it first"):
        project_after_step(torch.optim.SGD(model.parameters(), lr=0.1), model)


def test_a_frozen_bias_holds_its_layer():
    layer = CosineLinear(3, 2, bias=True)
    layer.bias.requires_grad_(False)
    before = copy.deepcopy(layer.state_dict())
    project(layer)
    assert all(torch.equal(layer.state_dict()[key], before[key]) for key in before)


def test_weights_that_are_computed_or_not_there():
    model = nn.Sequential(
        nn.Linear(3, 3), torch.nn.utils.parametrizations.weight_norm(CosineLinear(3, 2))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (lambda: project(model), lambda: project_after_step(optimizer, model)):
        with pytest.raises(ValueError, match="1 computes its own by a parametrization: call"):
            call()
    assert effective_lr(model, optimizer) == {}
    absent = nn.Sequential(CosineLinear(3, 2, device="meta"))
    optimizer = torch.optim.SGD(absent.parameters(), lr=0.1)
    calls = (
        lambda: project(absent), lambda: effective_lr(absent, optimizer),
        lambda: translated_lr(absent, 0.1, torch.empty(2, 3, device="meta")),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="must be in memory; those of 0 are not yet: load"):
            call()
    assert len(param_groups(absent, 0.1)) == 1
    with pytest.raises(ValueError, match=r"0\.weight has none yet: run the model on a batch first"):
        param_groups(nn.Sequential(nn.LazyLinear(3)), 0.1)


def test_a_batch_without_rows_and_no_batch():
    model = nn.Sequential(CosineLinear(5, 2))
    with pytest.raises(ValueError, match=r"0 got an input of shape \(0, 5\): pass a batch"):
        translated_lr(model, 0.1, torch.zeros(0, 5))
    with pytest.raises(TypeError, match="input must be a tensor"):
        translated_lr(model, 0.1, "x")
    with pytest.raises(TypeError, match="got none: pass a batch after lr"):
        translated_lr(model, 0.1)


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), "0.1"])
def test_a_decay_that_is_none(wrong):
    with pytest.raises(ValueError, match="weight_decay must be a number of at least 0; got"):
        param_groups(nn.Linear(2, 2), wrong)


def test_a_translated_rate_moves_outputs_as_a_dot_product_does():
    """One step on one output, by both layers: the same change, where x and w are far from alike."""
    torch.manual_seed(1)
    x = 3 * torch.randn(64, 400, dtype=torch.float64)
    plain = nn.Linear(400, 1, bias=False).double()
    cosine = CosineLinear(400, 1, scale=0.7).double()
    cosine.load_state_dict(plain.state_dict())
    lr = 1e-6  # small steps: a cosine is bounded, a product is not
    rate = translated_lr(nn.Sequential(cosine), lr, x)["0"]

    def change(layer, rate, row):
        layer.zero_grad()
        before = layer(row)
        before.sum().backward()
        with torch.no_grad():
            moved = layer.weight - rate * layer.weight.grad
            twin = layer.weight.clone()
            layer.weight.copy_(moved)
            after = layer(row)
            layer.weight.copy_(twin)
        return float(after - before.detach())

    changes = [(change(plain, lr, row), change(cosine, rate, row)) for row in x.split(1)]
    ratios = torch.tensor([b / a for a, b in changes])
    assert float(ratios.median()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_a_calibrated_layer_with_a_bias_keeps_its_rate(size):
    """Beside small inputs the bias is most of the vectors, [x, 1] and [w, b]."""
    model, x = nn.Sequential(nn.Linear(8, 4)), size * torch.randn(256, 8)
    convert(model, "cosine", calibrate=x, head=None)
    assert translated_lr(model, 0.1, x)["0"] == pytest.approx(0.1, rel=0.5)


def test_translation_leaves_the_model_as_it_was_and_says_what_it_cannot_do():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="it has 0 and ran none: convert it first"):
        translated_lr(model, 0.1, torch.randn(3, 4))
    convert(model)
    model[1].eval()
    assert translated_lr(model, 0.1, torch.randn(3, 4)).keys() == {"0", "2"}
    assert [m.training for m in model] == [True, False, True]
    assert not model[0]._forward_pre_hooks


def test_the_room_is_found_from_the_top():
    import cosnorm

    assert cosnorm.optim is optim


def test_the_rate_of_weights_that_are_no_numbers_is_none():
    model = nn.Sequential(CosineLinear(4, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    rate = effective_lr(model, torch.optim.SGD(model.parameters(), lr=0.1))["0"]
    assert rate != rate


def test_a_decay_is_no_truth_value():
    with pytest.raises(ValueError, match="weight_decay must be a number"):
        param_groups(nn.Sequential(CosineLinear(4, 3)), True)


@pytest.mark.parametrize("method", ["cosine", "pearson"])
def test_a_bias_of_sparse_rows_is_an_entry_of_their_vectors(method):
    torch.manual_seed(0)
    layer = SparseLinear(method, 20, 4, bias=True)
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.rand(7, 20) * (torch.rand(7, 20) < 0.3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        x = x.to_sparse_csr()
    before = layer(x)
    project(layer)
    torch.testing.assert_close(layer(x), before)
    vectors = torch.cat([layer.weight, layer.bias[:, None]], 1)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
