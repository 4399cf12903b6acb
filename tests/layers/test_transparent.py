"""What torch.compile sees of a layer: torch's own ops, which it can fuse with their neighbours."""

import copy
import operator

import pytest
import torch
import torch._inductor.config as inductor
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._ops import OpOverload

import cosnorm.functional as F
from cosnorm import nn
from cosnorm.testing import assert_exact, values_and_grads

CASES = {
    "linear": (F.cosine_linear, (4, 6), (5, 6), {}),
    "linear on sequences": (F.cosine_linear, (2, 3, 6), (5, 6), {}),
    "conv1d": (F.cosine_conv1d, (3, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "conv2d": (F.cosine_conv2d, (3, 4, 6, 7), (6, 2, 3, 3), {"groups": 2, "padding": "same"}),
    "depthwise": (F.cosine_conv2d, (3, 4, 6, 7), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "patches": (F.cosine_conv2d, (2, 3, 8, 8), (6, 3, 4, 4), {"stride": 4}),
    "conv3d": (F.cosine_conv3d, (3, 2, 4, 4, 5), (3, 2, 2, 2, 2), {"dilation": 2, "padding": 1}),
    "transpose1d": (F.cosine_conv_transpose1d, (2, 3, 5), (3, 4, 3), {"stride": 2}),
    "transpose2d": (F.cosine_conv_transpose2d, (2, 4, 3, 5), (4, 2, 3, 2), {"groups": 2}),
    "transpose3d": (F.cosine_conv_transpose3d, (2, 2, 3, 2, 3), (2, 3, 2, 2, 2), {"stride": 2}),
}
CHOICES = [
    {},
    {"centered": True, "activation": "relu", "bias": True, "scale": "each"},
    {"activation": "gelu", "bias": True, "scale": "one"},
    {"centered": True, "activation": "gelu", "scale": 2.0},
    {"activation": "silu", "scale": "each"},
    {"centered": True, "activation": "hardswish", "scale": 5.0},
]
SLOW = pytest.mark.slow  # tracing with open sizes takes torch long
TORCHS = {"aten", "prims"}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::convolution", "aten::convolution_backward")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


class Watcher:
    """A compiler that runs graphs as they are, and keeps them: forward, then backward."""

    def __init__(self):
        self.graphs = []
        self.backend = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)

    def _keep(self, module, example_inputs):
        self.graphs.append(module.graph)
        return make_boxed_func(module.forward)


def layer(name, bias=False, scale=None, **options):
    """The function of (input, weight, bias, scale), where there are the latter, and its tensors."""
    function, size, kernel, sizes = CASES[name]
    units = kernel[0] if "transpose" not in name else kernel[1] * sizes.get("groups", 1)
    tensors = [torch.randn(size), torch.randn(kernel)]
    tensors += [torch.randn(units)] if bias else []
    tensors += [torch.rand(units if scale == "each" else 1) + 0.5] if isinstance(scale, str) else []

    def call(x, w, *rest):
        b, factor = rest[0] if bias else None, rest[-1] if isinstance(scale, str) else scale
        return function(x, w, b, **sizes, **options, scale=factor)

    return call, tensors


def check(run, call, tensors, dtype=torch.float32, laid=None):
    """`run` is `call`, compiled: what it computes is as near to the formula as eager results.

    laid: how many of the results, y first, lie in memory as the eager ones do; None for all.
    """
    y = call(*tensors)
    seed = torch.randn(y.shape).to(y.dtype).double()
    got = values_and_grads(run, tensors, seed)
    eager = values_and_grads(call, tensors, seed)
    want = values_and_grads(call, [t.double() for t in tensors], seed)
    assert_exact(got, want, eager, dtype, terms=seed * want[0])
    assert [t.stride() for t in got[:laid]] == [t.stride() for t in eager[:laid]]


def ops_of(graph):
    """The names of the ops; a call of anything else, such as a function in Python, is refused."""
    names = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        assert node.op == "call_function", f"{node.op} {node.target}"
        if isinstance(node.target, OpOverload):
            names.append(node.target.name().split(".")[0])
        else:  # numbers and parts of tuples
            assert getattr(operator, node.target.__name__, None) is node.target, node.target
    return names


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_graphs_of_torchs_ops_alone(name, choice):
    """No graph break, no op of ours, no call back into Python, and one product each way."""
    call, tensors = layer(name, **choice)
    watcher = Watcher()
    check(torch.compile(call, fullgraph=True, backend=watcher.backend), call, tensors)
    forward, backward = (ops_of(graph) for graph in watcher.graphs)
    assert {op.split("::")[0] for op in forward + backward} <= TORCHS
    assert sum(op in PRODUCTS for op in forward) == 1
    if "linear" in name:
        assert backward.count("aten::mm") == 2
    else:  # a transposed one asks for its two gradients apart
        assert backward.count("aten::convolution_backward") == 1 + ("transpose" in name)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        *((n, CHOICES[1]) for n in ("linear", "conv1d", "conv2d")),
        ("conv2d", CHOICES[3]),
        *(pytest.param(n, CHOICES[1], marks=SLOW) for n in ("conv3d", "transpose2d")),
    ],
)
def test_sizes_that_change(name, choice):
    call, (x, *rest) = layer(name, **choice)
    run = torch.compile(call, fullgraph=True, backend=Watcher().backend, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for more in (0, 3, 4):  # from sizes of their own: torch takes equal ones for the same
            shape = [11 + more, *x.shape[1:]]
            shape[-1] = 17 + more if len(shape) > 2 else shape[-1]
            check(run, call, [torch.randn(shape), *rest])


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv3d", "transpose2d"])
def test_under_autocast(name, centered):
    inner, tensors = layer(name, centered=centered, bias=True, scale="each")

    def call(x, *rest):
        with torch.autocast("cpu", torch.bfloat16):
            return inner(x, *rest)

    tensors[0] = tensors[0].bfloat16()  # what autocast would make of it, so that float64 has it too
    watcher = Watcher()
    run = torch.compile(call, fullgraph=True, backend=watcher.backend)
    assert run(*tensors).dtype == torch.bfloat16
    check(run, call, tensors, torch.bfloat16)
    assert len(watcher.graphs) >= 2
    assert {op.split("::")[0] for graph in watcher.graphs for op in ops_of(graph)} <= TORCHS


def test_passes_join_their_neighbours():
    """What comes before and after a layer is in its graph, which a compiler may fuse as a whole."""
    call, tensors = layer("conv2d", centered=True)
    watcher = Watcher()

    def network(x, w):
        return torch.nn.functional.layer_norm(call(x.sin(), w), (7,)).cos()

    torch.compile(network, fullgraph=True, backend=watcher.backend)(*tensors)
    (graph,) = watcher.graphs
    assert {"aten::sin", "aten::convolution", "aten::cos"} <= set(ops_of(graph))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, when inductor is imported
@pytest.mark.parametrize("name", CASES)
@inductor.patch({"cpp.enable_loop_tail_vec": False})
def test_inductor_by_the_rule(name):
    """Without tails of vectors: g++ 12 at -O3 gets one wrong, though the graph is right."""
    turn = list(CASES).index(name)
    for choice in (CHOICES[turn % 4], CHOICES[(turn + 1) % 4]):  # a compilation takes seconds
        call, tensors = layer(name, **choice)
        # Where gradients of plain convolutions lie, Inductor chooses too.
        check(torch.compile(call, fullgraph=True), call, tensors, laid=1)


chain = torch.nn.Sequential
# Layers as models have them: what the compiler keeps of one meets the next.
CHAINS = {
    "linear": lambda: chain(nn.CosineLinear(9, 6), nn.PearsonLinear(6, 6), nn.CosineLinear(6, 4)),
    "convolutions": lambda: chain(
        nn.PearsonConv2d(4, 8, 3, stride=2, padding=1),
        nn.CosineConv2d(8, 8, 3, padding=1, groups=4, bias=True, activation="gelu"),
        nn.CosineConv2d(8, 4, 1, scale=3.0),
    ),
    "down and up": lambda: chain(
        nn.PearsonConv2d(4, 8, 3, stride=2, padding=1),
        nn.CosineConvTranspose2d(8, 8, 4, stride=2, padding=1, groups=2),
        nn.CosineConv2d(8, 4, 3, padding=1, padding_mode="reflect"),
    ),
    "up": lambda: chain(
        nn.PearsonConvTranspose2d(
            4, 8, 4, stride=2, padding=1, bias=True, learn_scale=True, activation="gelu"
        ),
        nn.PearsonConvTranspose2d(8, 4, 3, stride=2, groups=2, activation="gelu"),
        torch.nn.Conv2d(4, 4, 3),
    ),
}


def check_chain(name, backend, more, **settings):
    """Values and gradients as without a compiler, for inputs of one size and of others."""
    model, sizes = CHAINS[name](), [(2, 4, 12, 10), (3, 4, 14, 16), (2, 4, 9, 11)]
    if name == "linear":
        sizes = [(5, 9), (7, 9), (4, 9)]
    run = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    exact = copy.deepcopy(model).double()
    with torch._dynamo.config.patch(**settings):
        for size in sizes[: 1 + more]:
            x = torch.randn(size)
            seed = torch.randn(model(x).shape).double()
            got, plain = (of_model(each, model, x, seed) for each in (run, model))
            want = of_model(exact, exact, x.double(), seed)
            assert_exact(got, want, plain, torch.float32, terms=seed * want[0])


def of_model(run, model, x, seed, grads_of=torch.autograd.grad):
    """The output of a model, and its gradients by the input and every parameter."""
    x = x.clone().requires_grad_()
    y = run(x)
    grads = grads_of(y, (x, *model.parameters()), seed.to(y.dtype))
    return [y.detach(), *grads]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW) if n != "linear" else n for n in CHAINS]
)
def test_several_layers_of_sizes_that_change(name):
    check_chain(name, Watcher().backend, 2, error_on_recompile=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, when inductor is imported
@pytest.mark.parametrize("name", CHAINS)
@inductor.patch({"cpp.enable_loop_tail_vec": False})
def test_inductor_with_several_layers_of_sizes_that_change(name):
    """It may compile plain convolutions anew as well."""
    check_chain(name, "inductor", 1)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, of what forward kept
@pytest.mark.parametrize("name", ["linear", "convolutions"])
def test_a_backward_compiled_without_its_forward(name):
    """Compiled autograd: what the passes kept in memory is not what a compiler would have kept."""
    model, x = CHAINS[name](), torch.randn((5, 9) if name == "linear" else (2, 4, 12, 10))
    seed, exact = torch.randn(model(x).shape).double(), copy.deepcopy(model).double()
    watcher = Watcher()

    def compiled(y, inputs, seed):
        with compiled_autograd._enable(torch.compile(backend=watcher.backend, fullgraph=True)):
            for tensor in inputs:
                tensor.grad = None
            y.backward(seed)
        return [tensor.grad for tensor in inputs]

    got = of_model(model, model, x, seed, compiled)
    plain = of_model(model, model, x, seed)
    want = of_model(exact, exact, x.double(), seed)
    assert watcher.graphs
    assert_exact(got, want, plain, torch.float32, terms=seed * want[0])
