"""What follows a layer may change its output in place, as it may after torch's own layers."""

import pytest
import torch

from cosnorm import nn

LAYERS = {
    "linear": (lambda **o: nn.CosineLinear(3, 5, **o), (4, 3)),
    "linear on sequences": (lambda **o: nn.PearsonLinear(3, 5, bias=True, **o), (4, 2, 3)),
    "conv": (lambda **o: nn.PearsonConv2d(4, 6, 3, groups=2, bias=True, **o), (2, 4, 5, 5)),
    "conv, unbatched": (lambda **o: nn.CosineConv1d(4, 6, 3, **o), (4, 7)),
    "transposed conv": (lambda **o: nn.PearsonConvTranspose1d(4, 6, 3, **o), (2, 4, 5)),
}
SCALES = ({}, {"scale": 2.0}, {"scale": 2.0, "learn_scale": "per_output"})


def gradients(layer, x, change):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    change(layer(x)).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_the_same_without_in_place(name, scale, dtype):
    build, shape = LAYERS[name]
    layer, x = build(dtype=dtype, **scale), torch.randn(shape, dtype=dtype)
    in_place = gradients(layer, x, lambda y: y.add_(0.25).relu_())
    apart = gradients(layer, x, lambda y: (y + 0.25).relu())
    for one, other in zip(in_place, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_fused_activation_and_a_change_in_place_without_a_batch():
    """What backward keeps is the output: to change it is seen, as behind torch's own ReLU."""
    layer = nn.CosineConv2d(4, 4, 3, padding=1, activation="relu")
    y = layer(torch.randn(4, 6, 6))
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
