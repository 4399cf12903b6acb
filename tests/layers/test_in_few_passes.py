"""Convolutions on a CPU in few passes (`eager.convs`) give what `eager.steps` gives."""

import itertools

import pytest
import torch

from cosnorm.ops import eager
from cosnorm.ops.eager import boxes, convs
from cosnorm.ops.spec import Geometry, Spec
from cosnorm.testing import SLACK, error

# (size, kernel, geometry)
CASES = {
    "1d": ((3, 4, 9), (6, 4, 3), Geometry((2,), (1,), (1,), 1)),
    "2d": ((2, 3, 6, 7), (5, 3, 3, 2), Geometry((1, 2), (1, 0), (2, 1), 1)),
    "points": ((2, 8, 5, 4), (6, 8, 1, 1), Geometry((1, 1), (0, 0), (1, 1), 1)),
    "groups": ((2, 6, 5, 5), (4, 3, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 2)),
    "depthwise": ((3, 4, 9, 8), (4, 1, 7, 3), Geometry((1, 1), (3, 1), (1, 1), 4)),
    "depthwise, strided": ((2, 3, 7, 9), (6, 1, 3, 5), Geometry((2, 1), (1, 2), (1, 2), 3)),
    "3d": ((2, 4, 4, 3, 4), (4, 2, 2, 2, 2), Geometry((1, 1, 1), (1, 0, 1), (1, 1, 1), 2)),
}
TAILS = [
    (None, 1.0, None), ("relu", 1.0, None), ("relu", 2.0, "one"), (None, 0.5, "each"),
    ("gelu", 1.0, "each"), ("hardswish", 5.0, None),
]  # fmt: skip
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def tensors_of(case, bias, kind, dtype, level=0.0, last=False):
    size, kernel, geometry = CASES[case]
    units = kernel[0]
    x, w = torch.randn(size, dtype=dtype) + level, torch.randn(kernel, dtype=dtype) + level / 10
    if last and x.dim() in LAST:
        x, w = (t.contiguous(memory_format=LAST[t.dim()]) for t in (x, w))
    b = torch.randn(units, dtype=dtype) if bias else None
    s = None if kind is None else torch.randn(1 if kind == "one" else units, dtype=dtype)
    return [x, w, b, s], geometry


def both_ways(tensors, spec, monkeypatch, need=(True,) * 4, between=lambda kept: kept, seed=None):
    """y and the gradients, in few passes and step by step."""
    found = []
    for few in (True, False):
        if not few:
            monkeypatch.setattr(convs, "serves", lambda *_: False)
        y, kept = eager.forward(*tensors, spec, True)
        seed = torch.randn_like(y) if seed is None else seed
        alone, nothing = eager.forward(*tensors, spec, False)
        assert torch.equal(alone, y) and nothing == []
        grads = eager.backward(seed, *tensors, between(kept), spec, need)
        found.append([y, *grads])
    return found


def layout(tensor):
    """Strides, but of dimensions of one entry, of which they say nothing."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in pairs if size > 1]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tail", TAILS, ids=str)
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, similarity, tail, bias, last, monkeypatch):
    activation, gain, kind = tail
    tensors, geometry = tensors_of(case, bias, kind, torch.float64, 0.0, last)
    assert convs.serves(*tensors[:2], Spec(similarity, activation, gain, geometry))
    few, steps = both_ways(tensors, Spec(similarity, activation, gain, geometry), monkeypatch)
    for one, other in zip(few, steps, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
            assert layout(one) == layout(other)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("tail", TAILS, ids=str)
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("case", ["depthwise", "depthwise, strided"])
def test_a_few_images_at_a_time(case, similarity, tail, last, monkeypatch):
    monkeypatch.setattr(convs, "_PIECE", 1)
    activation, gain, kind = tail
    tensors, geometry = tensors_of(case, True, kind, torch.float64, 0.0, last)
    assert len(list(convs._pieces(tensors[1], tensors[0]))) == len(tensors[0])
    few, steps = both_ways(tensors, Spec(similarity, activation, gain, geometry), monkeypatch)
    for one, other in zip(few, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("taps", range(1, 18))
@pytest.mark.parametrize("spread", [1, 3])
def test_windows_that_double(taps, spread):
    """Against every window written out."""
    x = torch.randn(2, 3, 60, dtype=torch.float64) + 100
    geometry = Geometry((1,), (2,), (spread,), 1)
    size = geometry.output_size(x.shape[2:], [taps])[0]
    padded = torch.nn.functional.pad(x, [2, 2])
    fields = torch.stack([padded[..., i * spread : i * spread + size] for i in range(taps)])
    spec = Spec("pearson", None, 1.0, geometry)
    rnorm, mean = boxes.centred(boxes.Moments(x, None, 1), [taps], spec, False)
    torch.testing.assert_close(mean, fields.mean(0))
    spreads = (fields - fields.mean(0)).square().sum(0)
    torch.testing.assert_close(rnorm, spreads.rsqrt().nan_to_num(posinf=0.0))
    lengths = boxes.lengths(x.square(), [taps], spec, False)
    torch.testing.assert_close(lengths, fields.square().sum(0).rsqrt().nan_to_num(posinf=0.0))
    back = boxes.scatter(lengths, x.shape[2:], [taps], geometry)
    want = torch.zeros_like(padded)
    for i in range(taps):
        want[..., i * spread : i * spread + size] += lengths
    torch.testing.assert_close(back, want[..., 2:-2])


@pytest.mark.parametrize("need", list(itertools.product([False, True], repeat=4)))
def test_gradients_that_are_not_wanted(need, monkeypatch):
    tensors, geometry = tensors_of("groups", True, "each", torch.float64)
    spec = Spec("pearson", "relu", 1.0, geometry)
    few, steps = both_ways(tensors, spec, monkeypatch, need)
    for one, other, wants in zip(few[1:], steps[1:], need, strict=True):
        if wants:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", ["2d", "groups"])
@pytest.mark.parametrize("level", [3.0, 1000.0])
def test_far_from_zero(level, case, monkeypatch):
    """Inputs and weights; the weights are moved, which backward has to know."""
    tensors, geometry = tensors_of(case, True, None, torch.float32, level)
    spec = Spec("pearson", None, 1.0, geometry)
    seed = torch.randn_like(eager.forward(*tensors, spec, False)[0])
    few, steps = both_ways(tensors, spec, monkeypatch, seed=seed)
    wide = [None if t is None else t.double() for t in tensors]
    _, right = both_ways(wide, spec, monkeypatch, seed=seed.double())
    for one, other, want in zip(few[:4], steps[:4], right[:4], strict=True):
        assert error(one, want) <= 2 * error(other, want) + 2 * SLACK[torch.float32]


def test_what_is_kept_may_come_back_elsewhere(monkeypatch):
    tensors, geometry = tensors_of("2d", True, "each", torch.float64, 0.0, True)

    def spread(kept):
        return [t if t is None else t.new_zeros(*t.shape, 2)[..., 0].copy_(t) for t in kept]

    spec = Spec("pearson", "gelu", 1.0, geometry)
    few, steps = both_ways(tensors, spec, monkeypatch, between=spread)
    for one, other in zip(few, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
