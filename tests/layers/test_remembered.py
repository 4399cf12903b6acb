"""A call like one before it is not checked again; what differs in anything that matters is."""

import numpy
import pytest
import torch

from cosnorm import functional as F

X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
B = torch.randn(4)
# What passes, and what equals it or looks like it and must not pass.
PAIRS = {
    "stride": ({"stride": 1}, {"stride": 1.0}, "stride must be"),
    "stride, true": ({"stride": 1}, {"stride": True}, "stride must be"),
    "strides": ({"stride": (1, 1)}, {"stride": (1, 1.0)}, "stride must be"),
    "padding": ({"padding": 0}, {"padding": False}, "padding must be"),
    "dilation": ({"dilation": [1, 1]}, {"dilation": [1.0, 1.0]}, "dilation must be"),
    "groups": ({"groups": 1}, {"groups": True}, "groups must be"),
    "centered": ({"centered": True}, {"centered": 1}, "centered must be"),
    "not centered": ({"centered": False}, {"centered": 0}, "centered must be"),
    "activation": ({"activation": "relu"}, {"activation": torch.relu}, "activation must be"),
    "scale": ({"scale": 1}, {"scale": True}, "scale must be"),
    "a word": ({"scale": 2.0}, {"scale": "2.0"}, "scale must be"),
    "scale's length": ({"scale": torch.ones(4)}, {"scale": torch.ones(3)}, "scale"),
    "bias": ({"bias": B}, {"bias": B[:3]}, "bias"),
    "bias's dtype": ({"bias": B}, {"bias": B.long()}, "bias"),
    "channels": ({"input": X}, {"input": X[:, :2]}, "channels"),
    "whole numbers": ({"input": X}, {"input": X.long()}, "input must be floating point"),
    "dtype": ({"weight": W}, {"weight": W.double()}, "dtype"),
    "device": ({"weight": W}, {"weight": W.to("meta")}, "device"),
    "sparse": ({"input": X}, {"input": X.to_sparse()}, "sparse"),
    "sparse weights": ({"weight": W}, {"weight": W.to_sparse()}, "sparse"),
    "lists": ({"input": X}, {"input": X.tolist()}, "input must be a tensor"),
}


def call(**given):
    return F.cosine_conv2d(**{"input": X, "weight": W, **given})


@pytest.fixture(autouse=True)
def nothing_remembered():
    F._known.clear()


@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_call_never_passes_for_a_right_one(name):
    right, wrong, message = PAIRS[name]
    for _ in range(2):
        call(**right)
    assert len(F._known) == 1
    with pytest.raises((TypeError, ValueError), match=message):
        call(**wrong)
    call(**right)
    assert len(F._known) == 1


def test_mixed_dtypes_pass_under_autocast_alone():
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            assert call(input=X.bfloat16()).dtype == torch.bfloat16
    with pytest.raises((TypeError, ValueError), match="dtype"):
        call(input=X.bfloat16())


def test_what_is_remembered_is_the_same_call():
    """Sizes of other kinds of int, and the same numbers for another similarity or function."""
    first = call(stride=numpy.int64(2), padding=1)
    assert torch.equal(first, call(stride=2, padding=1))
    assert not torch.equal(first, call(stride=2, padding=1, centered=True))
    assert torch.equal(call(scale=2.0), 2 * call())
    row, filters = torch.randn(2, 4, 6), torch.randn(4, 4, 1)
    straight, turned = F.cosine_conv1d(row, filters), F.cosine_conv_transpose1d(row, filters)
    assert not torch.equal(straight, turned)


def test_inputs_of_many_sizes_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr(F, "_MOST", 4)
    for size in range(3, 20):
        assert call(input=torch.randn(1, 3, size, size)).shape[-1] == size - 2
        assert len(F._known) <= 4


@pytest.mark.filterwarnings("ignore")  # a tracer warns of every question that is asked of sizes
def test_a_tracer_leaves_nothing_behind():
    """Sizes are tensors to it, which are equal to none before them."""
    torch.jit.trace(lambda x: F.cosine_conv2d(x, W), X, check_trace=False)
    assert not F._known
