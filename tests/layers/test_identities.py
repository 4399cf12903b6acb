"""What must be equal to what, and to scipy: identities that no oracle of ours is needed for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import brief, normal
from scipy.stats import pearsonr

import cosnorm.functional as F
from cosnorm import nn

CONVS = {1: F.cosine_conv1d, 2: F.cosine_conv2d, 3: F.cosine_conv3d}
TRANSPOSED = {
    1: F.cosine_conv_transpose1d,
    2: F.cosine_conv_transpose2d,
    3: F.cosine_conv_transpose3d,
}
OPTIONS = [
    {"centered": centered, "scale": scale, "activation": activation}
    for centered in (False, True)
    for scale in (None, 3.0)
    for activation in (None, "relu")
]


@pytest.mark.parametrize("n", [2, 3, 10, 200])
def test_scipys_pearsonr_agrees(n):
    x, w = normal(0)(4, n), normal(1)(3, n)
    y = F.cosine_linear(x, w, centered=True)
    for i, row in enumerate(x):
        for j, unit in enumerate(w):
            assert y[i, j].item() == pytest.approx(pearsonr(row, unit).statistic, abs=1e-12)


def test_scipys_pearsonr_agrees_on_a_padded_field():
    x, w = normal(0)(1, 2, 4, 4), normal(1)(1, 2, 3, 3)
    y = F.cosine_conv2d(x, w, padding=1, centered=True)
    corner = torch.zeros(2, 3, 3, dtype=torch.float64)
    corner[:, 1:, 1:] = x[0, :, :2, :2]
    expected = pearsonr(corner.flatten(), w.flatten()).statistic
    assert y[0, 0, 0, 0].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [2, 5, 64])
def test_torchs_cosine_similarity_agrees(n):
    x, w = normal(0)(4, n), normal(1)(3, n)
    expected = torch.nn.functional.cosine_similarity(x[:, None], w[None], dim=-1)
    torch.testing.assert_close(F.cosine_linear(x, w), expected)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_of_one_tap_is_a_linear_layer(dims, options):
    make = normal(dims)
    x, w, b = make(2, 5, *[3] * dims), make(4, 5), make(4)
    rows = F.cosine_linear(x.movedim(1, -1), w, b, **options).movedim(-1, 1)
    kernel = w.view(4, 5, *[1] * dims)
    torch.testing.assert_close(CONVS[dims](x, kernel, b, **options), rows)
    torch.testing.assert_close(TRANSPOSED[dims](x, kernel.transpose(0, 1), b, **options), rows)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_kernel_as_large_as_the_image_is_a_linear_layer(dims, options):
    make = normal(dims)
    x, w, b = make(3, 2, *[3] * dims), make(4, 2, *[3] * dims), make(4)
    y = CONVS[dims](x, w, b, **options).flatten(1)
    torch.testing.assert_close(y, F.cosine_linear(x.flatten(1), w.flatten(1), b, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_groups_are_layers_side_by_side(dims, options):
    make, groups = normal(dims), 3
    x, b = make(2, 6, *[4] * dims), make(9)
    w, wt = make(9, 2, *[2] * dims), make(6, 3, *[2] * dims)
    whole = CONVS[dims](x, w, b, 2, 1, groups=groups, **options)
    parts = zip(x.chunk(groups, 1), w.chunk(groups), b.chunk(groups), strict=True)
    apart = [CONVS[dims](*part, 2, 1, **options) for part in parts]
    torch.testing.assert_close(whole, torch.cat(apart, 1))
    whole = TRANSPOSED[dims](x, wt, b, 2, 1, groups=groups, **options)
    parts = zip(x.chunk(groups, 1), wt.chunk(groups), b.chunk(groups), strict=True)
    apart = [TRANSPOSED[dims](*part, 2, 1, **options) for part in parts]
    torch.testing.assert_close(whole, torch.cat(apart, 1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_any_padding_mode_is_padding_first(dims, mode, options):
    padding = (2, 1, 1)[:dims]
    layer = getattr(nn, f"CosineConv{dims}d")(
        2, 3, 3, padding=padding, padding_mode=mode, dtype=torch.float64, **options
    )
    x = normal(0)(2, 2, *[4] * dims)
    sides = [p for size in reversed(padding) for p in (size, size)]
    padded = torch.nn.functional.pad(x, sides, mode="constant" if mode == "zeros" else mode)
    torch.testing.assert_close(layer(x), CONVS[dims](padded, layer.weight, **options))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("centered", [False, True])
def test_a_transposed_convolution_of_stride_one_is_a_full_convolution_inside(dims, centered):
    """Where every tap is in reach; nearer the border the transposed layer has fewer entries."""
    make = normal(dims)
    x, w = make(2, 3, *[6] * dims), make(3, 4, *[3] * dims)
    y = TRANSPOSED[dims](x, w, centered=centered)
    flipped = w.transpose(0, 1).flip(list(range(2, dims + 2)))
    inside = (slice(None), slice(None), *[slice(2, -2)] * dims)
    torch.testing.assert_close(y[inside], CONVS[dims](x, flipped, centered=centered))


@brief
@given(st.integers(0, 999), st.booleans(), st.floats(0.1, 50), st.floats(0.1, 50))
def test_pearson_forgets_offsets_and_both_forget_magnitudes(seed, centered, factor, other):
    make = normal(seed)
    x, w = make(3, 2, 5, 5), make(4, 2, 3, 3)
    y = F.cosine_conv2d(x, w, centered=centered)
    shift = 3.0 if centered else 0.0
    again = F.cosine_conv2d(factor * x + shift, other * w - shift, centered=centered)
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(F.cosine_conv2d(-x, w, centered=centered), -y)
    assert y.abs().max() <= 1


@pytest.mark.parametrize("centered", [False, True])
def test_the_gradient_is_orthogonal_to_what_does_not_matter(centered):
    x, w = normal(0)(3, 6).requires_grad_(), normal(1)(4, 6).requires_grad_()
    y = F.cosine_linear(x, w, centered=centered)
    for grad, of in zip(torch.autograd.grad(y, (x, w), normal(2)(3, 4)), (x, w), strict=True):
        assert (grad * of).sum(1).abs().max() < 1e-12
        if centered:
            assert grad.sum(1).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv_transpose2d"])
def test_scale_and_relu_are_what_they_would_be_outside(name):
    function = getattr(F, f"cosine_{name}")
    x, w = normal(0)(2, 3, 4, 4), normal(1)(3, 3, 2, 2)
    if name == "linear":
        x, w = x.flatten(1), normal(1)(3, 48)
    s = normal(3)(3)
    shaped = s if name == "linear" else s.view(3, 1, 1)
    y = function(x, w)
    torch.testing.assert_close(function(x, w, scale=s), y * shaped)
    torch.testing.assert_close(function(x, w, scale=s, activation="relu"), (y * shaped).relu())
    torch.testing.assert_close(function(x, w, scale=-2), y * -2)
    torch.testing.assert_close(function(x, w, scale=s[0]), y * s[0])
    assert not function(x, w, scale=torch.zeros(1, dtype=x.dtype), activation="relu").any()
