"""convert(calibrate=batch): activations keep their size, the model its mode, and trains at once."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tools.starting import adamw, batch, losses, resnet, slow_adamw, vit
from torch import nn

import cosnorm

pytest.importorskip("transformers")


def sizes_of(model, x):
    """The root mean square of what each linear layer gives."""
    sizes = []
    layers = [m for m in model.modules() if hasattr(m, "in_features")]
    hooks = [
        layer.register_forward_hook(lambda m, i, y: sizes.append(float(y.square().mean().sqrt())))
        for layer in layers
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return sizes


def deep():
    layers = [part for _ in range(8) for part in (nn.Linear(12, 12), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(12, 3)).double()


def test_a_cosine_of_inputs_of_one_length_computes_what_the_product_did():
    model = nn.Sequential(nn.Linear(6, 5, bias=False)).double()
    x = 3 * F.normalize(torch.randn(20, 6, dtype=torch.float64), dim=1)
    before = model(x)
    cosnorm.convert(model, "cosine", head=None, calibrate=x[:4])
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_activations_keep_their_size(similarity):
    model, x = deep(), torch.randn(64, 12, dtype=torch.float64)
    left, before = copy.deepcopy(model), sizes_of(model, x)
    cosnorm.convert(model, similarity, calibrate=x)
    assert sizes_of(model, x) == pytest.approx(before, rel=1e-6)
    cosnorm.convert(left, similarity)
    assert sizes_of(left, x) != pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_are_scaled_channel_by_channel(dims, transposed):
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    model = nn.Sequential(kind(3, 4, 2), nn.ReLU(), kind(4, 2, 2)).double()
    x = torch.randn(5, 3, *[6] * dims, dtype=torch.float64)
    over = (0, *range(2, dims + 2))
    before = model[0](x).square().mean(over)
    cosnorm.convert(model, "cosine", head=None, calibrate=x)
    torch.testing.assert_close(model[0](x).square().mean(over), before)
    assert model[0].scale.shape == (4,) and model[0].learn_scale == "per_output"


@pytest.mark.parametrize("dims", [0, 2])
def test_a_norm_that_goes_may_have_turned_outputs_round(dims):
    gains = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5]).double()
    kinds = (nn.Conv2d(5, 6, 1, bias=False), nn.BatchNorm2d(6)) if dims else (
        nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)
    )  # fmt: skip
    model = nn.Sequential(*kinds, nn.ReLU()).double()
    with torch.no_grad():
        model[1].weight.copy_(gains)
    x = torch.randn(4000, 5, *[1] * dims, dtype=torch.float64)
    x = F.normalize(torch.cat([x, -x]), dim=1)  # of one length, outputs of mean zero
    expected = model(x)
    cosnorm.convert(model, "cosine", drop_norms=True, head=None, calibrate=x)
    assert torch.equal(model[0].scale.detach() < 0, gains < 0)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-6)


class NormAndAct(nn.BatchNorm2d):
    """As image model libraries have it."""

    def __init__(self, act):
        super().__init__(4)
        self.act = act

    def forward(self, x):
        return self.act(super().forward(x))


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(), nn.GELU()], ids=str)
@pytest.mark.parametrize("shift", [0.0, -2.0])
def test_a_norm_that_goes_on_with_an_activation_is_measured_before_it(shift, act):
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 4, 3, bias=False), torch.randn(8, 3, 6, 6)
    inside = nn.Sequential(conv, NormAndAct(act))
    beside = nn.Sequential(copy.deepcopy(conv), nn.BatchNorm2d(4), copy.deepcopy(act))
    scales = []
    for model in (inside, beside):
        nn.init.constant_(model[1].bias, shift)
        cosnorm.convert(model, "cosine", drop_norms=True, head=None, calibrate=x)
        scales.append(model[0].scale.detach())
    torch.testing.assert_close(*scales)
    assert (scales[0] > 0).all()


def test_scales_beyond_a_dtype_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 32, bias=False), nn.ReLU(), nn.Linear(32, 4)).half()
    with torch.no_grad():
        model[0].weight.mul_(12000)
    x = torch.randn(64, 512).half()
    assert model(x).isfinite().all()
    with pytest.raises(ValueError, match=r"scales that torch.float16 holds; that of 0 goes up to"):
        cosnorm.convert(model, calibrate=x)
    assert type(model[0]) is nn.Linear


def test_a_head_keeps_one_scale_and_the_account_tells():
    model, x = deep(), torch.randn(64, 12, dtype=torch.float64)
    account = cosnorm.convert(model, calibrate=x)
    assert model[-1].scale.shape == (1,)
    assert account[-1].reason == f"head: learned scale from {float(model[-1].scale.detach()):.3g}"
    low, high = model[0].scale.detach().aminmax()
    assert account[0].reason == f"learned scales from {float(low):.3g} to {float(high):.3g}"
    assert "16.scale, 0.scale, 2.scale" in account.notes[0] and "2 more" in account.notes[0]
    again = deep()
    cosnorm.convert(again, calibrate=x)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), model(x))
    expected = model.eval()(x)
    cosnorm.fold(model)
    torch.testing.assert_close(model(x), expected)


def test_batch_norms_get_the_statistics_of_the_batch():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.9))
    x = torch.randn(16, 3, 6, 6)
    cosnorm.convert(model, calibrate=x)
    assert all(module.training for module in model.modules())
    assert model[1].momentum == 0.1
    z = model[0](x)
    torch.testing.assert_close(model[1].running_mean, z.mean((0, 2, 3)))
    torch.testing.assert_close(model[1].running_var, z.var((0, 2, 3)))


def test_what_the_batch_does_not_run_is_told():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.one(x)

    model = Two()
    account = {e.name: e for e in cosnorm.convert(model, head=None, calibrate=torch.randn(8, 4))}
    assert account["one"].reason.startswith("learned scales from")
    assert account["other"].reason.startswith("not calibrated: the batch does not run it")
    assert model.other.scale is None


def test_outputs_that_were_zero_are_not_made_zero_for_ever():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    account = cosnorm.convert(model, head=None, calibrate=torch.randn(8, 4))
    assert "not calibrated" in account[1].reason and "initialised anew" in account[1].reason
    assert float(model(torch.randn(8, 4)).detach().abs().max()) > 0


@pytest.mark.parametrize(
    ("batch", "kind", "told"),
    [
        ("text", TypeError, "calibrate must be a tensor, a tuple of arguments or a dict"),
        (torch.randn(8, 5), ValueError, "calibrate must be a batch that the model takes"),
        (torch.randn(1, 4), ValueError, "of several rows where it has batch norms; it raised"),
        (torch.full((8, 4), torch.nan), ValueError, "the outputs of 0 have no finite size: pass"),
    ],
)
def test_a_batch_that_says_nothing_changes_nothing(batch, kind, told):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(kind, match=told):
        cosnorm.convert(model, calibrate=batch)
    assert type(model[0]) is nn.Linear and not hasattr(model[0], "scale")
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_model_of_which_no_converted_layer_runs_is_refused():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return x

    with pytest.raises(ValueError, match="it ran none of 1 on any rows: pass a batch that"):
        cosnorm.convert(Idle(), calibrate=torch.randn(8, 4))


@pytest.mark.parametrize(
    ("make", "optimizer", "layers"),
    [
        (resnet, slow_adamw, 54 + 53),  # and as many batch norms, which go
        (vit, adamw, 74),
    ],
)
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_fifty_layers_and_twelve_blocks_train_from_the_first_step(
    make, optimizer, layers, similarity
):
    torch.manual_seed(0)
    model, (x, y) = make().double(), batch()
    twin = copy.deepcopy(model)
    plain = losses(twin, optimizer(twin.parameters()), x, y, steps=1)[0]
    account = cosnorm.convert(model, similarity, drop_norms=make is resnet, calibrate=x)
    assert len(account.changed) == layers
    found = losses(model, optimizer(model.parameters()), x, y, steps=6)
    assert found[0] == pytest.approx(plain, abs=0.5)
    assert max(found) == found[0]  # no leap
    assert sum(found[-2:]) / 2 < 0.8 * found[0]


def test_where_a_norm_goes_its_size_is_kept():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    nn.init.constant_(model[1].weight, 2.5)
    x = 7 * torch.randn(16, 3, 6, 6)
    cosnorm.convert(model, drop_norms=True, head=None, calibrate=x)
    size = model[0](x).square().mean((0, 2, 3)).sqrt()
    torch.testing.assert_close(size, torch.full((4,), 2.5), rtol=1e-3, atol=0)


def test_what_a_norm_of_no_gain_made_zero_stays_zero_and_learns():
    class Branch(nn.Module):
        def __init__(self, gains):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.norm.weight.data = torch.tensor(gains)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.norm(input=self.conv(x)).mean((2, 3)) + x.sum())

    x = torch.randn(16, 3, 6, 6)
    for gains in ([0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]):
        model = Branch(gains)
        cosnorm.convert(model, "cosine", drop_norms=True, calibrate=x)
        size = model.conv(x).square().mean((0, 2, 3)).sqrt()
        torch.testing.assert_close(size, torch.tensor(gains), rtol=1e-3, atol=0)
        F.cross_entropy(model(x), torch.arange(16) % 3).backward()
        assert bool((model.conv.scale.grad != 0).all())


def test_a_branch_that_the_batch_gives_zeros_has_no_scale_and_learns():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
            self.b1, self.b2 = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, x, z):
            return self.head(self.a(x) + self.b2(torch.relu(self.b1(z))))

    model, x = Two(), torch.randn(64, 8)
    account = cosnorm.convert(model, "cosine", calibrate=(x, torch.zeros(64, 8)))
    told = {entry.name: entry.reason for entry in account}
    assert told["b1"].startswith("not calibrated") and told["b2"].startswith("not calibrated")
    model(x, torch.randn(64, 8)).square().sum().backward()
    assert bool(model.b1.weight.grad.any()) and bool(model.b2.weight.grad.any())


class Held:
    """What copy.deepcopy can't make another of."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle it")


@pytest.mark.parametrize("argument", ["example", "calibrate"])
def test_models_that_no_copy_can_be_made_of(argument):
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(8, 4)
    model.held = Held()
    told = (
        f"{argument} works on a copy of the model, .* it raised TypeError: cannot pickle it; leave"
    )
    with pytest.raises(ValueError, match=told):
        cosnorm.convert(model, **{argument: x})
    assert type(model[0]) is nn.Linear


def test_weights_that_are_not_there():
    model = nn.Sequential(nn.Linear(4, 4, device="meta"))
    with pytest.raises(ValueError, match=r"are in memory; 0\.weight is on the meta device"):
        cosnorm.convert(model, calibrate=torch.randn(8, 4))
    assert type(model[0]) is nn.Linear


def test_a_frozen_layer_gets_a_frozen_scale():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 2))
    cosnorm.convert(model, calibrate=torch.randn(8, 4))
    assert [model[i].scale.requires_grad for i in (0, 2)] == [False, True]


def test_a_scale_starts_in_one_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"got both for '2', 20.0: pass head=\['2'\], or leave"):
        cosnorm.convert(model, head={"2": 20.0}, calibrate=torch.randn(8, 4))
    assert type(model[0]) is nn.Linear
    cosnorm.convert(model, head={"2": None}, calibrate=torch.randn(8, 4))


def test_what_was_converted_is_not_calibrated_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    cosnorm.convert(model)
    with pytest.raises(ValueError, match="calibrate is for layers that are converted; the model"):
        cosnorm.convert(model, calibrate=torch.randn(8, 4))


def test_a_batch_without_rows():
    with pytest.raises(
        ValueError, match="it ran none of 1 on any rows: pass a batch that the whole model takes"
    ):
        cosnorm.convert(nn.Sequential(nn.Linear(4, 2)), calibrate=torch.randn(0, 4))


def test_an_expert_without_rows_has_no_scale_and_others_do():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return torch.cat([self.first(x), self.second(x[:0])])

    account = cosnorm.convert(Experts(), calibrate=torch.randn(8, 4), head=None)
    first, second = account
    assert "learned scales" in first.reason
    assert "learned scales" not in second.reason


def test_a_layer_that_gets_a_vector():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x.mean(0))

    model, x = Mean(), torch.randn(8, 4)
    before = model(x)
    cosnorm.convert(model, "cosine", calibrate=x, head=None)
    torch.testing.assert_close(model(x).abs(), before.abs())


def test_what_is_converted_under_inference_mode_can_be_trained():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 4)
    with torch.inference_mode():
        cosnorm.convert(model, calibrate=x)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_model_that_was_made_under_inference_mode():
    """Which cannot be trained, but calibrated, given a direction and loaded."""

    def made():
        zero = nn.Linear(16, 4, bias=False)
        nn.init.zeros_(zero.weight)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), zero)

    with torch.inference_mode():
        model, again, x = made(), made(), torch.randn(32, 8)
        cosnorm.convert(model, calibrate=x)
        cosnorm.convert(again, state=model.state_dict())
        assert torch.equal(again.eval()(x), model.eval()(x))
    assert model[1].running_mean.any() and model[3].weight.any()


def test_scales_without_a_head_are_not_denied():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    told = str(cosnorm.convert(model, calibrate=torch.randn(2, 3, 5, 5)))
    assert "No head was found: if a layer makes logits" in told
    assert "learned scales from" in told
    assert "no layer has a learned scale" not in told


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_a_batch_that_tells_no_layer_its_size(value):
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    x = torch.full((8, 4), value) * torch.rand(8, 4)
    with pytest.raises(ValueError, match="more than zeros; all of 2 have similarities of zero"):
        cosnorm.convert(model, "cosine", calibrate=x)
    assert type(model[0]) is nn.Linear
