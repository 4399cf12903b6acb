"""A converted model is loaded: what it became depends on weights and data, and its state tells."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cosnorm


class Blocks(nn.Module):
    """A norm before each layer, another behind one, a branch that begins at zero, a head."""

    def __init__(self, tied=False):
        super().__init__()
        self.first, self.one = nn.LayerNorm(8), nn.Linear(8, 8)
        self.plain, self.two = nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 8)
        self.last, self.three = nn.LayerNorm(8), nn.Linear(8, 8)
        self.batch = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 5)
        self.words = nn.Embedding(5, 8)
        nn.init.zeros_(self.batch.weight)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        h = x + self.words(x.argmax(1) % 5)
        h = h + torch.tanh(self.one(self.first(h)))
        h = h + torch.tanh(self.two(self.plain(h)))
        h = h + self.batch(self.three(h)) + self.last(h)
        return self.head(h)


def trained(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x.argmax(1) % 5).backward()
        optimizer.step()
    return model


def same(one, other):
    x = torch.randn(7, 8)
    torch.testing.assert_close(one.eval()(x), other.eval()(x), rtol=0, atol=0)
    return [type(m) for m in one.modules()] == [type(m) for m in other.modules()]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("drop_norms", [False, True])
@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_a_converted_model_comes_back(similarity, calibrate, drop_norms, unbiased, tied):
    torch.manual_seed(0)
    model = Blocks(tied)
    if unbiased:  # so that pearson needs no norm before it
        nn.init.zeros_(model.one.bias)
        nn.init.zeros_(model.two.bias)
    else:
        trained(model)
    options = {"similarity": similarity, "drop_norms": drop_norms}
    cosnorm.convert(model, **options, calibrate=torch.randn(32, 8) if calibrate else None)
    state = trained(model).state_dict()
    again = Blocks(tied)
    account = cosnorm.convert(again, **options, state=state)
    assert same(again, model)
    assert [again.one.scale is None, again.head.scale is None] == [not calibrate, False]
    assert (again.one.bias is None) == (unbiased and drop_norms and similarity == "pearson")
    for norm in ("first", "plain", "batch"):
        assert type(getattr(again, norm)) is type(getattr(model, norm))
    assert str(account)
    before = copy.deepcopy(state)
    trained(again)
    assert all(torch.equal(state[key], before[key]) for key in before)  # not shared with it
    if tied:
        assert again.head.weight is again.words.weight
        del state["head.weight"]  # as files have it
        assert same(model, (m := Blocks(True), cosnorm.convert(m, **options, state=state))[0])


def test_a_branch_that_began_at_zero():
    model = Blocks()
    cosnorm.convert(model, drop_norms=True, calibrate=torch.randn(32, 8))
    again = Blocks()
    cosnorm.convert(again, drop_norms=True, state=trained(model).state_dict())
    assert same(again, model) and model.three.scale.shape == (8,)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.pop("one.weight"), r"it lacks one\.weight: give the"),
        (lambda s: s.update(more=torch.ones(1)), "it has beside it more: give the"),
        (
            lambda s: s.update({"one.bias": torch.ones(3)}),
            r"has one\.bias \(3,\) instead of \(8,\)",
        ),
        (
            lambda s: s.update({"one.scale": torch.ones(3)}),
            r"has one\.scale \(3,\) instead of \(8,\)",
        ),
        (dict.clear, r"it lacks .*, \d+ more: give the"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, told):
    model = Blocks()
    cosnorm.convert(model, calibrate=torch.randn(32, 8))
    state = dict(model.state_dict())
    change(state)
    again = Blocks()
    before = copy.deepcopy(again.state_dict())
    with pytest.raises(ValueError, match=told):
        cosnorm.convert(again, state=state)
    assert type(again.one) is nn.Linear
    assert all(torch.equal(t, before[key]) for key, t in again.state_dict().items())


@pytest.mark.parametrize("wrong", ["model.safetensors", [1], {1: torch.ones(1)}])
def test_what_is_no_state(wrong):
    with pytest.raises(TypeError, match="state must be a state_dict, tensors by name; got"):
        cosnorm.convert(Blocks(), state=wrong)


def test_scales_come_from_one_place():
    state = Blocks().state_dict()
    for name, value in {"calibrate": torch.randn(8, 8), "head": None}.items():
        with pytest.raises(ValueError, match=f"got {name} besides: leave {name} out"):
            cosnorm.convert(Blocks(), state=state, **{name: value})


def test_of_tied_tensors_one_name_is_enough():
    """A bias and a norm that are there by the name of another are not gone."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
            self.n1, self.n2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.two.bias, self.n2.weight, self.n2.bias = (
                self.one.bias,
                self.n1.weight,
                self.n1.bias,
            )
            nn.init.normal_(self.one.bias)
            nn.init.normal_(self.n1.weight)

        def forward(self, x):
            return self.head(self.n2(self.two(torch.relu(self.n1(x) + self.one(x))).relu() + x))

    model = Tied()
    cosnorm.convert(model, drop_norms=True)
    state = {k: v for k, v in model.state_dict().items() if k != "two.bias" and "n2" not in k}
    again = Tied()
    cosnorm.convert(again, drop_norms=True, state=state)
    assert same(again, model)


def test_what_could_not_have_gone_is_missed():
    model = Blocks()
    cosnorm.convert(model, drop_norms=True)
    for key in ("two.bias", "last.weight"):
        state = {k: v for k, v in model.state_dict().items() if not k.startswith(key[:4])}
        state |= {k: v for k, v in model.state_dict().items() if k != key and k[:4] == key[:4]}
        if key == "last.weight":
            del state["last.bias"]
        with pytest.raises(ValueError, match=f"it lacks {key}"):
            cosnorm.convert(Blocks(), drop_norms=key != "two.bias", state=state)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_names_that_a_wrapper_has_changed(prefix):
    model, again = Blocks(), Blocks()
    cosnorm.convert(model)
    state = {prefix + key: value for key, value in model.state_dict().items()}
    cosnorm.convert(again, state=state)
    assert same(again, model)


def test_values_that_are_none():
    model = Blocks()
    cosnorm.convert(model)
    state = model.state_dict()
    for value, kind, told in (
        (3, TypeError, "got int for 'one.weight': pass the model's own part"),
        (torch.empty(8, 8, device="meta"), ValueError, "'one.weight' is not: load it so"),
        (torch.eye(8).to_sparse(), ValueError, "'one.weight' is not: load it so"),
    ):
        with pytest.raises(kind, match=told):
            cosnorm.convert(Blocks(), state={**state, "one.weight": value})
    with pytest.raises(ValueError, match=r"scales of state must be finite; 'head\.scale' is not"):
        cosnorm.convert(Blocks(), state={**state, "head.scale": torch.tensor([torch.nan])})


def test_models_that_have_no_weights_yet():
    state = Blocks().state_dict()
    with torch.device("meta"):
        absent = Blocks()
    with pytest.raises(ValueError, match=r"first\.weight is on the meta device"):
        cosnorm.convert(absent, state=state)
    with pytest.raises(ValueError, match=r"0\.weight has none yet: run the model on a batch first"):
        cosnorm.convert(nn.Sequential(nn.LazyLinear(4)), state={"0.weight": torch.ones(4, 4)})


def test_a_state_from_before_the_conversion_is_told():
    account = cosnorm.convert(Blocks(), state=Blocks().state_dict())
    assert "The state has no scale: if it is that of a model before its conversion" in str(account)


def test_one_output_that_is_no_head():
    def network():
        return nn.Sequential(nn.Linear(8, 1), nn.ReLU(), nn.Linear(1, 4), nn.Linear(4, 5))

    model, again = network(), network()
    cosnorm.convert(model, "cosine", calibrate=torch.randn(32, 8))
    cosnorm.convert(again, "cosine", state=model.state_dict())
    assert [m.learn_scale for m in (again[0], again[3])] == ["per_output", True]
    assert repr(again[0]) == repr(model[0])


def test_a_norm_before_a_bias_that_is_there_by_another_name():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
            self.norm = nn.LayerNorm(8, elementwise_affine=False)
            self.two.bias = self.one.bias

        def forward(self, x):
            return self.head(torch.relu(self.two(self.norm(x)) + self.one(x)))

    model, again = Tied(), Tied()
    cosnorm.convert(model, drop_norms=True)
    state = {key: value for key, value in model.state_dict().items() if key != "two.bias"}
    cosnorm.convert(again, drop_norms=True, state=state)
    assert same(again, model) and isinstance(again.norm, nn.LayerNorm)


class Caching(nn.Module):
    """Makes a tensor when it is loaded, as some models do."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))
        self.register_load_state_dict_post_hook(lambda module, _: module.keep())
        self.keep()

    def keep(self):
        self.kept = self.gain.detach() * 2

    def forward(self, x):
        return x * (self.kept * self.gain).sum()


def test_what_a_model_makes_while_it_loads_can_be_trained_with():
    saved, again = (nn.Sequential(nn.Linear(4, 4), Caching(), nn.Linear(4, 2)) for _ in range(2))
    cosnorm.convert(saved)
    cosnorm.convert(again, state=saved.state_dict())
    again(torch.randn(3, 4)).sum().backward()
    assert again[1].gain.grad is not None
