"""A zero vector, for Pearson a constant one, gives exactly 0 and passes exactly 0 gradient."""

import pytest
import torch
from torch import Tensor

import cosnorm.functional as F
import cosnorm.nn

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [1, 2, 3, 5, 16, 63, 64, 100, 257, 1000, 1023, 4096, 6007, 8191]
CONSTANTS = [0.1, 1.0, 1e4, 3.3e-3, -7.7, 1e-4, 0.3333333333]
CONVS = {1: F.cosine_conv1d, 2: F.cosine_conv2d, 3: F.cosine_conv3d}


def grads_of(output: Tensor, *tensors: Tensor):
    return torch.autograd.grad(output, tensors, torch.randn_like(output))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_constant_rows_and_constant_weights(n, dtype):
    constants = torch.tensor(CONSTANTS, dtype=dtype)
    x = constants[:, None].repeat(1, n).requires_grad_()
    w = torch.randn(4, n, dtype=dtype, requires_grad=True)
    for row, unit in ((x, w), (w, x)):
        y = F.cosine_linear(row, unit, centered=True)
        assert not y.any()
        for grad in grads_of(y, row, unit):
            assert not grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("n", [1, 3, 64, 1023])
def test_zero_rows_and_zero_weights_among_others(n, centered, dtype):
    x = torch.randn(6, n, dtype=dtype)
    w = torch.randn(5, n, dtype=dtype)
    x[2] = 0
    w[3] = 0
    x.requires_grad_()
    w.requires_grad_()
    y = F.cosine_linear(x, w, centered=centered)
    dx, dw = grads_of(y, x, w)
    assert not y[2].any() and not y[:, 3].any()
    assert not dx[2].any() and not dw[3].any()
    if n > 1:  # the others are none the worse for it
        assert y[0, 0] != 0 and dx[0].any() and dw[0].any()
    zero = torch.zeros_like(w, requires_grad=True)
    y = F.cosine_linear(x, zero, centered=centered)
    assert not y.any() and not any(g.any() for g in grads_of(y, x, zero))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [1, 3, 37, 300])
def test_constant_fields_and_constant_filters(channels, layout, dtype):
    constants = torch.tensor(CONSTANTS, dtype=dtype)
    x = constants[:, None, None, None].repeat(1, channels, 7, 6)
    w = constants[:, None, None, None].repeat(1, channels, 3, 3)
    if layout == "channels_last":
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    x.requires_grad_()
    w.requires_grad_()
    filters = torch.randn_like(w, requires_grad=True)
    y = F.cosine_conv2d(x, filters, stride=2, dilation=(1, 2), centered=True)
    assert y.numel() and not y.any()
    assert not any(g.any() for g in grads_of(y, x, filters))
    image = torch.randn_like(x, requires_grad=True)
    y = F.cosine_conv2d(image, w, padding=2, centered=True)
    assert not y.any() and not any(g.any() for g in grads_of(y, image, w))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_constant_image_with_padding_has_constant_fields_inside_only(dims, dtype):
    """Padded zeros are entries: a field that holds some is not constant, one without is."""
    x = torch.full((1, 5, *[7] * dims), 0.1, dtype=dtype, requires_grad=True)
    w = torch.randn(3, 5, *[3] * dims, dtype=dtype)
    y = CONVS[dims](x, w, padding=2, centered=True)
    inside = (slice(None), slice(None), *[slice(2, -2)] * dims)
    border = torch.ones(y.shape, dtype=torch.bool)
    border[inside] = False
    assert not y[inside].any()
    assert (y[border] != 0).float().mean() > 0.95
    (dx,) = grads_of(y, x)
    centre = (slice(None), slice(None), *[slice(3, 4)] * dims)
    assert torch.isfinite(dx).all()
    (dx,) = torch.autograd.grad(CONVS[dims](x, w, centered=True).sum(), x)
    assert not dx[centre].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centered", [False, True])
def test_fields_that_lie_in_the_padding(centered, dtype):
    x = torch.randn(2, 3, 2, 2, dtype=dtype, requires_grad=True)
    w = torch.randn(4, 3, 2, 2, dtype=dtype, requires_grad=True)
    y = F.cosine_conv2d(x, w, padding=4, centered=centered)
    assert not y[:, :, 0].any() and not y[..., -1].any() and y[:, :, 4, 4].all()
    assert all(torch.isfinite(g).all() for g in grads_of(y, x, w))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", CONSTANTS)
def test_transposed_convolutions_of_constants(value, dtype):
    x = torch.full((2, 30, 4, 4), value, dtype=dtype, requires_grad=True)
    w = torch.randn(30, 3, 3, 3, dtype=dtype, requires_grad=True)
    for one, other in ((x, w), (torch.randn_like(x), torch.full_like(w, value))):
        one, other = one.detach().requires_grad_(), other.detach().requires_grad_()
        y = F.cosine_conv_transpose2d(one, other, stride=2, centered=True)
        assert not y.any() and not any(g.any() for g in grads_of(y, one, other))
        y = F.cosine_conv_transpose2d(one * 0, other, stride=2)
        assert not y.any() and not any(g.any() for g in grads_of(y, one, other))


def test_outputs_that_nothing_reaches():
    x, w, b = torch.randn(1, 2, 3), torch.randn(2, 4, 1), torch.tensor([1.0, -2, 0, 3])
    gaps = F.cosine_conv_transpose1d(x, w, stride=3)[..., 1::3]
    assert gaps.numel() and not gaps.any()
    gaps = F.cosine_conv_transpose1d(x, w, b, stride=3)[..., 1::3]
    assert torch.equal(gaps[0, :, 0], torch.tensor([1.0, -1, 0, 1]))
    assert not F.cosine_conv_transpose1d(x, w, b, stride=3, centered=True)[..., 1::3].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_pearson_of_a_single_entry_is_zero_and_with_a_bias_a_sign(dtype):
    x = torch.tensor([[2.0], [0.0], [-3.0]], dtype=dtype)
    w = torch.tensor([[1.5], [-1.0]], dtype=dtype)
    assert not F.cosine_linear(x, w, centered=True).any()
    assert torch.equal(F.cosine_linear(x, w), x.sign() * w.sign().t())
    y = F.cosine_linear(x, w, torch.zeros(2, dtype=dtype), centered=True)
    # [x, 1] against [w, 0]: of two entries only their order counts.
    expected = (x - 1).sign() * w.sign().t()
    torch.testing.assert_close(y, expected, rtol=0, atol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("base", [1.0, 1e-12, 3e4])
def test_a_signal_well_above_rounding_is_not_thrown_away(base, dtype):
    """A deviation of 32 ε of the mean survives; noise of ε/2 would not."""
    eps = torch.finfo(dtype).eps
    steps = torch.tensor([1, -1, 1, 1, -1, 1, -1, -1], dtype=dtype)
    x = (base * (1 + 32 * eps * steps))[None]
    y = F.cosine_linear(x, torch.stack([steps, -steps]), centered=True)
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0]], dtype=dtype), rtol=0.1, atol=0)


@pytest.mark.parametrize("size", [1e-15, 1e-18])
@pytest.mark.parametrize("centered", [False, True])
def test_tiny_signals_count(centered, size):
    x, w = torch.randn(3, 20), torch.randn(4, 20)
    small = F.cosine_linear(x * size, w * size, centered=centered)
    torch.testing.assert_close(small, F.cosine_linear(x, w, centered=centered))


@pytest.mark.parametrize("centered", [False, True])
def test_what_is_not_a_number_is_not_hidden(centered):
    x = torch.randn(3, 5)
    x[1, 2] = float("nan")
    x[2, 2] = float("inf")
    y = F.cosine_linear(x, torch.randn(4, 5), centered=centered)
    assert torch.isfinite(y[0]).all() and y[1:].isnan().all()


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("learn", [True, "per_output"])
@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "ConvTranspose2d"])
def test_a_scale_of_zero_gives_zeros_and_finite_gradients(kind, learn, activation):
    size, shape = ((4, 6), (5, 4)) if kind == "Linear" else ((4, 6, 3), (2, 4, 5, 5))
    for face in ("Cosine", "Pearson"):
        layer = getattr(cosnorm.nn, face + kind)(
            *size, scale=0.0, learn_scale=learn, activation=activation
        )
        x = torch.randn(shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert (y == 0).all() and (x.grad == 0).all() and (layer.weight.grad == 0).all()
        assert layer.scale.grad.isfinite().all()
        assert (layer.scale.grad == 0).all() == (activation == "relu")
