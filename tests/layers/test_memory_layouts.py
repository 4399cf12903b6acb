"""Strides and sizes that are not the plain ones: values as of the plain, layouts as torch's."""

import copy

import pytest
import torch

import cosnorm.functional as F
from cosnorm import nn

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
KINDS = ["Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"]


def layers(kind, **named):
    return [getattr(nn, face + kind)(4, 6, 3, **named) for face in ("Cosine", "Pearson")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"learn_scale": True}, {"activation": "relu"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_channels_last_in_channels_last_out(kind, options, dtype):
    dims = int(kind[-2])
    last = LAST[dims]
    for layer in layers(kind, groups=2, bias=True, dtype=dtype, **options):
        plain = torch.randn(2, 4, *[5] * dims, dtype=dtype).requires_grad_()
        x = plain.detach().to(memory_format=last).requires_grad_()
        expected, y = layer(plain), layer(x)
        assert y.is_contiguous(memory_format=last) and not y.is_contiguous()
        torch.testing.assert_close(y, expected)
        cotangent = torch.randn_like(y)
        (grad,) = torch.autograd.grad(y, x, cotangent)
        assert grad.is_contiguous(memory_format=last) and not grad.is_contiguous()
        tolerance = {"rtol": 0.02, "atol": 0.02} if dtype.itemsize == 2 else {}
        (right,) = torch.autograd.grad(expected, plain, cotangent.contiguous())
        torch.testing.assert_close(grad, right, **tolerance)


@pytest.mark.parametrize("size", [(2, 1, 6, 5), (1, 1, 6, 5), (3, 1, 3, 3)], ids=str)
def test_one_channel_keeps_the_layout_that_was_meant(size):
    ours, torchs = nn.PearsonConv2d(1, 6, 3), torch.nn.Conv2d(1, 6, 3)
    for x in (torch.randn(size), torch.randn(size).to(memory_format=torch.channels_last)):
        assert ours(x).stride() == torchs(x).stride()
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        assert compiled(x).stride() == torchs(x).stride()


@pytest.mark.parametrize("kind", KINDS)
def test_channels_last_weights_give_channels_last_as_torch_does(kind):
    dims = int(kind[-2])
    last = LAST[dims]
    for layer in layers(kind):
        layer.to(memory_format=last)
        y = layer(torch.randn(2, 4, *[5] * dims, requires_grad=True))
        assert y.is_contiguous(memory_format=last)
        y.sum().backward()
        assert layer.weight.grad.is_contiguous(memory_format=last)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", ["linear", "conv", "transpose"])
def test_views_of_any_stride(kind, centered):
    function, shapes = {
        "linear": (F.cosine_linear, ((4, 3, 6), (5, 6))),
        "conv": (F.cosine_conv2d, ((4, 4, 6, 6), (5, 4, 3, 3))),
        "transpose": (F.cosine_conv_transpose2d, ((4, 4, 4, 4), (4, 5, 3, 3))),
    }[kind]
    x, w = (torch.randn(s, dtype=torch.float64) for s in shapes)
    expected = function(x, w, centered=centered)

    def check(xv, wv):
        leaves = [t.detach().requires_grad_() for t in (x, w)]
        grads = torch.autograd.grad(function(*leaves, centered=centered).sin().sum(), leaves)
        xv, wv = xv.requires_grad_(), wv.requires_grad_()
        y = function(xv, wv, centered=centered)
        torch.testing.assert_close(y, expected)
        for got, right in zip(torch.autograd.grad(y.sin().sum(), (xv, wv)), grads, strict=True):
            torch.testing.assert_close(got, right)

    def strided(t):  # every second entry of a buffer, its dimensions stored the other way round
        turned = t.permute(*reversed(range(t.dim()))).contiguous()
        return torch.stack([turned, turned * 0], -1)[..., 0].permute(*reversed(range(t.dim())))

    check(strided(x), strided(w))
    whole = torch.zeros(x.shape[0] + 1, *x.shape[1:], dtype=x.dtype)
    whole[1:] = x
    check(whole[1:].detach(), w.detach())


@pytest.mark.parametrize("centered", [False, True])
def test_expanded_inputs_and_weights(centered):
    x, w = torch.randn(1, 4, 1, 6), torch.randn(1, 4, 3, 3)
    wide, filters = x.expand(3, 4, 6, 6), w.expand(5, 4, 3, 3)
    y = F.cosine_conv2d(wide, filters, centered=centered)
    torch.testing.assert_close(
        y, F.cosine_conv2d(wide.contiguous(), filters.contiguous(), centered=centered)
    )
    leaf = x.requires_grad_()
    y = F.cosine_conv2d(leaf.expand(3, 4, 6, 6), filters, centered=centered)
    (grad,) = torch.autograd.grad(y.sum(), leaf)
    copy = leaf.detach().expand(3, 4, 6, 6).contiguous().requires_grad_()
    (full,) = torch.autograd.grad(F.cosine_conv2d(copy, filters, centered=centered).sum(), copy)
    torch.testing.assert_close(grad, full.sum((0, 2), keepdim=True), rtol=1e-4, atol=1e-5)
    # a cotangent without storage of its own, as .sum() makes it
    row = torch.randn(7).requires_grad_()
    F.cosine_linear(row.expand(5, 7), torch.randn(3, 7), centered=centered).sum().backward()
    assert row.grad.shape == (7,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"learn_scale": "per_output", "bias": True}], ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize(
    "kind", ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]
)
def test_batches_of_nothing(kind, activation, options, dtype):
    options = {**options, "activation": activation, "dtype": dtype}
    for face in ("Cosine", "Pearson"):
        if kind == "Linear":
            layer, shapes = getattr(nn, face + kind)(4, 6, **options), [(0, 4), (2, 0, 4)]
        else:
            layer = getattr(nn, face + kind)(4, 6, 2, **options)
            shapes = [(0, 4, *[5] * int(kind[-2]))]
        for shape in shapes:
            x = torch.randn(shape, dtype=dtype, requires_grad=True)
            y = layer(x)
            assert y.numel() == 0 and y.dim() == x.dim()
            layer.zero_grad()
            y.sum().backward()
            assert x.grad.shape == x.shape
            for parameter in layer.parameters():
                assert parameter.grad.shape == parameter.shape and not parameter.grad.any()


@pytest.mark.parametrize("length", [1, 63, 1023])
@pytest.mark.parametrize("centered", [False, True])
def test_lengths_off_the_round_numbers(length, centered):
    x, w = torch.randn(3, length, dtype=torch.float64), torch.randn(5, length, dtype=torch.float64)
    expected = F.cosine_linear(x, w, centered=centered)
    low = F.cosine_linear(x.float(), w.float(), centered=centered)
    torch.testing.assert_close(low.double(), expected, rtol=0, atol=2e-6)
    signal = x[:, None]
    y = F.cosine_conv1d(signal, w[:, None, :1], centered=centered)
    assert y.shape == (3, 5, length)


def test_nothing_is_changed_that_was_passed_in():
    tensors = [torch.randn(2, 4, 6, 6), torch.randn(4, 2, 3, 3), torch.randn(4), torch.randn(4)]
    before = [t.clone() for t in tensors]
    leaves = [t.requires_grad_() for t in tensors]
    x, w, b, s = leaves
    y = F.cosine_conv2d(x, w, b, groups=2, centered=True, scale=s)
    kept = y.detach().clone()
    cotangent = torch.randn_like(y)
    same = cotangent.clone()
    y.backward(cotangent)
    assert torch.equal(y, kept) and torch.equal(cotangent, same)
    assert all(torch.equal(t, old) for t, old in zip(leaves, before, strict=True))


@pytest.mark.parametrize("what", ["input", "weight", "output"])
def test_a_change_in_place_that_would_falsify_gradients_is_reported(what):
    x = torch.randn(3, 4, requires_grad=True)
    layer = nn.CosineLinear(4, 5, activation="relu")
    inner = x * 1
    y = layer(inner)
    with torch.no_grad():
        {"input": inner, "weight": layer.weight, "output": y}[what].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("stride", [1, (3, 2)])
@pytest.mark.parametrize("kind", [nn.CosineConvTranspose2d, nn.PearsonConvTranspose2d])
def test_one_channel_runs_backward_through_a_transposed_layer(kind, stride, dtype):
    last = torch.channels_last
    layer = kind(1, 4, (2, 3), stride=stride, dtype=dtype).to(memory_format=last)
    x = torch.randn(2, 1, 4, 5, dtype=dtype).to(memory_format=last).requires_grad_()
    plain = copy.deepcopy(layer).to(memory_format=torch.contiguous_format)
    got = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    want = torch.autograd.grad(plain(x.contiguous()).square().sum(), [x, plain.weight])
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
