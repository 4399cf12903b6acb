"""The modules: torch's constructors and state, every padding mode, output_size, and their use."""

import copy
import inspect
import io

import layer_oracle as oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import agree, brief, normal, one_or_each
from torch.func import functional_call
from torch.nn.utils import parametrize

import cosnorm.functional as F
from cosnorm import nn

KINDS = ["Linear", "Conv1d", "Conv2d", "Conv3d"]
KINDS += ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
OURS = {"centered": False, "scale": None, "learn_scale": False, "activation": None}
SHAPES = {"Linear": (2, 4), "1": (2, 4, 5), "2": (2, 4, 5, 6), "3": (2, 4, 3, 4, 3)}


def both(kind, *arguments, **named):
    """The cosine and the Pearson layer of one kind."""
    return [getattr(nn, f"{face}{kind}")(*arguments, **named) for face in ("Cosine", "Pearson")]


def some(kind, **named):
    return both(kind, 4, 6, *([] if kind == "Linear" else [2]), **named)


def example(kind, **factory):
    return torch.randn(SHAPES.get(kind, SHAPES.get(kind[-2])), **factory)


def parameters_of(callable) -> list[tuple]:
    return [(p.name, p.default, p.kind) for p in inspect.signature(callable).parameters.values()]


@pytest.mark.parametrize("face", ["Cosine", "Pearson"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_constructor_is_torchs_then_ours(kind, face):
    expected = [
        (name, False if name == "bias" else default, how)
        for name, default, how in parameters_of(getattr(torch.nn, kind))
    ]
    own = {k: v for k, v in OURS.items() if face == "Cosine" or k != "centered"}
    expected += [(name, default, inspect.Parameter.KEYWORD_ONLY) for name, default in own.items()]
    assert parameters_of(getattr(nn, face + kind)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_function_has_torchs_arguments_then_ours(kind):
    dims = int(kind[-2]) if kind != "Linear" else 0
    name = {"Linear": "linear"}.get(kind, f"conv{'_transpose' * ('T' in kind)}{dims}d")
    expected = [("input", inspect.Parameter.empty), ("weight", inspect.Parameter.empty)]
    expected += [("bias", None)]
    if "Transpose" in kind:
        expected += [("stride", 1), ("padding", 0), ("output_padding", 0), ("groups", 1)]
        expected += [("dilation", 1)]
    elif dims:
        expected += [("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)]
    expected += [("centered", False), ("scale", None), ("activation", None)]
    found = parameters_of(getattr(F, f"cosine_{name}"))
    assert [(n, d) for n, d, _ in found] == expected
    assert [n for n, _, how in found if how is inspect.Parameter.KEYWORD_ONLY] == [
        "centered", "scale", "activation",
    ]  # fmt: skip
    # The built-ins have no signature, but they say the same in the first line of their help.
    documented = getattr(torch.nn.functional, name).__doc__.strip().splitlines()[0]
    for argument, _ in expected[:-3]:
        assert argument in documented


@pytest.mark.parametrize("dims", [1, 2, 3])
@brief
@given(st.data())
def test_every_padding_mode_is_written_out(dims, data):
    draw = data.draw
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    kernel = [draw(st.integers(1, 3)) for _ in range(dims)]
    dilation = draw(one_or_each(st.integers(1, 2), dims))
    padding = draw(st.one_of(one_or_each(st.integers(0, 2), dims), st.just("same")))
    stride = 1 if padding == "same" else draw(one_or_each(st.integers(1, 2), dims))
    reach = [d * (k - 1) for k, d in zip(kernel, oracle.each(dilation, dims), strict=True)]
    size = [max(3, r + 1) + draw(st.integers(0, 1)) for r in reach]
    batch = draw(st.sampled_from([(), (2,)]))
    layer = getattr(nn, f"{draw(st.sampled_from(['Cosine', 'Pearson']))}Conv{dims}d")(
        2, 4, tuple(kernel), stride, padding, dilation, 2, draw(st.booleans()), mode,
        dtype=torch.float64, activation=draw(st.sampled_from([None, "relu"])),
    )  # fmt: skip
    make = normal(draw(st.integers(0, 999)))
    tensors = [make(*batch, 2, *size), make(*layer.weight.shape)]
    tensors.append(None if layer.bias is None else make(4))

    def module(x, w, b, scale):
        state = {"weight": w} if b is None else {"weight": w, "bias": b}
        return functional_call(layer, state, x)

    def written_out(x, w, b, scale):
        return oracle.conv(
            x, w, b, stride, padding, dilation, 2,
            centered=layer.centered, activation=layer.activation, padding_mode=mode,
        )  # fmt: skip

    agree(module, written_out, tensors, (), {"scale": None})


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [2, (2, 1), "same", "valid"])
def test_padding_modes_put_what_torchs_layers_put(mode, padding):
    theirs = torch.nn.Conv2d(1, 1, 4, padding=padding, padding_mode=mode, bias=False)
    ours = nn.CosineConv2d(1, 1, 4, padding=padding, padding_mode=mode)
    x = torch.rand(1, 1, 6, 7)
    with torch.no_grad():  # all weights equal: the norms can be had from the plain layer
        theirs.weight.fill_(1)
        ours.weight.fill_(1)
        total = theirs(x)
        squares = theirs(x.square())
    torch.testing.assert_close(ours(x), total / (4 * squares.sqrt()))


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own, of its own layer
@pytest.mark.parametrize("kernel", [2, 4, (1, 4)])
def test_same_padding_of_even_kernels_has_torchs_sides(kernel):
    x, w = torch.zeros(1, 1, 5, 6), torch.ones(1, 1, *oracle.each(kernel, 2))
    x[0, 0, 0, 0] = x[0, 0, 4, 5] = 1
    ours = F.cosine_conv2d(x, w, padding="same")
    theirs = torch.nn.functional.conv2d(x, w, padding="same")
    assert ours.shape == theirs.shape
    assert torch.equal(ours > 0, theirs > 0)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1])
def test_output_size_chooses_the_output_padding(dims, more):
    x = normal(1)(2, 2, *[3] * dims)
    theirs = getattr(torch.nn, f"ConvTranspose{dims}d")(2, 3, 3, 2, 1, bias=False)
    for layer in both(f"ConvTranspose{dims}d", 2, 3, 3, 2, 1, dtype=torch.float64):
        size = [5 + more] * dims
        y = layer(x, output_size=size)
        assert y.shape == theirs(x.float(), output_size=size).shape
        expected = oracle.conv_transpose(x, layer.weight, None, 2, 1, more, centered=layer.centered)
        torch.testing.assert_close(y, expected)
        with pytest.raises(ValueError, match="requested an output size"):
            layer(x, output_size=[9] * dims)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_torchs_state_loads_and_ours_starts_as_theirs(kind, bias):
    for layer in some(kind, bias=bias):
        torch.manual_seed(3)
        theirs = getattr(torch.nn, kind)(4, 6, *([] if kind == "Linear" else [2]), bias=bias)
        torch.manual_seed(3)
        layer.reset_parameters()
        assert torch.equal(layer.weight, theirs.weight)
        assert layer.bias is None or not layer.bias.any()
        assert layer.load_state_dict(theirs.state_dict()).missing_keys == []
        assert {k for k, _ in layer.named_parameters()} == {"weight"} | (
            {"bias"} if bias else set()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_of_scale(kind):
    x = example(kind)
    for layer in some(kind, scale=3.0):
        assert layer.scale == 3.0 and "scale" not in layer.state_dict()
    for layer in some(kind, learn_scale=True):
        assert layer.scale.shape == (1,) and layer.scale.item() == 1
        plain = layer(x)
        with torch.no_grad():
            layer.scale.fill_(-2)
        torch.testing.assert_close(layer(x), plain * -2)
    for layer in some(kind, scale=4.0, learn_scale="per_output"):
        assert layer.scale.shape == (6,) and (layer.scale == 4).all()
        layer(x).square().sum().backward()
        assert (layer.scale.grad != 0).all()
        with torch.no_grad():
            layer.scale.zero_()
        layer.reset_parameters()
        assert (layer.scale == 4).all()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_compute_the_same(kind):
    x = example(kind)
    for layer in some(kind, bias=True, learn_scale="per_output", activation="relu"):
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(layer), torch.load(buffer, weights_only=False)):
            assert torch.equal(other(x), layer(x))
            assert repr(other) == repr(layer)
            assert other.weight.data_ptr() != layer.weight.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_and_device_reach_every_parameter(kind):
    for layer in some(kind, bias=True, learn_scale=True, dtype=torch.bfloat16):
        assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
        assert layer(example(kind, dtype=torch.bfloat16)).dtype == torch.bfloat16
    for layer in some(kind, bias=True, learn_scale=True, device="meta"):
        assert {p.device.type for p in layer.parameters()} == {"meta"}
        x = example(kind, device="meta", requires_grad=True)
        y = layer(x)
        assert y.device.type == "meta" and y.shape[1] == 6
        y.sum().backward()
        assert x.grad.shape == x.shape and layer.weight.grad.shape == layer.weight.shape


def test_repr_shows_torchs_arguments_then_ours():
    layer = nn.PearsonConv2d(4, 6, 3, stride=2, scale=2.0, learn_scale=True, activation="relu")
    assert repr(layer) == (
        "PearsonConv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), bias=False, centered=True, "
        "learn_scale=True, scale=2.0, activation='relu')"
    )
    assert repr(nn.CosineLinear(3, 2)) == (
        "CosineLinear(in_features=3, out_features=2, bias=False, centered=False)"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_parametrised_weight_and_a_layer_used_twice(kind):
    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    for layer in some(kind, dtype=torch.float64):
        x = example(kind, dtype=torch.float64)
        once = layer(x)
        parametrize.register_parametrization(layer, "weight", Doubled())
        torch.testing.assert_close(layer(x), once)
        loss = layer(x).square().sum() + layer(2 * x).square().sum()
        (grad,) = torch.autograd.grad(loss, layer.parametrizations.weight.original)
        (single,) = torch.autograd.grad(
            layer(x).square().sum(), layer.parametrizations.weight.original
        )
        torch.testing.assert_close(grad, 2 * single)


@pytest.mark.parametrize("frozen", ["input", "weight", "bias", "scale"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(kind, frozen):
    for layer in some(kind, bias=True, learn_scale="per_output", dtype=torch.float64):
        x = example(kind, dtype=torch.float64)

        def grads(named, layer=layer):
            layer(named["input"]).sin().sum().backward()
            found = {name: t.grad for name, t in named.items()}
            for t in named.values():
                t.grad = None
            return found

        named = {"input": x.requires_grad_(), **dict(layer.named_parameters())}
        everything = grads(named)
        named[frozen].requires_grad_(False)
        rest = grads(named)
        assert rest.pop(frozen) is None
        for name, grad in rest.items():
            torch.testing.assert_close(grad, everything[name], msg=name)
