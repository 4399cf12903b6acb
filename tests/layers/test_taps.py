"""Transposed convolutions whose taps differ in size, or are zero: no output answers for others."""

import layer_oracle as oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import brief
from torch.autograd.functional import jacobian

import cosnorm.functional as F

TRANSPOSED = {1: F.cosine_conv_transpose1d, 2: F.cosine_conv_transpose2d}


@st.composite
def geometries(draw, dims):
    """Kernel size, length of the input, and torch's arguments, of outputs that are not empty."""
    sizes = st.integers(1, 3)
    kernel, length, arguments = [], [], {"stride": [], "dilation": [], "padding": []}
    arguments["output_padding"] = []
    for _ in range(dims):
        size, stride, dilation, count = (draw(sizes) for _ in range(4))
        longest = (count - 1) * stride + dilation * (size - 1)
        padding = draw(st.integers(0, min(2, longest // 2)))
        kernel.append(size)
        length.append(count)
        chosen = (stride, dilation, padding, draw(st.integers(0, max(stride, dilation) - 1)))
        for name, value in zip(
            ("stride", "dilation", "padding", "output_padding"), chosen, strict=True
        ):
            arguments[name].append(value)
    return kernel, length, arguments


def whole_numbers(seed, *shape):
    """A vector of these is either constant or far from it, in any precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).double()


def values_and_grads(function, tensors, seed):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed.to(output.dtype))]


@brief
@given(st.data())
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("centered", [False, True])
def test_taps_of_any_size_beside_others(centered, dims, data):
    kernel, length, arguments = data.draw(geometries(dims))
    seed, groups = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 2))
    x = whole_numbers(seed, 2, 3 * groups, *length)
    w = whole_numbers(seed + 1, 3 * groups, 2, *kernel)
    sizes = data.draw(st.lists(st.sampled_from([1.0, 1e-4, 0.0]), min_size=w[0, 0].numel(),
                               max_size=w[0, 0].numel()))  # fmt: skip
    sizes = torch.tensor(sizes, dtype=torch.float64).view(kernel)
    w = (w * sizes).float().double()
    tensors = [x, w]
    if data.draw(st.booleans()):
        tensors.append(whole_numbers(seed + 2, 2 * groups))
    arguments = {**arguments, "groups": groups, "centered": centered}
    right = oracle.conv_transpose(*tensors, **arguments)
    dy = whole_numbers(seed + 3, *right.shape)
    rights = values_and_grads(lambda *t: oracle.conv_transpose(*t, **arguments), tensors, dy)
    narrow = [t.float() for t in tensors]
    got = values_and_grads(lambda *t: TRANSPOSED[dims](*t, **arguments), narrow, dy)
    assert (got[0] - rights[0]).abs().max() <= 2e-6
    # A gradient is of the size of 1/|x| or 1/|w|, at most that of the tap itself.
    for here, there, size in zip(got[1:3], rights[1:3], (1, sizes.clamp(min=1e-4)), strict=True):
        allowed = 1e-6 * (dy.abs().sum() + (there * size).abs().max())
        assert ((here - there) * size).abs().max() <= allowed
    if len(tensors) == 3:  # beside small taps each output pulls at a zero bias by 1/|w|
        pulls = jacobian(lambda b: oracle.conv_transpose(x, w, b, **arguments), tensors[2])
        summed = (dy.unsqueeze(-1) * pulls).abs().flatten(0, -2).sum(0)
        assert (got[3] - rights[3]).abs().le(1e-6 * (dy.abs().sum() + summed)).all()


@pytest.mark.parametrize("kernel, stride", [(3, 3), (5, 5), (3, 1), (4, 2)])
def test_zero_taps_give_zero_and_pass_no_gradient(kernel, stride):
    """Whether all outputs of a phase see zero taps alone, or one at the border."""
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, 4, requires_grad=True)
        w = torch.randn(3, 2, kernel)
        w[:, :, 0] = 0
        w.requires_grad_()
        y = F.cosine_conv_transpose1d(x, w, stride=stride, centered=True)
        alone = y[..., :: stride if stride == kernel else y.shape[-1]]
        assert alone.numel() and not alone.any()
        dx, dw = torch.autograd.grad(alone, (x, w), torch.randn_like(alone))
        assert not dx.any() and not dw.any()


def test_small_taps_keep_their_digits():
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 5), torch.randn(4, 3, 3)
    w[:, :, 1] *= 1e-4
    y = F.cosine_conv_transpose1d(x, w, stride=3, centered=True)
    right = oracle.conv_transpose(x.double(), w.double(), stride=3, centered=True)
    assert (y - right).abs().max() <= 1e-6
