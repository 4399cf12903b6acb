"""convert: the same model, its layers cosine layers, and nothing else about it changed."""

import copy
import pickle

import pytest
import torch
from torch import nn

import cosnorm
from cosnorm import functional
from cosnorm.conversion import HEAD_SCALE
from cosnorm.conversion.layers import OURS

LAYERS = {
    "Linear": (lambda **o: nn.Linear(4, 6, **o), (3, 4)),
    "Conv1d": (lambda **o: nn.Conv1d(4, 6, 3, 2, 1, **o), (3, 4, 8)),
    "Conv2d": (
        lambda **o: nn.Conv2d(4, 6, (3, 2), padding=(2, 1), padding_mode="reflect", **o),
        (3, 4, 8, 8),
    ),
    "Conv3d": (lambda **o: nn.Conv3d(4, 6, 2, dilation=2, groups=2, **o), (3, 4, 5, 5, 5)),
    "ConvTranspose1d": (lambda **o: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, **o), (3, 4, 5)),
    "ConvTranspose2d": (lambda **o: nn.ConvTranspose2d(4, 6, 3, groups=2, **o), (3, 4, 5, 5)),
    "ConvTranspose3d": (lambda **o: nn.ConvTranspose3d(4, 6, 2, dilation=2, **o), (3, 4, 3, 3, 3)),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.conv2(x)).mean((2, 3))
        return self.fc2(self.relu(self.fc1(x)))


def entries(account):
    return {name: (was, now) for name, was, now, _ in account}


def reasons(account):
    return {name: reason for name, _, now, reason in account if now is None}


@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_becomes_the_layer_that_was_built_so(name, bias, similarity):
    build, shape = LAYERS[name]
    layer = build(bias=bias, dtype=torch.float64)
    if bias:
        nn.init.normal_(layer.bias)
    state = copy.deepcopy(layer.state_dict())
    model = nn.Sequential(layer, nn.ReLU())
    account = cosnorm.convert(model, similarity, head=None)
    now = similarity.capitalize() + name
    assert list(account) == [("0", name, now, "")]
    assert type(model[0]) is getattr(cosnorm.nn, now)
    arguments = _arguments(build())
    built = getattr(cosnorm.nn, now)(**arguments, bias=bias, dtype=torch.float64)
    built.load_state_dict(state)
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.equal(model[0](x), built(x))


def _arguments(layer):
    if isinstance(layer, nn.Linear):
        return {"in_features": 4, "out_features": 6}
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"]
    names += ["groups", "padding_mode", *(["output_padding"] if layer.transposed else [])]
    return {name: getattr(layer, name) for name in names}


def test_our_attributes_are_what_a_cosine_layer_adds_to_torchs():
    for ours, torchs in (
        (cosnorm.nn.CosineConv2d, nn.Conv2d),
        (cosnorm.nn.CosineLinear, nn.Linear),
    ):
        shape = (1, 1, 1) if torchs is nn.Conv2d else (1, 1)
        assert tuple(sorted(set(vars(ours(*shape))) - set(vars(torchs(*shape))))) == OURS


def test_parameters_hooks_mode_and_objects_stay():
    model = Net().eval()
    model.conv1.weight.requires_grad_(False)
    model.conv2.train()
    seen = []
    model.fc1.register_forward_hook(lambda *_: seen.append("hook"))
    layers, parameters = dict(model.named_modules()), dict(model.named_parameters())
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    cosnorm.convert(model, head=None)
    assert dict(model.named_modules()) == layers
    assert all(new is parameters[name] for name, new in model.named_parameters())
    assert not model.conv1.weight.requires_grad
    assert not model.fc1.training
    assert model.conv2.training
    before = model.fc2.weight.clone()
    model(torch.randn(2, 3, 6, 6)).square().sum().backward()
    optimiser.step()
    assert seen == ["hook"]
    assert not torch.equal(model.fc2.weight, before)


def test_bias_is_the_extra_entry():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    weight, bias = model[0].weight, model[0].bias
    cosnorm.convert(model, "cosine", head=None)
    x = torch.randn(5, 4)
    expected = functional.cosine_linear(x, weight, bias)
    extended = torch.cat([x, torch.ones(5, 1)], 1), torch.cat([weight, bias[:, None]], 1)
    torch.testing.assert_close(expected, functional.cosine_linear(*extended))
    assert torch.equal(model[0](x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_stays_and_the_heads_scale_has_it(dtype):
    model = Net().to(dtype)
    cosnorm.convert(model)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.fc2.scale.dtype == dtype
    assert model(torch.randn(2, 3, 6, 6, dtype=dtype)).dtype == dtype


def test_meta_device():
    with torch.device("meta"):
        model = Net()
    cosnorm.convert(model)
    assert model(torch.randn(2, 3, 6, 6, device="meta")).shape == (2, 5)
    assert model.fc2.scale.device.type == "meta"


def test_the_model_may_itself_be_the_layer():
    layer = nn.Linear(4, 3)
    account = cosnorm.convert(layer)
    assert list(account) == [("", "Linear", "PearsonLinear", "head: learned scale from 10")]
    assert "(the model)" in str(account)
    assert layer(torch.randn(2, 4)).abs().max() <= 10


def test_state_dict_round_trip_and_old_checkpoints():
    model, old = Net(), Net()
    keys = set(model.state_dict())
    cosnorm.convert(model)
    assert set(model.state_dict()) == keys | {"fc2.scale"}
    missing, unexpected = model.load_state_dict(old.state_dict(), strict=False)
    assert (missing, unexpected) == (["fc2.scale"], [])
    other = Net()
    cosnorm.convert(other)
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_deepcopy_and_pickle():
    model = Net().eval()
    cosnorm.convert(model)
    x = torch.randn(2, 3, 6, 6)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        assert twin.fc1.weight is not model.fc1.weight


def test_compiled_before_or_after():
    torch.compiler.reset()
    model = Net().eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 6, 6)
    before = compiled(x)
    account = cosnorm.convert(compiled)
    assert entries(account)["conv1"] == ("Conv2d", "PearsonConv2d")
    after = compiled(x)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, model(x))


def test_one_object_under_two_names_and_tied_weights():
    model = nn.Module()
    model.one = nn.Linear(4, 4)
    model.two = model.one
    model.three = nn.Linear(4, 4)
    model.three.weight = model.one.weight
    account = cosnorm.convert(model, head=None)
    assert [tuple(entry) for entry in account] == [
        ("one", "Linear", "PearsonLinear", ""),
        ("two", "Linear", "PearsonLinear", "the same object as one"),
        ("three", "Linear", "PearsonLinear", ""),
    ]
    assert model.two is model.one
    assert model.three.weight is model.one.weight
    assert len(list(model.parameters())) == 3


def test_an_object_skipped_under_one_name_stays_under_all():
    model = nn.Module()
    model.one = nn.Linear(4, 4)
    model.two = model.one
    account = cosnorm.convert(model, skip="two")
    assert type(model.one) is nn.Linear
    assert reasons(account) == {
        "one": "the same object as two, which stays",
        "two": "skipped by 'two'",
    }


def test_twice_is_once():
    model = Net()
    cosnorm.convert(model, "cosine")
    state = {name: id(p) for name, p in model.named_parameters()}
    account = cosnorm.convert(model, "pearson")
    assert not account.changed
    assert reasons(account)["conv1"] == "a cosine layer already"
    assert {name: id(p) for name, p in model.named_parameters()} == state
    assert not model.conv1.centered


def test_account_is_a_table_and_a_sequence():
    account = cosnorm.convert(Net())
    lines = str(account).splitlines()
    assert lines[0].split() == ["layer", "was", "now", "why"]
    assert lines[1].split() == ["conv1", "Conv2d", "PearsonConv2d"]
    assert lines[2].split(maxsplit=3) == ["bn1", "BatchNorm2d", "left", "a normalisation layer"]
    assert {line.index("Conv2d") for line in lines if "Conv2d" in line} == {lines[0].index("was")}
    assert "4 changed, 1 left." in lines
    assert "New parameters, unknown to an optimiser made before: fc2.scale." in lines
    assert len(account) == 5
    assert account[-1].name == "fc2"
    assert [entry.name for entry in account[:2]] == ["conv1", "bn1"]
    assert repr(account) == "<Account: 4 changed, 1 left>"


def test_nothing_to_convert():
    model = nn.Sequential(nn.ReLU())
    assert len(cosnorm.convert(model)) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"similarity": "dot"}, ValueError, "'pearson' or 'cosine'; got 'dot'"),
        ({"skip": "conv3"}, ValueError, "got 'conv3': did you mean conv2, conv1"),
        ({"skip": ["conv1", "*.proj"]}, ValueError, r"got '\*\.proj', which matches none"),
        ({"skip": ""}, ValueError, "got '', which matches none"),
        ({"skip": [3]}, TypeError, r"predicates \(name, module\) -> bool; got int 3"),
        (
            {"skip": lambda name: True},
            TypeError,
            r"a predicate of skip takes \(name, module\); <lambda> does not: write it as",
        ),
        ({"skip": 3}, TypeError, r"predicates \(name, module\) -> bool; got int 3"),
        ({"drop_norms": "no"}, TypeError, "drop_norms must be True or False; got 'no'"),
        ({"head": "fc3"}, ValueError, "got 'fc3': did you mean fc2, fc1"),
        ({"head": "bn1"}, ValueError, "head must name layers that are converted; got 'bn1'"),
        ({"head": ["fc2"], "skip": "fc2"}, ValueError, "converted; got 'fc2'"),
        (
            {"skip": nn.Linear(2, 2)},
            TypeError,
            "a module, Linear, which the model does not have",
        ),
        (
            {"skip": nn.Sequential(nn.ReLU())},
            TypeError,
            "a module, Sequential, which the model",
        ),
        (
            {"head": 4},
            TypeError,
            "None, a layer's name, several, or a mapping .*; got int 4",
        ),
        ({"head": [4]}, TypeError, "head takes 'auto', None, a layer's name, .*; got int 4"),
        ({"head": nn.Sequential(nn.ReLU())}, TypeError, "head takes .*; got a module, Sequential"),
        ({"head": {"fc2": float("nan")}}, TypeError, "start at a number; got nan for 'fc2'"),
        ({"head": {"fc2": True}}, TypeError, "start at a number; got True for 'fc2'"),
        ({"example": 3}, TypeError, "a tuple of arguments or a dict of keyword arguments; got int"),
        (
            {"example": torch.randn(2, 4, 6, 6)},
            ValueError,
            "example must be an input that the model takes; it raised RuntimeError: .* 3 channels",
        ),
        ({"head": {"fc2": "big"}}, TypeError, "start at a number; got 'big' for 'fc2'"),
    ],
)
def test_wrong_arguments_change_nothing(arguments, error, message):
    model = Net()
    with pytest.raises(error, match=message):
        cosnorm.convert(model, **arguments)
    assert type(model.conv1) is nn.Conv2d
    assert type(model.fc2) is nn.Linear


@pytest.mark.parametrize("argument", ["skip", "head"])
def test_a_module_is_not_run_but_its_name_is_told(argument):
    model = Net()
    with pytest.raises(TypeError, match="got a module, Linear: pass its name, 'fc2'"):
        cosnorm.convert(model, **{argument: model.fc2})
    with pytest.raises(TypeError, match="got a module, Linear: pass its name, 'fc2'"):
        cosnorm.convert(model, **{argument: ["fc1", model.fc2]})
    assert type(model.fc1) is nn.Linear


def test_a_predicate_that_fails_changes_nothing():
    model = Net()

    def fails(name, module):
        if name == "fc2":
            raise RuntimeError("mine")
        return False

    with pytest.raises(RuntimeError, match="mine"):
        cosnorm.convert(model, skip=fails)
    assert type(model.conv1) is nn.Conv2d


def test_only_modules_and_not_wrapped_ones():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module; got dict"):
        cosnorm.convert({})

    class DistributedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    model = DistributedDataParallel(Net())
    with pytest.raises(ValueError, match="before it is wrapped; got a DistributedDataParallel"):
        cosnorm.convert(model)
    assert type(model.module.fc1) is nn.Linear


def test_head_scale_is_documented():
    assert HEAD_SCALE == 10
