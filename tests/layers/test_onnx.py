"""`torch.onnx.export(model, args, dynamo=True)` and nothing else; onnxruntime agrees."""

import numpy as np
import pytest
import torch

from cosnorm import nn

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec")  # torch's own


def mixed() -> torch.nn.Module:
    """Every kind of layer that a default run can afford to translate, in one model."""
    return torch.nn.Sequential(
        nn.PearsonConv2d(3, 8, 3, padding=1, bias=True, activation="relu"),
        nn.CosineConv2d(8, 8, (2, 3), stride=2, dilation=(1, 2), groups=2, learn_scale=True),
        nn.CosineConvTranspose2d(8, 4, 3, stride=2, scale=2.0),
        torch.nn.Flatten(),
        nn.PearsonLinear(4 * 11 * 5, 10, bias=True, scale=5.0, learn_scale="per_output"),
    )


LAYERS = {
    "linear": (lambda: nn.CosineLinear(6, 5, bias=True), (4, 6)),
    "conv1d": (lambda: nn.PearsonConv1d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 8)),
    "same": (lambda: nn.PearsonConv2d(4, 6, (2, 3), padding="same", dilation=2), (2, 4, 8, 8)),
    "conv3d": (
        lambda: nn.CosineConv3d(2, 3, 2, padding=1, padding_mode="circular"),
        (2, 2, 3, 3, 3),
    ),
    "transpose": (
        lambda: nn.PearsonConvTranspose2d(4, 6, 3, stride=2, output_padding=1, bias=True),
        (2, 4, 5, 5),
    ),
    "transpose1d": (lambda: nn.CosineConvTranspose1d(4, 6, 3, stride=2, groups=2), (2, 4, 5)),
}


def run(program, x):
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (name,) = [given.name for given in session.get_inputs()]
    (output,) = session.run(None, {name: x.numpy()})
    return torch.from_numpy(np.array(output))


def compare(model, program, *inputs):
    assert not any(node.domain.startswith("cosnorm") for node in program.model_proto.graph.node)
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(run(program, x), model(x), rtol=1e-4, atol=2e-6)


def test_a_network_as_it_is():
    model, x = mixed().eval(), torch.randn(2, 3, 10, 8)
    program = torch.onnx.export(model, (x,), dynamo=True)
    assert program is not None
    constant = torch.ones_like(x)
    constant[0] = 0
    compare(model, program, x, x * 1e-8, constant)


def test_a_network_with_a_dynamic_batch():
    model, x = mixed().eval(), torch.randn(2, 3, 10, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=({0: batch},))
    compare(model, program, x, torch.randn(5, 3, 10, 8))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer(name):
    build, shape = LAYERS[name]
    model, x = build().eval(), torch.randn(shape)
    compare(model, torch.onnx.export(model, (x,), dynamo=True), x)
    exported = torch.export.export(model, (x,))
    compare(model, torch.onnx.export(exported, dynamo=True), x)


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.PearsonConv2d, nn.PearsonConvTranspose2d])
def test_the_size_of_images_stays_open(layer):
    model = layer(3, 4, 5, stride=3, padding=2, dilation=2, bias=True).eval()
    x = torch.randn(2, 3, 12, 15)
    sizes = {2: torch.export.Dim("height", min=8), 3: torch.export.Dim("width", min=8)}
    program = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=(sizes,))
    compare(model, program, x, torch.randn(2, 3, 17, 8))
