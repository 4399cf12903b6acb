"""Every wrong argument: an error with the rule, the value and the fix, before any work."""

import re
import warnings

import numpy
import pytest
import torch

import cosnorm.functional as F
from cosnorm import nn

r = torch.randn
X, W = r(2, 4, 8, 8), r(6, 4, 3, 3)
T = r(4, 6, 3, 3)  # a transposed convolution's weight


def nested(*parts):
    """Of the older kind, which torch warns of."""
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor(list(parts), layout=torch.strided)


# (what is called, its arguments, error, rule, value received, fix)
FUNCTIONS = {
    "input is no tensor": (
        lambda: F.cosine_linear([[1.0, 2.0]], r(3, 2)),
        TypeError, "input must be a tensor", "got list", "torch.tensor"),
    "weight is no tensor": (
        lambda: F.cosine_conv2d(X, None),
        TypeError, "weight must be a tensor", "got NoneType", "torch.tensor"),
    "integer input": (
        lambda: F.cosine_linear(torch.ones(2, 3, dtype=torch.int64), r(4, 3)),
        TypeError, "input must be floating point", "torch.int64", "input.float()"),
    "integer weight": (
        lambda: F.cosine_conv2d(X, torch.ones(6, 4, 3, 3, dtype=torch.int32)),
        TypeError, "weight must be floating point", "torch.int32", "weight.float()"),
    "boolean bias": (
        lambda: F.cosine_conv2d(X, W, torch.ones(6, dtype=torch.bool)),
        TypeError, "bias must be floating point", "torch.bool", "bias.float()"),
    "sparse input": (
        lambda: F.cosine_linear(r(2, 3).to_sparse(), r(4, 3)),
        TypeError, "input must be dense", "torch.sparse_coo", "input.to_dense()"),
    "jagged input": (
        lambda: F.cosine_linear(
            torch.nested.nested_tensor([r(2, 3), r(1, 3)], layout=torch.jagged), r(4, 3)),
        TypeError, "input must be one dense tensor", "a nested one of torch.jagged",
        "to_padded_tensor"),
    "nested input": (
        lambda: F.cosine_linear(nested(r(2, 3), r(1, 3)), r(4, 3)),
        TypeError, "input must be one dense tensor", "a nested one of torch.strided",
        "to_padded_tensor"),
    "complex input": (
        lambda: F.cosine_linear(r(2, 3, dtype=torch.complex64), r(4, 3)),
        TypeError, "input must be floating point", "torch.complex64", "convert"),
    "float8 input": (
        lambda: F.cosine_linear(r(2, 3).to(torch.float8_e4m3fn), r(4, 3)),
        TypeError, "float64, float32, bfloat16 or float16", "float8_e4m3fn", "convert"),
    "two dtypes": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3).double()),
        TypeError, "input and weight must have one dtype", "torch.float32 and torch.float64",
        "autocast"),
    "a bias of another dtype": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), r(4).half()),
        TypeError, "input and bias must have one dtype", "torch.float16", "convert"),
    "two devices": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3, device="meta")),
        ValueError, "weight is on meta and input on cpu", "meta", "move them to one device"),
    "scale on another device": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=r(4, device="meta")),
        ValueError, "scale is on meta and weight on cpu", "meta", "move them to one device"),
    "sparse scale": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=r(4).to_sparse()),
        TypeError, "scale must be dense", "torch.sparse_coo", "scale.to_dense()"),
    "float8 scale": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=r(4).to(torch.float8_e5m2)),
        TypeError, "scale must be floating point (float64,", "float8_e5m2", "scale.float()"),
    "linear weight of three dimensions": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3, 1)),
        ValueError, "weight must have 2 dimensions", "(4, 3, 1)", "reshape it to (out, in)"),
    "linear weight the other way round": (
        lambda: F.cosine_linear(r(2, 3), r(3, 4)),
        ValueError, "last dimension of input must equal that of weight", "(2, 3) and weight (3, 4)",
        "pass weight as (out, in)"),
    "a number for a row": (
        lambda: F.cosine_linear(torch.tensor(1.0), r(3, 4)),
        ValueError, "last dimension of input", "input is ()", "pass weight as"),
    "an empty weight": (
        lambda: F.cosine_linear(r(2, 0), r(4, 0)),
        ValueError, "weight must have no empty dimension", "(4, 0)", "at least one"),
    "an empty kernel": (
        lambda: F.cosine_conv2d(X, r(6, 4, 0, 3)),
        ValueError, "weight must have no empty dimension", "(6, 4, 0, 3)", "at least one"),
    "conv weight of two dimensions": (
        lambda: F.cosine_conv2d(X, r(6, 4)),
        ValueError, "weight must have 4 dimensions", "(6, 4)", "(out, in / groups, *kernel size)"),
    "transposed weight of three dimensions": (
        lambda: F.cosine_conv_transpose2d(X, r(4, 6, 3)),
        ValueError, "weight must have 4 dimensions", "(4, 6, 3)", "(in, out / groups"),
    "input of two dimensions": (
        lambda: F.cosine_conv2d(r(8, 8), W),
        ValueError, "input must have 4 dimensions, or 3 without a batch", "(8, 8)", "reshape"),
    "input of five dimensions": (
        lambda: F.cosine_conv_transpose2d(r(1, 2, 4, 3, 3), T),
        ValueError, "input must have 4 dimensions, or 3", "(1, 2, 4, 3, 3)", "reshape"),
    "channels": (
        lambda: F.cosine_conv2d(r(2, 3, 8, 8), W),
        ValueError, "input has 3 channels and weight × groups (1) asks for 4", "(2, 3, 8, 8)",
        "change its channels"),
    "channels of a transposed convolution": (
        lambda: F.cosine_conv_transpose2d(r(2, 3, 8, 8), T),
        ValueError, "input has 3 channels and weight asks for 4", "(2, 3, 8, 8)", "change"),
    "bias of the wrong length": (
        lambda: F.cosine_conv2d(X, W, r(5)),
        ValueError, "bias must have one entry for each of the 6 outputs", "(5,)", "shape (6,)"),
    "bias of a transposed convolution": (
        lambda: F.cosine_conv_transpose2d(X, r(4, 3, 2, 2), r(3), groups=2),
        ValueError, "one entry for each of the 6 outputs", "(3,)", "shape (6,)"),
    "bias of two dimensions": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), r(4, 1)),
        ValueError, "bias must have one entry", "(4, 1)", "shape (4,)"),
    "groups that do not divide": (
        lambda: F.cosine_conv2d(r(2, 16, 8, 8), W, groups=4),
        ValueError, "groups must divide the output channels (6)", "got 4", "choose a divisor of 6"),
    "groups of a transposed convolution": (
        lambda: F.cosine_conv_transpose2d(X, T, groups=3),
        ValueError, "groups must divide the input channels (4)", "got 3", "divisor of 4"),
    "no groups": (
        lambda: F.cosine_conv_transpose2d(X, T, r(6), groups=0),
        ValueError, "groups must be a positive int", "got 0", "pass 1 or more"),
    "groups as a word": (
        lambda: F.cosine_conv2d(X, W, groups="two"),
        ValueError, "groups must be a positive int", "got 'two'", "pass 1 or more"),
    "stride zero": (
        lambda: F.cosine_conv2d(X, W, stride=0),
        ValueError, "stride must be at least 1", "got 0", "pass 1 or more"),
    "stride of three": (
        lambda: F.cosine_conv2d(X, W, stride=(1, 1, 1)),
        ValueError, "stride must be an int or 2 ints", "got (1, 1, 1)", "a tuple of 2"),
    "stride of halves": (
        lambda: F.cosine_conv2d(X, W, stride=(1.5, 1)),
        ValueError, "stride must be an int or 2 ints", "got (1.5, 1)", "a tuple of 2"),
    "stride as a float": (
        lambda: F.cosine_conv2d(X, W, stride=1.5),
        TypeError, "stride must be an int or 2 ints", "got 1.5", "a tuple of 2"),
    "dilation zero": (
        lambda: F.cosine_conv2d(X, W, dilation=(1, 0)),
        ValueError, "dilation must be at least 1", "got (1, 0)", "pass 1 or more"),
    "negative padding": (
        lambda: F.cosine_conv2d(X, W, padding=-1),
        ValueError, "padding must be at least 0", "got -1", "pass 0 or more"),
    "unknown padding": (
        lambda: F.cosine_conv2d(X, W, padding="full"),
        ValueError, 'padding must be ints, "same" or "valid"', "got 'full'", "pass one of these"),
    "same with stride": (
        lambda: F.cosine_conv2d(X, W, stride=(1, 2), padding="same"),
        ValueError, 'padding="same" needs stride 1', "got (1, 2)", "give the padding as ints"),
    "a kernel larger than the image": (
        lambda: F.cosine_conv2d(r(2, 4, 4, 8), W, padding=(0, 1), dilation=(2, 1)),
        ValueError, "kernel spans 5 positions", "has only 4", "pad more"),
    "an image of no rows": (
        lambda: F.cosine_conv2d(r(2, 4, 0, 8), W),
        ValueError, "at least one position in each dimension", "(2, 4, 0, 8)", "leave such"),
    "output padding as large as the stride": (
        lambda: F.cosine_conv_transpose2d(X, T, stride=2, output_padding=2),
        ValueError, "output_padding must be smaller than stride or dilation", "got (2, 2)",
        "lower it"),
    "same in a transposed convolution": (
        lambda: F.cosine_conv_transpose2d(X, T, padding="same"),
        TypeError, "padding must be an int or 2 ints", "got 'same'", "a tuple of 2"),
    "a transposed convolution that pads all away": (
        lambda: F.cosine_conv_transpose2d(r(1, 4, 1, 1), T, padding=2),
        ValueError, "the output must not be empty", "(1, 4, 1, 1) with padding (2, 2)", "pad less"),
    "unknown activation": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), activation="tanh"),
        ValueError, 'activation must be None, "relu"', "got 'tanh'", "apply any other"),
    "activation as a function": (
        lambda: F.cosine_conv2d(X, W, activation=torch.relu),
        ValueError, 'activation must be None, "relu"', "relu", "apply any other"),
    "activations in a list": (
        lambda: F.cosine_conv2d(X, W, activation=["relu"]),
        ValueError, 'activation must be None, "relu"', "got ['relu']", "apply any other"),
    "centered as a number": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), centered=1),
        TypeError, "centered must be True or False", "got 1", "True for Pearson"),
    "scale as a word": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale="per_output"),
        TypeError, "scale must be None, a number or a tensor", "'per_output'", "a float"),
    "scale true": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=True),
        TypeError, "scale must be None, a number or a tensor", "True", "a float"),
    "scale not finite": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=float("inf")),
        ValueError, "scale must be finite", "got inf", "a float"),
    "scale of the wrong length": (
        lambda: F.cosine_conv2d(X, W, scale=r(5)),
        ValueError, "scale must have shape (1,) or (6,)", "got (5,)", "reshape"),
    "scale of two dimensions": (
        lambda: F.cosine_conv2d(X, W, scale=r(6, 1)),
        ValueError, "scale must have shape (1,) or (6,)", "got (6, 1)", "reshape"),
    "nothing to transpose": (
        lambda: F.cosine_conv_transpose1d(r(1, 3, 0), r(3, 2, 4)),
        ValueError, "input must have at least one position", "got (1, 3, 0)", "leave such inputs"),
    "nothing to transpose in one dimension, unbatched": (
        lambda: F.cosine_conv_transpose2d(r(4, 0, 5), T),
        ValueError, "input must have at least one position", "got (4, 0, 5)", "leave such inputs"),
    "numpy's truth as a scale": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=numpy.bool_(True)),
        TypeError, "scale must be None, a number or a tensor", "True", "a float"),
    "numpy's NaN as a scale": (
        lambda: F.cosine_linear(r(2, 3), r(4, 3), scale=numpy.float32("nan")),
        ValueError, "scale must be finite", "got nan", "a float"),
    "integer scale tensor": (
        lambda: F.cosine_conv2d(X, W, scale=torch.ones(6, dtype=torch.int64)),
        TypeError, "scale must be floating point", "torch.int64", "scale.float()"),
}  # fmt: skip

MODULES = {
    "no features": (
        lambda: nn.CosineLinear(0, 4),
        ValueError, "in_features must be a positive int", "got 0", "pass 1 or more"),
    "features as a float": (
        lambda: nn.PearsonLinear(3, 4.0),
        ValueError, "out_features must be a positive int", "got 4.0", "pass 1 or more"),
    "no outputs": (
        lambda: nn.CosineLinear(4, 0),
        ValueError, "out_features must be a positive int", "got 0", "pass 1 or more"),
    "bias as a tensor": (
        lambda: nn.CosineLinear(3, 4, bias=r(4)),
        TypeError, "CosineLinear: bias must be True or False", "got a tensor", "into layer.bias"),
    "bias as a word": (
        lambda: nn.PearsonLinear(3, 4, bias="yes"),
        TypeError, "bias must be True or False", "got 'yes'", "into layer.bias"),
    "bias of a convolution as a tensor": (
        lambda: nn.PearsonConv2d(3, 4, 3, bias=r(4)),
        TypeError, "PearsonConv2d: bias must be True or False", "got a tensor", "into layer.bias"),
    "bias of a transposed convolution as a word": (
        lambda: nn.CosineConvTranspose1d(3, 4, 3, bias="no"),
        TypeError, "bias must be True or False", "got 'no'", "into layer.bias"),
    "bias of a baseline as a word": (
        lambda: nn.BatchNormLinear(3, 4, bias="no"),
        TypeError, "bias must be True or False", "got 'no'", "into layer.bias"),
    "bias of a baseline convolution as a tensor": (
        lambda: nn.LayerNormConv2d(3, 4, 3, bias=r(4)),
        TypeError, "bias must be True or False", "got a tensor", "into layer.bias"),
    "no channels": (
        lambda: nn.CosineConv2d(0, 4, 3),
        ValueError, "in_channels must be a positive int", "got 0", "pass 1 or more"),
    "groups of the input": (
        lambda: nn.PearsonConv2d(3, 4, 3, groups=2),
        ValueError, "groups must divide in_channels (3)", "got 2", "choose a divisor of 3"),
    "groups of the output": (
        lambda: nn.CosineConvTranspose2d(4, 3, 3, groups=2),
        ValueError, "groups must divide out_channels (3)", "got 2", "choose a divisor of 3"),
    "groups zero": (
        lambda: nn.CosineConv1d(4, 4, 3, groups=0),
        ValueError, "groups must be a positive int", "got 0", "pass 1 or more"),
    "kernel zero": (
        lambda: nn.CosineConv2d(4, 4, 0),
        ValueError, "kernel_size must be at least 1", "got 0", "pass 1 or more"),
    "kernel of three": (
        lambda: nn.CosineConv2d(4, 4, (3, 3, 3)),
        ValueError, "kernel_size must be an int or 2 ints", "got (3, 3, 3)", "a tuple of 2"),
    "kernel as a word": (
        lambda: nn.PearsonConv3d(4, 4, "3"),
        TypeError, "kernel_size must be an int or 3 ints", "got '3'", "a tuple of 3"),
    "stride zero": (
        lambda: nn.CosineConvTranspose1d(4, 4, 3, stride=0),
        ValueError, "stride must be at least 1", "got 0", "pass 1 or more"),
    "dilation zero": (
        lambda: nn.CosineConv1d(4, 4, 3, dilation=0),
        ValueError, "dilation must be at least 1", "got 0", "pass 1 or more"),
    "unknown padding": (
        lambda: nn.CosineConv1d(4, 4, 3, padding="full"),
        ValueError, 'padding must be ints, "same" or "valid"', "got 'full'", "pass one of these"),
    "same with stride": (
        lambda: nn.PearsonConv2d(4, 4, 3, stride=2, padding="same"),
        ValueError, 'padding="same" needs stride 1', "got (2, 2)", "use stride 1"),
    "negative padding": (
        lambda: nn.PearsonConv2d(4, 4, 3, padding=(1, -1)),
        ValueError, "padding must be at least 0", "got (1, -1)", "pass 0 or more"),
    "unknown padding mode": (
        lambda: nn.PearsonConv2d(4, 4, 3, padding_mode="mirror"),
        ValueError, 'padding_mode must be "zeros"', "'mirror'", "torch.nn.functional.pad"),
    "padding mode of a transposed convolution": (
        lambda: nn.PearsonConvTranspose2d(4, 4, 3, padding_mode="reflect"),
        ValueError, 'padding_mode must be "zeros"', "'reflect'", "torch.nn.functional.pad"),
    "unknown activation": (
        lambda: nn.CosineConvTranspose2d(4, 4, 3, activation="tanh"),
        ValueError, 'activation must be None, "relu"', "got 'tanh'", "apply any other"),
    "centered as a word": (
        lambda: nn.CosineLinear(3, 4, centered="yes"),
        TypeError, "centered must be True or False", "got 'yes'", "True for Pearson"),
    "scale as a word": (
        lambda: nn.CosineLinear(3, 4, scale="learned"),
        TypeError, "scale must be None or a number", "got 'learned'", "a float"),
    "scale not a number": (
        lambda: nn.CosineConv2d(3, 4, 1, scale=float("nan")),
        ValueError, "scale must be finite", "got nan", "a float"),
    "unknown kind of scale": (
        lambda: nn.PearsonConv1d(3, 4, 1, learn_scale="each"),
        ValueError, 'learn_scale must be False, True or "per_output"', "got 'each'", "as scale"),
    "kind of scale as a number": (
        lambda: nn.PearsonLinear(3, 4, learn_scale=10.0),
        ValueError, 'learn_scale must be False, True or "per_output"', "got 10.0", "as scale"),
    "an integer layer": (
        lambda: nn.CosineLinear(3, 4, dtype=torch.int64),
        TypeError, "dtype must be floating point", "got torch.int64", "leave it out"),
    "a complex convolution": (
        lambda: nn.PearsonConv2d(3, 4, 1, dtype=torch.complex64),
        TypeError, "dtype must be floating point", "got torch.complex64", "leave it out"),
    "a float8 transposed convolution": (
        lambda: nn.CosineConvTranspose1d(3, 4, 1, dtype=torch.float8_e4m3fn),
        TypeError, "dtype must be floating point", "got torch.float8_e4m3fn", "leave it out"),
    "too much reflection": (
        lambda: nn.CosineConv2d(4, 4, 3, padding=(1, 8), padding_mode="reflect")(X),
        ValueError, "reflect padding of 8 needs a longer input", "(2, 4, 8, 8)", "at most 7"),
    "too much wrapping": (
        lambda: nn.CosineConv2d(4, 4, 3, padding=9, padding_mode="circular")(X),
        ValueError, "circular padding of 9 needs a longer input", "(2, 4, 8, 8)", "at most 8"),
    "nothing to repeat": (
        lambda: nn.CosineConv1d(4, 4, 3, padding=2, padding_mode="replicate")(r(1, 4, 0)),
        ValueError, "replicate padding of 2 needs a longer input", "(1, 4, 0)", "at most 0"),
    "padding mode and dimensions": (
        lambda: nn.CosineConv2d(4, 4, 3, padding=1, padding_mode="reflect")(X[None]),
        ValueError, "input must have 4 dimensions, or 3", "(1, 2, 4, 8, 8)", "reshape"),
    "padding mode and channels": (
        lambda: nn.CosineConv2d(3, 4, 3, padding=1, padding_mode="reflect")(X),
        ValueError, "input has 4 channels and the layer asks for 3", "(2, 4, 8, 8)", "change"),
    "padding mode and integers": (
        lambda: nn.CosineConv2d(4, 4, 3, padding=1, padding_mode="reflect")(X.long()),
        TypeError, "input must be floating point", "torch.int64", "input.float()"),
    "a layer in another dtype": (
        lambda: nn.PearsonConv2d(4, 4, 3).double()(X),
        TypeError, "input and weight must have one dtype", "torch.float32 and torch.float64",
        "convert"),
    "a layer's integer input": (
        lambda: nn.CosineLinear(4, 4)(torch.ones(2, 4, dtype=torch.int64)),
        TypeError, "input must be floating point", "torch.int64", "input.float()"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FUNCTIONS, *(f"layer: {name}" for name in MODULES)])
def test_the_message_has_the_rule_the_value_and_the_fix(name):
    layer = name.startswith("layer: ")
    call, error, *parts = MODULES[name[7:]] if layer else FUNCTIONS[name]
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert re.search(re.escape(part), str(caught.value)), str(caught.value)


def test_no_work_was_done_before():
    """An error costs no tensor: nothing is dispatched but what reads shapes."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    layer, flat = nn.CosineConv2d(3, 4, 3, padding=1, padding_mode="reflect"), r(6, 4)
    with Watch():
        for call in (
            lambda: F.cosine_conv2d(X, W, groups=4),
            lambda: F.cosine_conv2d(X, W, scale=X),
            lambda: F.cosine_conv_transpose2d(X, T, activation="tanh"),
            lambda: F.cosine_linear(X, flat),
            lambda: layer(X),
        ):
            with pytest.raises(ValueError):
                call()
    assert seen == []


def test_numpy_integers_and_lists_are_sizes_as_in_torch():
    y = F.cosine_conv2d(X, W, stride=numpy.int64(2), padding=[1, 1], dilation=torch.Size([1, 1]))
    torch.testing.assert_close(y, F.cosine_conv2d(X, W, stride=2, padding=1))
    layer = nn.CosineConv2d(4, 6, numpy.int32(3), stride=[2, 2], padding=(1,))
    assert layer(X).shape == torch.nn.Conv2d(4, 6, 3, 2, 1)(X).shape


@pytest.mark.parametrize("number", [numpy.float32(3), numpy.float64(3), numpy.int64(3), 3])
def test_numpys_numbers_are_scales(number):
    x, w = r(2, 3), r(4, 3)
    want = F.cosine_linear(x, w, scale=3.0)
    assert torch.equal(F.cosine_linear(x, w, scale=number), want)
    layer = nn.CosineLinear(3, 4, scale=number)
    assert type(layer.scale) is float and layer.scale == 3
    start = nn.CosineConv2d(3, 4, 1, scale=number, learn_scale=True)
    assert start.scale.item() == 3


def test_a_batch_of_none_is_no_mistake():
    assert F.cosine_conv_transpose1d(r(0, 3, 2), r(3, 2, 4)).shape == (0, 2, 5)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: F.cosine_conv2d(torch.randn(2, 4, 5, 0), torch.randn(3, 4, 3, 3), padding=3),
            "cosine_conv2d: input must have at least one position in each dimension of space",
        ),
        (
            lambda: nn.CosineConvTranspose2d(4, 3, 2)(torch.randn(2, 4, 5, 5), output_size=6),
            "output_size must be a list of 2 ints, got 6; pass the size of the output",
        ),
        (
            lambda: nn.PearsonConvTranspose1d(4, 3, 2)(torch.randn(2, 4, 5), output_size=[1] * 4),
            r"output_size must be a list of 1 ints, got \[1, 1, 1, 1\]",
        ),
        (
            lambda: nn.CosineConvTranspose2d(4, 3, 2)(torch.randn(4, 5), output_size=[6, 6]),
            r"input must have 4 dimensions, or 3 without a batch, got \(4, 5\)",
        ),
        (
            lambda: nn.CosineConv2d(4, 3, 3, padding_mode="foo"),  # pyright: ignore[reportArgumentType]
            'CosineConv2d: padding_mode must be "zeros", "reflect", "replicate" or "circular", '
            "got 'foo'; pad the input with",
        ),
        (
            lambda: nn.PearsonConvTranspose3d(4, 3, 3, padding_mode="reflect"),
            "PearsonConvTranspose3d: padding_mode must be \"zeros\", got 'reflect'; pad",
        ),
        (
            lambda: F.cosine_linear(torch.randn(2, 4), torch.randn(3, 4), scale=10**400),
            "scale must be finite, got an int beyond every float; pass a float",
        ),
    ],
)
def test_rule_value_and_fix(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_an_output_size_is_taken_as_by_torch():
    ours, torchs = nn.CosineConvTranspose2d(4, 3, 2, stride=2), torch.nn.ConvTranspose2d(4, 3, 2, 2)
    x = torch.randn(2, 4, 5, 5)
    for size in ([11, 10], (10, 11), torch.Size([2, 3, 10, 10])):
        assert ours(x, output_size=size).shape == torchs(x, output_size=list(size)).shape
