"""fold(dtype=torch.int8): weights of 8 bits, still an exact similarity."""

import copy
import re

import pytest
import torch
import torch.fx
from safetensors.torch import load_file, save_file
from torch import nn

import cosnorm
from cosnorm.nn import CosineConv2d, CosineLinear, PearsonConv2d, PearsonLinear

LAYERS = {
    "linear": ("Linear", (5, 6), {}, (3, 5)),
    "linear on sequences": ("Linear", (5, 6), {}, (3, 2, 5)),
    "conv2d": ("Conv2d", (4, 6, 3), {"padding": (2, 1), "groups": 2}, (3, 4, 7, 7)),
    "conv2d, reflected": (
        "Conv2d",
        (4, 6, 3),
        {"padding": 1, "padding_mode": "reflect"},
        (3, 4, 7, 7),
    ),
    "conv3d": ("Conv3d", (4, 6, 2), {"dilation": 2}, (3, 4, 5, 5, 5)),
}


def build(case, similarity, **options):
    kind, arguments, more, shape = LAYERS[case]
    layer = getattr(cosnorm.nn, similarity + kind)(*arguments, **more, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer.eval(), shape


@pytest.mark.parametrize("similarity", ["Cosine", "Pearson"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_int8_is_the_exact_similarity_to_the_rounded_vectors(case, bias, similarity):
    layer, shape = build(case, similarity, bias=bias, scale=3.0, activation="relu")
    twin = nn.Sequential(copy.deepcopy(layer)).eval()
    cosnorm.fold(twin, dtype=torch.int8)
    q, qb = twin[0].unit_weight, twin[0].unit_bias
    assert q.dtype == torch.int8 and (qb is None) == (not bias)
    rows = q if qb is None else torch.cat([q.flatten(1), qb.unsqueeze(1)], 1)
    assert rows.flatten(1).abs().amax(1).eq(127).all()
    rounded = copy.deepcopy(layer).double()
    with torch.no_grad():
        rounded.weight.copy_(q)
        if bias:
            rounded.bias.copy_(qb)
    x = torch.randn(shape) + 2
    expected = rounded(x.double())
    torch.testing.assert_close(twin(x).double(), expected, rtol=0, atol=1e-5)
    differentiable = twin(x.requires_grad_()).double()
    torch.testing.assert_close(differentiable, expected, rtol=0, atol=1e-5)
    assert (expected - layer.double()(x.double())).abs().max() < 3 * 0.02


def test_int8_follows_casts_and_keeps_the_bound():
    layer = PearsonLinear(64, 32).eval()
    twin = nn.Sequential(copy.deepcopy(layer))
    cosnorm.fold(twin, dtype=torch.int8)
    expected = layer.double()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float32):
        twin.to(dtype)
        x = (torch.randn(16, 64) + 30).to(dtype)
        y = twin(x)
        assert y.dtype == dtype and y.abs().max() <= 1
        assert twin[0].unit_weight.dtype == torch.int8 and twin[0].step.dtype == torch.float32
        torch.testing.assert_close(y.double(), expected(x.double()), rtol=0, atol=3e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(x)
    torch.testing.assert_close(y.double(), expected(x.double()), rtol=0, atol=3e-2)
    own = layer.weight.detach()[:4].float()  # as near as can be: the clamp is at work
    assert twin(own).abs().max() <= 1


def test_int8_takes_a_quarter_of_the_bytes_and_is_saved_as_such(tmp_path):
    model = nn.Sequential(PearsonConv2d(8, 16, 3, bias=True), nn.ReLU(), CosineConv2d(16, 8, 1))
    full = copy.deepcopy(model).eval()
    small = copy.deepcopy(model).eval()
    cosnorm.fold(full)
    cosnorm.fold(small, dtype=torch.int8)
    assert {str(t.dtype) for t in small.state_dict().values()} == {"torch.int8"}
    save_file(small.state_dict(), tmp_path / "small.safetensors")
    other = nn.Sequential(PearsonConv2d(8, 16, 3, bias=True), nn.ReLU(), CosineConv2d(16, 8, 1))
    cosnorm.fold(other.eval(), dtype=torch.int8)
    other.load_state_dict(load_file(tmp_path / "small.safetensors"))
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(other(x), small(x))
    for target, state in ((small, full), (full, small)):
        with pytest.raises(
            ValueError, match=r"0\.unit_weight must be .*; got torch\.(float32|int8)"
        ):
            target.load_state_dict(state.state_dict())


def test_int8_of_a_vector_without_direction_gives_zero():
    layer = PearsonLinear(6, 3).eval()
    with torch.no_grad():
        layer.weight[1] = 0.5
    model = nn.Sequential(layer)
    cosnorm.fold(model, dtype=torch.int8)
    y = model(torch.randn(4, 6))
    assert torch.equal(y[:, 1], torch.zeros(4)) and y.isfinite().all()


def test_int8_stays_int8_in_a_graph():
    model = nn.Sequential(
        PearsonConv2d(4, 6, 3), nn.Flatten(), CosineLinear(6, 3, scale=4.0)
    ).eval()
    cosnorm.fold(model, dtype=torch.int8)
    x = torch.randn(2, 4, 3, 3)
    with torch.no_grad():
        expected = model(x)
    program = torch.export.export(model, (x,))
    assert program.state_dict["0.unit_weight"].dtype == torch.int8
    torch.testing.assert_close(program.module()(x), expected)
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int4, torch.float8_e4m3fn, "int8", 8])
def test_another_dtype_is_refused(dtype):
    model = nn.Sequential(CosineLinear(4, 2)).eval()
    rule = "dtype must be None or torch.int8; got "
    with pytest.raises(ValueError, match=re.escape(f"{rule}{dtype!r}: for another floating point")):
        cosnorm.fold(model, dtype=dtype)
    assert type(model[0]) is CosineLinear


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused_and_the_model_is_as_it_was(value):
    model = nn.Sequential(CosineLinear(4, 3), CosineLinear(3, 2)).eval()
    with torch.no_grad():
        model[1].weight[0, 0] = value
    with pytest.raises(ValueError, match="finite numbers to be folded into 8 bits; those of layer"):
        cosnorm.fold(model, dtype=torch.int8)
    assert type(model[0]) is CosineLinear


def test_a_folded_layer_stays_and_it_is_said():
    model = nn.Sequential(CosineLinear(4, 3)).eval()
    cosnorm.fold(model)
    (entry,) = cosnorm.fold(model, dtype=torch.int8)
    assert (entry.now, entry.reason) == (None, "folded already")
