"""FLOPs, as torch counts them: those of the plain layer, and those of our passes beside it."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import cosnorm
from cosnorm import functional as F

CASES = {
    "linear": ((4, 3, 6), (5, 6), {}),
    "conv1d": ((3, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "conv2d": ((3, 4, 6, 7), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "conv3d": ((2, 2, 4, 4, 5), (3, 2, 2, 2, 2), {"dilation": 2}),
    "conv_transpose1d": ((2, 3, 5), (3, 4, 3), {"stride": 2}),
    "conv_transpose2d": ((2, 4, 3, 5), (4, 2, 3, 2), {"groups": 2, "padding": 1}),
    "conv_transpose3d": ((2, 2, 3, 2, 3), (2, 3, 2, 2, 2), {"stride": 2, "output_padding": 1}),
}


def flops(call):
    with FlopCounterMode(display=False) as counter:
        value = call()
    return counter.get_total_flops(), value


@pytest.mark.parametrize("wants", [(True, True), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_op_counts_the_product_and_its_passes(name, centered, wants):
    size, kernel, options = CASES[name]
    ours, plain = getattr(F, f"cosine_{name}"), getattr(torch.nn.functional, name)
    x, w = (torch.randn(s, requires_grad=n) for s, n in zip((size, kernel), wants, strict=True))
    counted, y = flops(lambda: ours(x, w, **options, centered=centered))
    product, z = flops(lambda: plain(x, w, **options))
    assert y.shape == z.shape and product > 0
    assert counted == product + 2 * (x.numel() + w.numel() + y.numel())
    back, _ = flops(lambda: y.backward(torch.ones_like(y)))
    products, _ = flops(lambda: z.backward(torch.ones_like(z)))
    assert products >= product * sum(wants)
    assert back == products + 4 * (x.numel() + w.numel() + y.numel())


def test_a_converted_model_counts_what_the_plain_one_does_and_its_passes():
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 4, 3, stride=2),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 9, 5),
    )
    model = copy.deepcopy(plain)
    cosnorm.convert(model, head=None)
    x, sizes = torch.randn(2, 3, 8, 8), []
    for layer in model:
        if hasattr(layer, "weight"):
            layer.register_forward_hook(
                lambda layer, x, y: sizes.append(x[0].numel() + layer.weight.numel() + y.numel())
            )
    ours, _ = flops(lambda: model(x).sum().backward())
    theirs, _ = flops(lambda: plain(x).sum().backward())
    assert len(sizes) == 3
    assert ours == theirs + 6 * sum(sizes)


def test_modules_are_told_apart():
    model = torch.nn.Sequential(cosnorm.nn.PearsonLinear(6, 5), cosnorm.nn.CosineLinear(5, 4))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(3, 6))
    counts = counter.get_flop_counts()
    assert sum(counts["Sequential.0"].values()) == 2 * 3 * 6 * 5 + 2 * (3 * 6 + 6 * 5 + 3 * 5)
    assert sum(counts["Sequential.1"].values()) == 2 * 3 * 5 * 4 + 2 * (3 * 5 + 5 * 4 + 3 * 4)
