"""The range of lengths that the contract names, at its ends: values and gradients against float64.

float32: values for lengths from 1e-18 to 1e18, gradients from 1e-16; float64: from 1e-150.
"""

import layer_oracle as oracle
import pytest
import torch

import cosnorm.functional as F

KINDS = {
    "linear": ((6, 40), (5, 40), F.cosine_linear, oracle.linear, {}),
    "conv2d": ((2, 4, 6, 5), (3, 4, 3, 3), F.cosine_conv2d, oracle.conv, {"padding": 1}),
    "conv_transpose1d": (
        (2, 4, 6), (4, 3, 3), F.cosine_conv_transpose1d, oracle.conv_transpose, {"stride": 2},
    ),
}  # fmt: skip
ENDS = {torch.float32: (1e-16, 1e18), torch.float64: (1e-150, 1e150)}


def of_length(shape, length, dtype):
    """Entries such that no field and no weight vector is shorter than `length`."""
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x.sign() * x.abs().clamp(0.5, 2) * length).to(dtype)


@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("small", ["input", "weight", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_at_the_lower_end(kind, small, centered, dtype):
    size, kernel, ours, exact, arguments = KINDS[kind]
    least = ENDS[dtype][0]
    x = of_length(size, 1.0 if small == "weight" else least, dtype)
    w = of_length(kernel, 1.0 if small == "input" else least, dtype)
    check(ours, exact, x, w, {**arguments, "centered": centered})


@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_at_the_upper_end(kind, centered, dtype):
    """Of one vector: the product of both has to be a number as well."""
    size, kernel, ours, exact, arguments = KINDS[kind]
    most = ENDS[dtype][1] / 100  # the length of 36 entries is some ten times theirs
    arguments = {**arguments, "centered": centered}
    check(ours, exact, of_length(size, most, dtype), of_length(kernel, 1.0, dtype), arguments)
    check(ours, exact, of_length(size, 1.0, dtype), of_length(kernel, most, dtype), arguments)


def check(ours, exact, x, w, arguments):
    # In units in which float64 has no such ends.
    factors = [10.0 ** round(t.abs().max().log10().item()) for t in (x, w)]
    wide = [(t.double() / f).requires_grad_() for t, f in zip((x, w), factors, strict=True)]
    y = exact(*wide, **arguments)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = [y.detach(), *torch.autograd.grad(y, wide, dy)]
    leaves = [x.requires_grad_(), w.requires_grad_()]
    y = ours(*leaves, **arguments)
    got = [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]
    allowed = 100 * torch.finfo(x.dtype).eps
    for here, there, factor in zip(got, right, (1.0, *factors), strict=True):
        assert ((here.double() * factor) - there).norm() <= allowed * there.norm()


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_values_below_the_range_of_gradients(kind, centered):
    size, kernel, ours, _, arguments = KINDS[kind]
    x, w = of_length(size, 1.0, torch.float32), of_length(kernel, 1.0, torch.float32)
    want = ours(x, w, **arguments, centered=centered)
    got = ours(x * 1e-18, w * 1e-18, **arguments, centered=centered)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
