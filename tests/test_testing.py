"""The rule of tolerance refuses what it should: a test that answers to it can fail."""

import pytest
import torch

from cosnorm import functional as F
from cosnorm import testing


def plain(relu, x, w):
    return torch.nn.functional.linear(x, w)


def exact(relu, x, w):
    y = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(w).t()
    return y.relu() if relu else y


def ours(relu, x, w):
    return F.cosine_linear(x, w, activation="relu" if relu else None)


@pytest.mark.parametrize("dtype", testing.SLACK, ids=str)
def test_what_is_exact_passes_and_what_is_not_does_not(dtype):
    tensors = [torch.randn(20, 50).to(dtype), torch.randn(30, 50).to(dtype)]
    assert testing.compare(ours, exact, plain, tensors, dtype) == []
    # Of ten times what the table allows, in the value alone and in the gradients alone.
    more = 1 + 10 * testing.SLACK[dtype] + 4 * torch.finfo(dtype).eps

    def too_much(relu, x, w):
        y = ours(relu, x, w)
        return y + (y * more - y).detach()

    def too_steep(relu, x, w):
        y = ours(relu, x, w)
        return y * more - (y * more - y).detach()

    (fault,) = testing.compare(too_much, exact, plain, tensors, dtype)
    assert fault.startswith("output: error ")
    faults = testing.compare(too_steep, exact, plain, tensors, dtype)
    assert [fault.split(":")[0] for fault in faults] == ["input", "weight"]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_never_passes(broken):
    want = torch.ones(3, dtype=torch.float64)
    got = torch.tensor([1.0, broken, 1.0])
    assert testing.error(got, want) == float("inf")
    with pytest.raises(AssertionError, match="result 0: error inf, allowed"):
        testing.assert_exact([got], [want], [want], torch.float32)


def test_twice_the_error_of_plain_torch_and_the_table_no_more():
    want = torch.ones(4, dtype=torch.float64)
    near = want * (1 + 1e-4)
    testing.assert_exact([want * (1 + 2e-4)], [want], [near], torch.float32)
    with pytest.raises(AssertionError, match=r"error 2\.02e-04, allowed 2\.01e-04"):
        testing.assert_exact([want * (1 + 2.02e-4)], [want], [near], torch.float32)


def test_a_sum_is_measured_by_what_was_summed():
    """Of 1, -1 and 1e-6 next to nothing is left; rounding of the ones remains."""
    terms = torch.tensor([1.0, -1.0, 1e-6], dtype=torch.float64)
    want = terms.sum().reshape(1)
    testing.assert_exact([want + 1e-6], [want], [want], torch.float32, terms)
    with pytest.raises(AssertionError):
        testing.assert_exact([want + 1e-6], [want], [want], torch.float32)
