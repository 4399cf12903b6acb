"""Every function against written-out vectors, over random arguments: values and all gradients."""

import layer_oracle as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import agree, exhaustive, normal, one_or_each, ours, with_scale

import cosnorm.functional as F

CONV = {1: F.cosine_conv1d, 2: F.cosine_conv2d, 3: F.cosine_conv3d}
TRANSPOSE = {
    1: F.cosine_conv_transpose1d,
    2: F.cosine_conv_transpose2d,
    3: F.cosine_conv_transpose3d,
}


@exhaustive
@given(st.data())
def test_linear(data):
    draw = data.draw
    lead = draw(st.lists(st.integers(1, 3), max_size=3))
    entries, units = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    make = normal(draw(st.integers(0, 999)))
    bias = make(units) if draw(st.booleans()) else None
    named = with_scale(draw(ours(units)), units, make)
    agree(
        F.cosine_linear,
        oracle.linear,
        [make(*lead, entries), make(units, entries), bias],
        (),
        named,
    )


def conv_arguments(draw, dims):
    """(tensors, positional arguments, units) of a plain convolution."""
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3 if dims < 3 else 2))
    units = groups * draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3 if dims < 3 else 2)) for _ in range(dims)]
    dilation = draw(one_or_each(st.integers(1, 2), dims))
    padding = draw(
        st.one_of(
            one_or_each(st.integers(0, 3 if dims < 3 else 1), dims),
            st.sampled_from(["same", "valid"]),
        )
    )
    stride = 1 if padding == "same" else draw(one_or_each(st.integers(1, 3), dims))
    sides = oracle.sides_of(padding, kernel, oracle.each(dilation, dims))
    size = [
        max(1, d * (k - 1) + 1 - sum(side)) + draw(st.integers(0, 4 if dims < 3 else 1))
        for k, d, side in zip(kernel, oracle.each(dilation, dims), sides, strict=True)
    ]
    make = normal(draw(st.integers(0, 999)))
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    tensors = [make(*batch, channels, *size), make(units, channels // groups, *kernel)]
    tensors.append(make(units) if draw(st.booleans()) else None)
    return tensors, (stride, padding, dilation, groups), units, make


@pytest.mark.parametrize("dims", [1, 2, 3])
@exhaustive
@given(st.data())
def test_conv(dims, data):
    tensors, rest, units, make = conv_arguments(data.draw, dims)
    named = with_scale(data.draw(ours(units)), units, make)
    agree(CONV[dims], oracle.conv, tensors, rest, named)


def transpose_arguments(draw, dims):
    """(tensors, positional arguments, units) of a transposed convolution."""
    small = st.integers(1, 3 if dims < 3 else 2)
    groups = draw(st.integers(1, 2))
    channels, depth = groups * draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(small) for _ in range(dims)]
    stride, dilation = draw(one_or_each(small, dims)), draw(one_or_each(st.integers(1, 2), dims))
    strides, dilations = oracle.each(stride, dims), oracle.each(dilation, dims)
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    size = [draw(st.integers(1, 4 if dims < 2 else 3 if dims < 3 else 2)) for _ in range(dims)]
    padding = [
        draw(st.integers(0, min(3, ((n - 1) * s + d * (k - 1) + o) // 2)))
        for n, s, d, k, o in zip(size, strides, dilations, kernel, extra, strict=True)
    ]
    make = normal(draw(st.integers(0, 999)))
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    tensors = [make(*batch, channels, *size), make(channels, depth, *kernel)]
    units = depth * groups
    tensors.append(make(units) if draw(st.booleans()) else None)
    return tensors, (stride, tuple(padding), tuple(extra), groups, dilation), units, make


@pytest.mark.parametrize("dims", [1, 2, 3])
@exhaustive
@given(st.data())
def test_conv_transpose(dims, data):
    tensors, rest, units, make = transpose_arguments(data.draw, dims)
    named = with_scale(data.draw(ours(units)), units, make)
    agree(TRANSPOSE[dims], oracle.conv_transpose, tensors, rest, named)
