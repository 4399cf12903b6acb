"""A row or a unit answers for itself alone: what is not a number changes nothing beside it."""

import layer_oracle as oracle
import pytest
import torch

import cosnorm.functional as F

BROKEN = [float("nan"), float("inf"), -float("inf")]


def run(x, w, b, seed):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b) if t is not None]
    y = F.cosine_linear(*leaves, centered=True)
    return [y.detach(), *torch.autograd.grad(y, leaves, seed)]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_row_that_is_no_number_changes_no_other(offset, bias, broken):
    torch.manual_seed(0)
    x, w = torch.randn(6, 40) + offset, torch.randn(5, 40)
    b = torch.randn(5) if bias else None
    x[1] = 0.1  # constant: 0, without a bias
    seed = torch.randn(6, 5)
    seed[3] = 0  # or every gradient of a weight would be NaN, and rightly
    clean = run(x, w, b, seed)
    x[3, 7] = broken
    others = [0, 1, 2, 4, 5]
    got = run(x, w, b, seed)
    assert torch.equal(got[0][others], clean[0][others])
    assert torch.equal(got[1][others], clean[1][others])
    assert got[0][3].isnan().all()
    assert bias or not got[0][1].any()


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_unit_that_is_no_number_changes_no_other(offset, bias, broken):
    torch.manual_seed(0)
    x, w = torch.randn(6, 40), torch.randn(5, 40) + offset
    b = torch.randn(5) + offset if bias else None
    w[1] = 0.1 + offset
    seed = torch.randn(6, 5)
    clean = run(x, w, b, seed)
    w[3, 7] = broken
    got = run(x, w, b, seed)
    others = [0, 1, 2, 4]
    assert torch.equal(got[0][:, others], clean[0][:, others])
    for here, there in zip(got[2:], clean[2:], strict=True):
        assert torch.equal(here[others], there[others])
    assert got[0][:, 3].isnan().all()
    assert bias or not got[0][:, 1].any()


@pytest.mark.parametrize("bias", [False, True])
def test_units_of_any_mean_side_by_side(bias):
    """Against float64: a unit far from zero neither loses its digits nor costs others theirs."""
    torch.manual_seed(0)
    x, w = torch.randn(7, 60), torch.randn(6, 60)
    w[1::2] += torch.tensor([10.0, -100, 1000])[:, None]
    b = torch.randn(6) if bias else None
    seed = torch.randn(7, 6)
    wide = [None if t is None else t.double().requires_grad_() for t in (x, w, b)]
    y = oracle.linear(*wide, centered=True)
    leaves = [t for t in wide if t is not None]
    right = [y.detach(), *torch.autograd.grad(y, leaves, seed.double())]
    got = run(x, w, b, seed)
    # A unit of mean 1000 holds its deviations to 1000 ε.
    assert (got[0] - right[0]).abs().max() <= 1e-5
    assert (got[0] - right[0])[:, ::2].abs().max() <= 1e-6
    for here, there in zip(got[1:], right[1:], strict=True):
        assert (here - there).norm() <= 1e-5 * there.norm()
