"""The comparison methods: right values, one face, and nothing lost that torch's layers can do."""

import copy
import inspect
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosnorm.nn import baselines

NAMES = ("BatchNorm", "WeightNorm", "LayerNorm", "GroupNorm", "RMSNorm", "Plain")
KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d")
DIMENSIONS = {"Linear": 0, "Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
EVERY = [(name, kind) for name in NAMES for kind in KINDS]
WITH_AFFINE = [(name, kind) for name, kind in EVERY if name != "Plain"]


def build(name, kind, inputs=4, outputs=6, **options):
    kernel = {} if kind == "Linear" else {"kernel_size": 3}
    return getattr(baselines, name + kind)(inputs, outputs, **{**kernel, **options})


def sample(kind, batch=5, inputs=4, **options):
    shape = (batch, inputs, *[6] * DIMENSIONS[kind])
    return torch.randn(shape, **options)


def product(kind, x, weight, bias=None):
    return getattr(F, kind.lower())(x, weight, bias)


def written_out(name, kind, x, weight, bias=None):
    """normalised(z) in the words of the table, in float64 and without torch's normalisations."""
    x, weight = x.double(), weight.double()
    if name == "WeightNorm":
        weight = torch.stack([w / w.norm() for w in weight])
    z = product(kind, x, weight, None if bias is None else bias.double())
    if name in ("WeightNorm", "Plain"):
        return z
    if name == "GroupNorm" and len(weight) >= 32:  # 16 outputs or more in a group
        groups = [written_out("LayerNorm", kind, x, w) for w in weight.split(len(weight) // 2)]
        return torch.cat(groups, 1)
    axes = [0, *range(2, z.dim())] if name == "BatchNorm" else list(range(1, z.dim()))
    if name == "RMSNorm":
        return z / (z.square().mean(axes, keepdim=True) + 1e-5).sqrt()
    variance = z.var(axes, correction=0, keepdim=True)
    return (z - z.mean(axes, keepdim=True)) / (variance + 1e-5).sqrt()


@pytest.mark.parametrize(("name", "kind"), EVERY)
@pytest.mark.parametrize("bias", [False, True])
def test_value_is_the_formula_written_out(name, kind, bias):
    block = build(name, kind, bias=bias, dtype=torch.float64)
    if bias:
        nn.init.normal_(block.bias)
    x = sample(kind, dtype=torch.float64)
    expected = written_out(name, kind, x, block.weight, block.bias)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_normalised_each_for_itself(kind):
    block = build("GroupNorm", kind, outputs=34, dtype=torch.float64)
    assert block.norm.num_groups == 2
    x = sample(kind, dtype=torch.float64)
    torch.testing.assert_close(block(x), written_out("GroupNorm", kind, x, block.weight))


@pytest.mark.parametrize(("outputs", "groups"), [(512, 32), (1000, 25), (64, 4), (31, 1), (1, 1)])
def test_how_many_groups(outputs, groups):
    assert baselines.group_count(outputs) == groups


@pytest.mark.parametrize(("name", "kind"), EVERY)
@pytest.mark.parametrize("learn_scale", [False, True, "per_output"])
def test_scale_and_activation_follow_the_normalisation(name, kind, learn_scale):
    plain = build(name, kind)
    scaled = build(name, kind, scale=3.0, learn_scale=learn_scale, activation="relu")
    scaled.load_state_dict(plain.state_dict(), strict=False)
    if learn_scale == "per_output":
        nn.init.uniform_(scaled.scale, 1.0, 2.0)
    x = sample(kind)
    factor = scaled.scale
    if isinstance(factor, torch.Tensor):
        assert factor.shape == ((6,) if learn_scale == "per_output" else (1,))
        factor = factor.view(-1, *[1] * DIMENSIONS[kind])
    torch.testing.assert_close(scaled(x), (plain(x) * factor).relu())


@pytest.mark.parametrize(("name", "kind"), WITH_AFFINE)
def test_affine_starts_as_nothing_and_is_a_gain_and_a_shift(name, kind):
    plain, affine = build(name, kind), build(name, kind, affine=True)
    affine.load_state_dict(plain.state_dict(), strict=False)
    x = sample(kind)
    torch.testing.assert_close(affine(x), plain(x))
    gain = affine.gain if name == "WeightNorm" else affine.norm.weight
    nn.init.normal_(gain)
    shift = torch.zeros(6)
    if name != "RMSNorm":
        shift = affine.shift if name == "WeightNorm" else affine.norm.bias
        nn.init.normal_(shift)
    view = (-1, *[1] * DIMENSIONS[kind])
    torch.testing.assert_close(affine(x), plain(x) * gain.view(view) + shift.view(view))


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_gradients(name, kind):
    affine = name != "Plain"
    options = {"affine": affine, "bias": True, "scale": 2.0, "learn_scale": "per_output"}
    block = build(name, kind, 2, 3, dtype=torch.float64, **options)
    names = [n for n, _ in block.named_parameters()]

    def value(x, *parameters):
        return torch.func.functional_call(block, dict(zip(names, parameters, strict=True)), x)

    x = torch.randn(3, 2, *[4] * DIMENSIONS[kind], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (x, *block.parameters()))


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_constructor_is_torchs_then_ours(name, kind):
    torchs = inspect.signature(getattr(nn, kind).__init__).parameters
    ours = inspect.signature(getattr(baselines, name + kind).__init__).parameters
    assert list(ours)[: len(torchs)] == list(torchs)
    assert list(ours)[len(torchs) :] == ["affine", "scale", "learn_scale", "activation"]
    for key in list(ours)[len(torchs) :]:
        assert ours[key].kind is inspect.Parameter.KEYWORD_ONLY
    differing = [key for key in torchs if torchs[key].default != ours[key].default]
    assert differing == ["bias"]
    assert ours["bias"].default is False


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_torch_state_loads_and_the_weight_starts_as_torchs(name, kind):
    kernel = () if kind == "Linear" else (3,)
    torch.manual_seed(7)
    layer = getattr(nn, kind)(4, 6, *kernel)
    torch.manual_seed(7)
    block = build(name, kind, bias=True)
    assert torch.equal(block.weight, layer.weight)
    assert torch.equal(block.bias, torch.zeros(6))
    missing, unexpected = block.load_state_dict(layer.state_dict(), strict=False)
    assert not unexpected
    assert all(key.startswith("norm.") for key in missing)
    assert torch.equal(block.bias, layer.bias)


def test_state_dict_names():
    def keys(name, **options):
        return list(build(name, "Conv2d", **options).state_dict())

    statistics = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert keys("BatchNorm") == ["weight", *statistics]
    full = {"affine": True, "bias": True, "learn_scale": True}
    affine = ["norm.weight", "norm.bias"]
    assert keys("BatchNorm", **full) == ["weight", "bias", "scale", *affine, *statistics]
    assert keys("LayerNorm", **full) == ["weight", "bias", "scale", *affine]
    assert keys("GroupNorm", **full) == ["weight", "bias", "scale", *affine]
    assert keys("RMSNorm", **full) == ["weight", "bias", "scale", "norm.weight"]
    assert keys("WeightNorm", **full) == ["weight", "bias", "scale", "gain", "shift"]
    assert keys("Plain", bias=True, learn_scale=True) == ["weight", "bias", "scale"]
    assert keys("Plain", scale=2.0) == ["weight"]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_deepcopy_and_state_dict_round_trip(name, kind):
    block = build(name, kind, bias=True, learn_scale="per_output", activation="relu")
    block(sample(kind))
    block.eval()
    x = sample(kind)
    other = build(name, kind, bias=True, learn_scale="per_output", activation="relu").eval()
    file = io.BytesIO()
    torch.save(block.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), block(x))
    twin = copy.deepcopy(block)
    assert torch.equal(twin(x), block(x))
    assert twin.weight is not block.weight


@pytest.mark.parametrize("kind", KINDS)
def test_zero_weight_vector_gives_zero_and_no_gradient(kind):
    block = build("WeightNorm", kind)
    with torch.no_grad():
        block.weight[2] = 0
    x = sample(kind).requires_grad_()
    y = block(x)
    y.sum().backward()
    assert torch.equal(y[:, 2], torch.zeros_like(y[:, 2]))
    assert torch.equal(block.weight.grad[2], torch.zeros_like(block.weight.grad[2]))
    assert block.weight.grad.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_weight_normalisation(kind):
    block = build("WeightNorm", kind, dtype=torch.float64)
    x = sample(kind, dtype=torch.float64)

    def output(weight):
        return torch.func.functional_call(block, {"weight": weight}, x)

    weight = block.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(output, weight)
    assert torch.autograd.gradgradcheck(output, weight)
    by_function = torch.autograd.grad(output(weight).square().sum(), weight)[0]
    by_transform = torch.func.grad(lambda w: output(w).square().sum())(weight)
    torch.testing.assert_close(by_function, by_transform)


@pytest.mark.parametrize("factor", [1e-15, 1e15])
def test_weight_normalisation_forgets_the_length_of_the_weight(factor):
    block = build("WeightNorm", "Conv2d")
    x = sample("Conv2d")
    before = block(x)
    with torch.no_grad():
        block.weight *= factor
    torch.testing.assert_close(block(x), before)


def test_batch_statistics_are_kept_for_inference():
    block = build("BatchNorm", "Conv2d", dtype=torch.float64)
    x = sample("Conv2d", dtype=torch.float64)
    z = F.conv2d(x, block.weight)
    block(x)
    torch.testing.assert_close(block.norm.running_mean, 0.1 * z.mean((0, 2, 3)))
    block.eval()
    alone = torch.cat([block(one[None]) for one in x])
    torch.testing.assert_close(alone, block(x))


def test_linear_batch_statistics_take_every_leading_dimension():
    block = build("BatchNorm", "Linear", dtype=torch.float64)
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(block(x), block(x.reshape(21, 4)).reshape(3, 7, 6))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS[1:])
def test_unbatched_input(name, kind):
    block = build(name, kind)
    x = sample(kind, batch=1)
    torch.testing.assert_close(block(x[0]), block(x)[0])


@pytest.mark.parametrize("name", ["WeightNorm", "LayerNorm", "Plain"])
def test_unbatched_linear_input(name):
    block = build(name, "Linear")
    x = sample("Linear", batch=1)
    torch.testing.assert_close(block(x[0]), block(x)[0])


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_empty_batch(name, kind):
    block = build(name, kind, activation="relu", learn_scale=True)
    y = block(sample(kind, batch=0))
    y.sum().backward()
    assert y.shape[:2] == (0, 6)
    assert all(p.grad is None or p.grad.isfinite().all() for p in block.parameters())
    assert all(tensor.isfinite().all() for tensor in block.state_dict().values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d"])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
def test_torch_arguments_reach_the_convolution(name, kind, padding_mode):
    options = {"stride": 1, "padding": "same", "dilation": 2, "groups": 2}
    layer = getattr(nn, kind)(4, 6, 3, **options, bias=False, padding_mode=padding_mode)
    block = build(name, kind, **options, padding_mode=padding_mode)
    x = sample(kind)
    if name == "WeightNorm":
        with torch.no_grad():
            layer.weight.copy_(F.normalize(block.weight.flatten(1)).view_as(block.weight))
        expected = layer(x)
    else:
        block.load_state_dict(layer.state_dict(), strict=False)
        expected = block.norm(layer(x)) if hasattr(block, "norm") else layer(x)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("name", NAMES)
def test_channels_last_stays(name):
    block = build(name, "Conv2d", activation="relu", scale=2.0)
    x = sample("Conv2d").to(memory_format=torch.channels_last)
    y = block.to(memory_format=torch.channels_last)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, block(x.contiguous()))


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_autocast_and_low_precision(name, kind):
    block = build(name, kind, affine=name != "Plain", learn_scale=True)
    x = sample(kind)
    expected = block(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, atol=5e-2, rtol=5e-2)
    low = copy.deepcopy(block).bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["Linear", "Conv2d"])
def test_compiles_to_one_graph(name, kind):
    torch.compiler.reset()
    block = build(name, kind, affine=name != "Plain", learn_scale="per_output", activation="relu")
    twin = copy.deepcopy(block)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    x = sample(kind)
    torch.testing.assert_close(compiled(x), block(x))
    twin.eval()
    block.eval()
    torch.testing.assert_close(compiled(x), block(x))


def test_torch_finds_the_batch_normalisation_inside():
    model = nn.Sequential(build("BatchNorm", "Conv2d"))
    torch.optim.swa_utils.update_bn([sample("Conv2d")], model)
    assert model[0].norm.num_batches_tracked == 1
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(model)[0].norm, nn.SyncBatchNorm)


def test_meta_device_and_repr():
    block = build("LayerNorm", "Conv2d", affine=True, learn_scale=True, activation="relu")
    assert "affine=True, learn_scale=True, activation='relu'" in repr(block)
    meta = build("WeightNorm", "Conv2d", affine=True, learn_scale=True, device="meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}


BAD_INPUT = [
    ("Linear", {}, lambda: torch.randn(5, 3), ValueError, r"last dimension .*\(5, 3\) and weight"),
    ("Linear", {}, lambda: torch.tensor(1.0), ValueError, r"last dimension .* input is \(\)"),
    ("Linear", {}, lambda: [1.0] * 4, TypeError, "input must be a tensor, got list; make one"),
    (
        *("Linear", {}, lambda: torch.ones(2, 4, dtype=torch.int64), TypeError),
        r"floating point .*, got torch.int64; convert it, for example input.float\(\)",
    ),
    (
        *("Linear", {}, lambda: torch.ones(2, 4).to_sparse(), TypeError),
        r"input must be dense, got torch.sparse_coo; call input.to_dense\(\)",
    ),
    (
        *("Linear", {}, lambda: torch.ones(2, 4, dtype=torch.float64), TypeError),
        "one dtype, got torch.float64 and torch.float32; convert one of them",
    ),
    (
        *("Conv2d", {}, lambda: torch.ones(2, 4, 6, 6, device="meta"), ValueError),
        "weight is on cpu and input on meta; move them to one device",
    ),
    (
        *("Conv2d", {"groups": 2}, lambda: torch.randn(1, 2, 6, 6), ValueError),
        r"input has 2 channels and .* asks for 4; input is \(1, 2, 6, 6\)",
    ),
    (
        *("Conv2d", {}, lambda: torch.randn(4, 6), ValueError),
        r"4 dimensions, or 3 without a batch, got \(4, 6\); reshape it",
    ),
    (
        *("Conv1d", {"dilation": 3}, lambda: torch.randn(1, 4, 6), ValueError),
        "the kernel spans 7 positions and the padded input has only 6; pad more",
    ),
    (
        *("Conv1d", {"padding": 4, "padding_mode": "reflect"}, lambda: torch.randn(1, 4, 4)),
        *(ValueError, r"reflect padding of 4 needs a longer input, got \(1, 4, 4\); pad at most 3"),
    ),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "options", "given", "error", "told"), BAD_INPUT)
def test_bad_input_is_refused_as_the_similarity_layers_do(name, kind, options, given, error, told):
    with pytest.raises(error, match=f"^{name}{kind}: .*{told}"):
        build(name, kind, **options)(given())


BAD_ARGUMENTS = [
    ("Linear", {"inputs": 0}, ValueError, "in_features must be a positive int, got 0; pass 1 or"),
    ("Linear", {"outputs": 2.5}, ValueError, "out_features must be a positive int, got 2.5"),
    ("Linear", {"dtype": torch.complex64}, TypeError, "dtype must be floating .*torch.complex64"),
    ("Linear", {"dtype": torch.int32}, TypeError, "dtype must be floating point .*torch.int32"),
    ("Linear", {"affine": "yes"}, TypeError, "affine must be True or False, got 'yes'; True for"),
    ("Conv1d", {"inputs": True}, ValueError, "in_channels must be a positive int, got True"),
    ("Conv2d", {"kernel_size": 0}, ValueError, "kernel_size must be at least 1, got 0"),
    ("Conv2d", {"kernel_size": (3, 3, 3)}, ValueError, "kernel_size must be an int or 2 ints"),
    ("Conv2d", {"kernel_size": "3"}, TypeError, "kernel_size must be an int or 2 ints, got '3'"),
    ("Conv2d", {"stride": 0}, ValueError, "stride must be at least 1, got 0; pass 1 or more"),
    ("Conv2d", {"dilation": -1}, ValueError, "dilation must be at least 1, got -1"),
    ("Conv3d", {"padding": -1}, ValueError, "padding must be at least 0, got -1"),
    ("Conv1d", {"padding": "full"}, ValueError, 'padding must be ints, "same" or "valid"'),
    ("Conv1d", {"padding": "same", "stride": 2}, ValueError, 'padding="same" needs stride 1'),
    ("Conv2d", {"groups": 0}, ValueError, "groups must be a positive int, got 0"),
    ("Conv2d", {"groups": 3}, ValueError, r"groups must divide in_channels \(4\), got 3"),
    ("Conv2d", {"groups": 4}, ValueError, r"groups must divide out_channels \(6\), got 4"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "options", "error", "told"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_as_the_similarity_layers_do(name, kind, options, error, told):
    with pytest.raises(error, match=f"^{name}{kind}: {told}"):
        build(name, kind, **options)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_may_be_of_any_kind_of_int(name):
    block = build(name, "Conv2d", kernel_size=[np.int64(3)], stride=np.int32(1), padding=[1, 1])
    assert block(sample("Conv2d")).shape == (5, 6, 6, 6)


@pytest.mark.parametrize("name", NAMES)
def test_bad_options_are_refused_with_the_rule_and_the_value(name):
    with pytest.raises(
        ValueError, match=r'activation must be None, "relu".* or ".*", got \'tanh\''
    ):
        build(name, "Linear", activation="tanh")
    with pytest.raises(ValueError, match=r"learn_scale must be .*per_output.*, got 'per_class'"):
        build(name, "Linear", learn_scale="per_class")
    with pytest.raises(TypeError, match="scale must be None or a number, got 'big'"):
        build(name, "Linear", scale="big")


@pytest.mark.parametrize(("name", "kind"), WITH_AFFINE)
def test_reset_parameters_starts_everything_again(name, kind):
    options = {"affine": True, "bias": True, "learn_scale": "per_output", "scale": 2.0}
    block = build(name, kind, **options)
    fresh = {key: tensor.clone() for key, tensor in block.state_dict().items()}
    block(sample(kind))
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    block.reset_parameters()
    fresh.pop("weight")
    for key, tensor in fresh.items():
        assert torch.equal(block.state_dict()[key], tensor), key


def test_a_plain_layer_has_no_affine():
    with pytest.raises(ValueError, match="plain layer has none; got affine=True: use bias=True"):
        build("Plain", "Linear", affine=True)
