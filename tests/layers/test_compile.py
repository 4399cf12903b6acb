"""torch.compile without graph breaks, and shapes that change; torch.fx."""

import copy

import pytest
import torch
import torch.fx

import cosnorm.functional as F
from cosnorm import nn
from cosnorm.testing import SLACK, error

LAYERS = {
    "linear": (lambda **o: nn.CosineLinear(6, 5, **o), (4, 6)),
    "pearson linear": (lambda **o: nn.PearsonLinear(6, 5, bias=True, **o), (4, 3, 6)),
    "conv1d": (lambda **o: nn.PearsonConv1d(4, 6, 3, stride=2, padding=1, **o), (3, 4, 9)),
    "conv2d": (lambda **o: nn.CosineConv2d(4, 6, 3, groups=2, padding="same", **o), (3, 4, 6, 7)),
    "conv2d, even": (lambda **o: nn.PearsonConv2d(4, 6, 2, padding="same", **o), (3, 4, 6, 7)),
    "conv2d, reflect": (
        lambda **o: nn.PearsonConv2d(4, 6, 3, padding=1, padding_mode="reflect", **o),
        (3, 4, 6, 7),
    ),
    "conv3d": (lambda **o: nn.PearsonConv3d(2, 3, 2, dilation=2, **o), (3, 2, 4, 4, 4)),
    "transpose2d": (
        lambda **o: nn.PearsonConvTranspose2d(4, 6, 3, stride=2, bias=True, **o),
        (2, 4, 3, 5),
    ),
}
OPTIONS = [{"activation": "relu"}, {"learn_scale": "per_output"}]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def gradients(layer, run, x):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = run(x)
    y.sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


def same(one, other, **tolerance):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_forward_and_backward(name, options):
    build, shape = LAYERS[name]
    layer, x = build(**options), torch.randn(shape)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(gradients(layer, compiled, x), gradients(layer, layer, x))


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, even", "transpose2d"])
def test_one_graph_for_every_size(name):
    build, shape = LAYERS[name]
    layer = build()
    exact = copy.deepcopy(layer).double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for extra in (0, 2, 5):
            x = torch.randn(shape[0] + extra, *shape[1:-1], shape[-1] + extra * (len(shape) > 2))
            found, usual = gradients(layer, compiled, x), gradients(layer, layer, x)
            right = gradients(exact, exact, x.double())
            for got, eager, want in zip(found, usual, right, strict=True):
                assert got.stride() == eager.stride()
                assert error(got, want) <= 2 * error(eager, want) + SLACK[torch.float32]


@pytest.mark.parametrize("name", ["conv2d", "transpose2d"])
def test_channels_last_stays_so_when_compiled(name):
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape).to(memory_format=torch.channels_last)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(gradients(layer, compiled, x), gradients(layer, layer, x))


def test_autocast_when_compiled():
    layer, x = nn.PearsonConv2d(4, 6, 3, bias=True), torch.randn(2, 4, 6, 6)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    same(gradients(layer, compiled, x), gradients(layer, run, x))
    assert compiled(x).dtype == torch.bfloat16


def test_a_network_between_other_layers():
    model = torch.nn.Sequential(
        nn.PearsonConv2d(3, 8, 3, padding=1, activation="relu"),
        torch.nn.MaxPool2d(2),
        nn.CosineConv2d(8, 8, 3, activation="relu"),
        torch.nn.Flatten(),
        nn.CosineLinear(32, 10, learn_scale=True, scale=10.0),
    )
    model, x = model.double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(gradients(model, compiled, x), gradients(model, model, x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, when inductor is imported
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, reflect", "transpose2d"])
def test_inductor(name, monkeypatch):
    monkeypatch.setenv("CI", "1")  # there Inductor accepts fewer ops: none with a decomposition
    build, shape = LAYERS[name]
    for options in OPTIONS:
        layer, x = build(**options), torch.randn(shape)
        compiled = torch.compile(layer, fullgraph=True)
        same(gradients(layer, compiled, x), gradients(layer, layer, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("message", ["channels", "activation"])
def test_bad_input_is_reported_through_compile(message):
    if message == "channels":
        function, arguments = F.cosine_conv2d, (torch.randn(1, 3, 4, 4), torch.randn(2, 4, 1, 1))
    else:

        def function(x, w):
            return F.cosine_linear(x, w, activation="tanh")

        arguments = (torch.randn(2, 3), torch.randn(4, 3))
    compiled = torch.compile(function, backend="aot_eager")
    with pytest.raises(Exception, match=message) as caught:
        compiled(*arguments)
    assert isinstance(caught.value, ValueError | torch._dynamo.exc.TorchDynamoException)


@pytest.mark.parametrize("name", LAYERS)
def test_fx_sees_one_call(name):
    build, shape = LAYERS[name]
    model, x = torch.nn.Sequential(build(), torch.nn.Tanh()), torch.randn(shape)
    traced = torch.fx.symbolic_trace(model)
    called = [n.target.__name__ for n in traced.graph.nodes if n.op == "call_function"]
    assert [name for name in called if name.startswith("cosine_")] == called[-1:]
    torch.testing.assert_close(traced(x), model(x))


def test_a_fixed_scale_may_change_between_calls():
    """The second value makes torch.compile treat the number as unknown."""

    def call(x, w, scale):
        return F.cosine_linear(x, w, centered=True, scale=scale, activation="relu")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    for scale in (1.0, 2.0, -3.5):
        torch.testing.assert_close(compiled(x, w, scale), call(x, w, scale))
