"""What a layer keeps for backward: the input, the output, a few floats, and the parameters."""

import pytest
import torch
from torch import nn as torch_nn

from cosnorm import nn

LAYERS = {
    "linear": (lambda **o: nn.PearsonLinear(64, 32, **o), (128, 64)),
    "cosine conv": (lambda **o: nn.CosineConv2d(16, 32, 3, padding=1, **o), (4, 16, 12, 12)),
    "pearson conv": (lambda **o: nn.PearsonConv2d(16, 32, 3, padding=1, **o), (4, 16, 12, 12)),
    "grouped conv": (lambda **o: nn.PearsonConv1d(16, 32, 3, groups=2, **o), (4, 16, 50)),
    "transpose": (lambda **o: nn.PearsonConvTranspose1d(16, 32, 3, **o), (4, 16, 50)),
}


def run(model, x):
    """(output, the distinct storages kept for backward, in elements)."""
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        output = model(x)
    return output, list(kept.values())


def split(layer, x, options):
    """Sizes of what is kept beyond the input, the output and the parameters."""
    output, kept = run(layer, x)
    known = {x.data_ptr(), output.data_ptr(), *(p.data_ptr() for p in layer.parameters())}
    assert output.grad_fn is not None
    return output, [t for t in kept if t.numel() and t.data_ptr() not in known]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"learn_scale": "per_output"}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_with_relu_only_the_input_the_output_and_statistics(name, options, dtype):
    build, shape = LAYERS[name]
    layer = build(activation="relu", dtype=dtype, **options)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    output, rest = split(layer, x, options)
    units = layer.weight.shape[0]
    groups = getattr(layer, "groups", 1)
    fields = output.numel() // output.shape[1] * groups
    assert sum(t.numel() for t in rest) <= 2 * fields + 3 * units
    output.sum().backward()


@pytest.mark.parametrize("options", [{}, {"scale": 2.0}, {"learn_scale": True}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_without_relu_one_map_more_at_most(name, options):
    build, shape = LAYERS[name]
    layer, x = build(**options), torch.randn(shape, requires_grad=True)
    output, rest = split(layer, x, options)
    large = [t for t in rest if t.shape == output.shape]
    small = [t for t in rest if t.shape != output.shape]
    assert len(large) <= 1
    groups = getattr(layer, "groups", 1)
    fields = output.numel() // output.shape[1] * groups
    assert sum(t.numel() for t in small) <= 2 * fields + 3 * layer.weight.shape[0]


@pytest.mark.parametrize("centered", [False, True])
def test_a_chain_keeps_less_than_conv_batch_norm_relu(centered):
    """In bytes; x of a layer is y of the one below, so each layer adds one map and statistics."""
    x = torch.randn(4, 16, 12, 12, requires_grad=True)

    def bytes_of(model):
        output, kept = run(model, x)
        output.sum().backward()
        return sum(t.numel() * t.element_size() for t in kept)

    ours = torch_nn.Sequential(
        *[
            nn.CosineConv2d(16, 16, 3, padding=1, centered=centered, activation="relu")
            for _ in range(4)
        ]
    )
    plain = torch_nn.Sequential(
        *[
            m
            for _ in range(4)
            for m in (torch_nn.Conv2d(16, 16, 3, padding=1, bias=False), torch_nn.ReLU())
        ]
    )
    normed = torch_nn.Sequential(
        *[
            m
            for _ in range(4)
            for m in (
                torch_nn.Conv2d(16, 16, 3, padding=1, bias=False),
                torch_nn.BatchNorm2d(16),
                torch_nn.ReLU(),
            )
        ]
    )
    assert bytes_of(ours) < 0.75 * bytes_of(normed)
    assert bytes_of(ours) < 1.25 * bytes_of(plain)


def test_nothing_is_kept_where_nothing_is_differentiated():
    layer = nn.PearsonConv2d(4, 6, 3).requires_grad_(False)
    _, kept = run(layer, torch.randn(2, 4, 6, 6))
    assert kept == []
    with torch.no_grad():
        _, kept = run(nn.PearsonConv2d(4, 6, 3), torch.randn(2, 4, 6, 6, requires_grad=True))
    assert kept == []
