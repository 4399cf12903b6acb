"""What convert leaves alone, with the reason in the account."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import cosnorm


class OwnForward(nn.Linear):
    def forward(self, input):
        return super().forward(input) + 1


class OnlyInTraining(nn.Linear):
    def forward(self, input):
        y = super().forward(input)
        return y + torch.rand_like(y) if self.training else y


class Adapted(nn.Linear):
    """Adds something learned, which starts at zero."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.more = nn.Parameter(torch.zeros(()))

    def forward(self, input):
        return super().forward(input) + self.more


class ForScripting(nn.Linear):
    def forward(self, input):
        bias = self.bias.to(input.dtype) if self.bias is not None else None
        return nn.functional.linear(input, self.weight.to(input.dtype), bias)


class OwnProduct(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


class OwnStart(nn.Linear):
    def reset_parameters(self):
        nn.init.ones_(self.weight)


def replaced(layer):
    layer.forward = lambda x: x
    return layer


def with_attribute(layer, name):
    setattr(layer, name, 2.0)
    return layer


class Sharded(nn.Parameter):
    """Stands for the parameter types of sharding and quantisation libraries."""


def with_weight(layer, kind):
    layer.weight = kind(layer.weight.detach())
    return layer


def pruned(layer):
    prune.random_unstructured(layer, "weight", amount=0.5)
    return layer


def empty_layer(inputs, outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Linear(inputs, outputs, bias=False)


LEFT = {
    "own forward": (lambda: OwnForward(4, 4), "a subclass with its own forward"),
    "own forward in training": (lambda: OnlyInTraining(4, 4), "a subclass with its own forward"),
    "own parameter beside": (lambda: Adapted(4, 4), "a subclass with its own forward"),
    "own product": (lambda: OwnProduct(4, 4, 3), "a subclass with its own _conv_forward"),
    "replaced forward": (lambda: replaced(nn.Linear(4, 4)), "forward was replaced on the object"),
    "parametrised": (
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
        r"parametrised: call torch.nn.utils.parametrize.remove_parametrizations first",
    ),
    "spectral": (lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)), "parametrised"),
    "pruned": (lambda: pruned(nn.Linear(4, 4)), "its weight is not a parameter: a hook"),
    "lazy": (lambda: nn.LazyLinear(4), "lazy: its shape is unknown until the model has run once"),
    "lazy conv": (lambda: nn.LazyConv2d(4, 3), "lazy"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "its weight is torch.complex64"),
    "eight bits": (lambda: nn.Linear(4, 4).to(torch.float8_e5m2), "torch.float8_e5m2"),
    "own parameter": (
        lambda: with_weight(nn.Linear(4, 4), Sharded),
        "its weight is a Sharded, not a plain parameter",
    ),
    "attribute": (lambda: with_attribute(nn.Linear(4, 4), "scale"), "it has an attribute scale"),
    "embedding": (lambda: nn.Embedding(4, 4), "not a linear or convolution layer"),
    "bilinear": (lambda: nn.Bilinear(4, 4, 4), "not a linear or convolution layer"),
    "recurrent": (lambda: nn.LSTM(4, 4), "not a linear or convolution layer"),
    "norm": (lambda: nn.GroupNorm(2, 4), "a normalisation layer"),
    "comparison block": (
        lambda: cosnorm.nn.BatchNormConv2d(4, 4, 3),
        "a subclass with its own",
    ),
    "one entry": (lambda: nn.Conv2d(4, 4, 1, groups=4, bias=False), "its vectors have 1 entries"),
    "two entries": (lambda: nn.Linear(1, 4), "its vectors have 2 entries: .* a sign or zero"),
    "no entries": (lambda: empty_layer(0, 4), "its vectors have 0 entries"),
    "no outputs": (lambda: empty_layer(4, 0), "it has no outputs"),
}


@pytest.mark.parametrize("case", LEFT)
def test_left_with_its_reason(case):
    build, reason = LEFT[case]
    model = nn.Sequential(build(), nn.Linear(4, 4))
    kind = type(model[0])
    account = cosnorm.convert(model)
    assert type(model[0]) is kind
    assert (account[0].name, account[0].now) == ("0", None)
    assert re.search(reason, account[0].reason)
    assert account[-1].now == "PearsonLinear"


def test_two_entries_are_enough_for_the_cosine():
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU())
    assert cosnorm.convert(model, "pearson").left
    assert cosnorm.convert(model, "cosine").changed


@pytest.mark.parametrize("bias", [True, False])
def test_a_subclass_that_computes_the_same_is_converted(bias):
    model = nn.Sequential(ForScripting(4, 4, bias=bias), nn.ReLU())
    weight = model[0].weight
    (entry,) = cosnorm.convert(model)
    assert (entry.was, entry.now) == ("ForScripting", "PearsonLinear")
    assert model[0].weight is weight
    with torch.device("meta"):
        model = nn.Sequential(ForScripting(4, 4, bias=bias), nn.ReLU())
    assert cosnorm.convert(model)[0].now == "PearsonLinear"


def test_a_subclass_that_only_starts_otherwise_is_converted():
    model = nn.Sequential(OwnStart(4, 4), nn.ReLU())
    (entry,) = cosnorm.convert(model)
    assert (entry.was, entry.now) == ("OwnStart", "PearsonLinear")
    assert torch.equal(model[0].weight, torch.ones(4, 4))


def test_parametrised_layer_has_one_entry_and_converts_once_it_is_plain():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU())
    assert [entry.name for entry in cosnorm.convert(model)] == ["0"]
    parametrize.remove_parametrizations(model[0], "weight")
    assert cosnorm.convert(model)[0].now == "PearsonLinear"


def test_lazy_layer_converts_once_the_model_has_run():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    model(torch.randn(2, 4))
    assert cosnorm.convert(model)[0].now == "PearsonLinear"


def test_attention_keeps_its_layers_and_its_values():
    attention = nn.MultiheadAttention(8, 2)
    model = nn.ModuleDict({"attention": attention, "out": nn.Linear(8, 8)})
    x = torch.randn(3, 1, 8)
    before = attention(x, x, x)[0]
    account = cosnorm.convert(model)
    assert {entry.name: entry.reason for entry in account.left} == {
        "attention": "uses the weights of its layers without calling them",
        "attention.out_proj": "part of attention (MultiheadAttention)",
    }
    assert torch.equal(attention(x, x, x)[0], before)


@pytest.mark.parametrize("masked", [False, True])
def test_torchs_transformer_calls_its_converted_layers_in_inference_too(masked):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=masked)
    account = cosnorm.convert(model)
    assert type(model.layers[0].linear1) is cosnorm.nn.PearsonLinear
    assert "The fused inference path of nn.TransformerEncoderLayer is off." in account.notes
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    trained = model.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        inferred = model.eval()(x, src_key_padding_mask=mask)
    torch.testing.assert_close(inferred, trained)


@pytest.mark.filterwarnings("ignore")  # torch deprecates both ways; models made by them live on
def test_scripted_and_quantised_layers_are_left_and_named():
    scripted = torch.jit.script(nn.Linear(4, 4))
    plain = nn.Sequential(nn.Linear(4, 4))
    quantised = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})[0]
    model = nn.Sequential(scripted, quantised, nn.Linear(4, 4))
    account = cosnorm.convert(model)
    assert [entry.now for entry in account] == [None, None, "PearsonLinear"]
    assert [entry.reason for entry in account.left] == [
        "scripted: its code is fixed",
        "a quantised layer",
    ]


def test_adaptive_softmax_is_left_whole():
    model = nn.ModuleDict({"softmax": nn.AdaptiveLogSoftmaxWithLoss(64, 20, [5, 10])})
    account = cosnorm.convert(model)
    assert not account.changed
    assert {entry.reason for entry in account} == {
        "part of softmax (AdaptiveLogSoftmaxWithLoss)",
    }


def test_skip_by_name_pattern_type_and_predicate():
    def build():
        return nn.ModuleDict(
            {
                "stem": nn.Conv2d(3, 4, 3),
                "body": nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))),
                "last": nn.Linear(4, 9),
            }
        )

    def changed(skip):
        return {entry.name for entry in cosnorm.convert(build(), skip=skip, head=None).changed}

    assert changed(()) == {"stem", "body.0", "body.1.0", "last"}
    assert changed("stem") == {"body.0", "body.1.0", "last"}
    assert changed("body") == {"stem", "last"}
    assert changed("body.*") == {"stem", "last"}
    assert changed("*.0") == {"stem", "last"}
    assert changed("*s*") == {"body.0", "body.1.0"}
    assert changed(["stem", "last"]) == {"body.0", "body.1.0"}
    assert changed(nn.Conv2d) == {"body.0", "body.1.0", "last"}
    assert changed([nn.Sequential, "stem"]) == {"last"}
    assert changed(nn.Conv3d) == {"stem", "body.0", "body.1.0", "last"}
    assert changed(lambda name, module: getattr(module, "out_features", 0) > 4) == {
        "stem",
        "body.0",
        "body.1.0",
    }


def test_skip_says_by_what():
    model = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Conv1d(4, 4, 1), "three": nn.ReLU()})

    def wide(name, module):
        return name == "two"

    account = cosnorm.convert(model, skip=[nn.Linear, wide])
    assert [entry.reason for entry in account] == ["skipped by Linear", "skipped by wide"]


def depthwise():
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 7, groups=4), nn.Conv1d(8, 8, 9, groups=8),
        nn.Conv2d(8, 8, 3, groups=2), nn.ConvTranspose2d(8, 8, 3, groups=8),
        nn.Conv2d(1, 4, 3),
    )  # fmt: skip


@pytest.mark.parametrize(("choice", "left"), [(None, "024"), (True, ""), (False, "0124")], ids=str)
def test_depthwise_layers_of_few_entries_stay_unless_wanted(choice, left):
    account = cosnorm.convert(depthwise(), head=None, depthwise=choice)
    assert "".join(entry.name for entry in account.left) == left
    if choice is None:
        assert account.left[0].reason == (
            "depthwise, 9 entries: flat patches would be blown up to full size; depthwise=True "
            "converts it"
        )


def test_a_choice_for_depthwise_layers_that_is_none():
    with pytest.raises(TypeError, match="depthwise must be True, False or None; got 'all'"):
        cosnorm.convert(depthwise(), depthwise="all")
