"""torch.export: torch's own ops alone, any size that was left open, gradients, a file."""

import subprocess
import sys

import pytest
import torch
from torch.export import Dim, export

from cosnorm import nn

LAYERS = {
    "linear": (lambda: nn.CosineLinear(6, 5, activation="relu"), (4, 6)),
    "linear on sequences": (lambda: nn.PearsonLinear(6, 5, bias=True, scale=2.0), (4, 3, 6)),
    "conv1d": (lambda: nn.PearsonConv1d(4, 6, 3, stride=2, padding=1), (3, 4, 9)),
    "conv2d": (lambda: nn.CosineConv2d(4, 6, 3, groups=2, padding="same"), (3, 4, 6, 7)),
    "conv2d, even": (lambda: nn.PearsonConv2d(4, 6, 2, padding="same"), (3, 4, 6, 7)),
    "conv2d, reflect": (
        lambda: nn.PearsonConv2d(4, 6, 3, padding=1, padding_mode="reflect", learn_scale=True),
        (3, 4, 6, 7),
    ),
    "conv3d": (lambda: nn.PearsonConv3d(2, 3, 2, dilation=2), (3, 2, 4, 4, 4)),
    "transpose1d": (lambda: nn.CosineConvTranspose1d(4, 6, 2, stride=3, padding=1), (2, 4, 5)),
    "transpose2d": (
        lambda: nn.PearsonConvTranspose2d(4, 6, 3, stride=2, bias=True, activation="relu"),
        (2, 4, 3, 5),
    ),
}
# (kernel size, stride, padding, dilation), and a size of images that is small for them
GEOMETRIES = {
    "a stride": ((3, 2, 1, 1), 4),
    "a stride that doesn't divide": ((5, 3, 2, 2), 8),
    "a stride above the kernel": ((2, 3, 0, 1), 5),
    "dilation": ((5, 1, "same", 2), 2),
    "an even kernel": ((4, 1, "same", 1), 2),
}


def own_ops(program):
    return [str(n.target) for n in program.graph.nodes if "cosnorm" in str(n.target)]


@pytest.mark.parametrize("name", LAYERS)
def test_torchs_ops_alone_and_a_dynamic_batch(name):
    build, shape = LAYERS[name]
    layer = build().eval()
    program = export(layer, (torch.randn(shape),), dynamic_shapes=({0: Dim("batch")},))
    assert own_ops(program) == []
    for size in (1, shape[0], 7):
        x = torch.randn(size, *shape[1:])
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec")  # torch's own
@pytest.mark.parametrize("name", ["linear", "conv2d", "transpose2d"])
def test_decomposed_as_any_of_torchs_layers(name):
    build, shape = LAYERS[name]
    layer, x = build().eval(), torch.randn(shape)
    program = export(layer, (x,)).run_decompositions()
    called = {n.target for n in program.graph.nodes if n.op == "call_function"}
    assert {op.namespace for op in called} == {"aten"}
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("name", ["linear", "conv1d", "transpose2d"])
def test_strict_export(name):
    build, shape = LAYERS[name]
    layer, x = build().eval(), torch.randn(shape)
    sizes = {0: Dim("batch")} if len(shape) == 2 else {0: Dim("batch"), 2: Dim("size", min=3)}
    program = export(layer, (x,), dynamic_shapes=(sizes,), strict=True)
    assert own_ops(program) == []
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("layer", [nn.CosineConv2d, nn.PearsonConv2d])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_size_of_images_stays_open(geometry, layer):
    (kernel_size, stride, padding, dilation), least = GEOMETRIES[geometry]
    model = layer(3, 4, kernel_size, stride, padding, dilation, bias=True).eval()
    sizes = {0: Dim("batch"), 2: Dim("height", min=least), 3: Dim("width", min=least)}
    program = export(model, (torch.randn(2, 3, 12, 15),), dynamic_shapes=(sizes,))
    for shape in ((1, 3, least, 16), (3, 3, 17, least), (2, 3, 14, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("layer", [nn.CosineConvTranspose2d, nn.PearsonConvTranspose2d])
def test_the_size_of_images_stays_open_for_a_transposed_layer(layer):
    model = layer(3, 4, 5, stride=3, padding=2, output_padding=1, dilation=2, bias=True).eval()
    sizes = {2: Dim("height", min=2), 3: Dim("width", min=2)}
    program = export(model, (torch.randn(2, 3, 4, 5),), dynamic_shapes=(sizes,))
    x = torch.randn(2, 3, 7, 2)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("name", ["linear on sequences", "conv1d", "transpose2d"])
def test_an_exported_layer_has_the_same_gradients(name):
    build, shape = LAYERS[name]
    layer = build().double()
    x = torch.randn(shape, dtype=torch.float64)
    x[0] = 1  # centred, a vector without direction
    exported = export(layer, (x,)).module()
    found = []
    for module in (layer, exported):
        module.zero_grad()
        module(x).sin().sum().backward()
        found.append({name: p.grad for name, p in module.named_parameters()})
    torch.testing.assert_close(found[1], found[0])
    assert found[0]


@pytest.mark.parametrize("name", ["linear", "conv2d", "transpose2d"])
def test_autocast_is_exported(name):
    build, shape = LAYERS[name]
    layer, x = build().eval(), torch.randn(shape)

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.layer(x)

    y = export(Mixed(), (x,)).module()(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, Mixed()(x))


def test_a_file_is_read_without_this_library(tmp_path):
    layer, x = nn.PearsonConv2d(4, 6, 3, bias=True, learn_scale=True), torch.randn(2, 4, 6, 6)
    torch.export.save(export(layer, (x,)), tmp_path / "layer.pt2")
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; sys.modules['cosnorm'] = None; "
        "y = torch.export.load('layer.pt2').module()(torch.load('x.pt')); torch.save(y, 'y.pt')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), layer(x))
