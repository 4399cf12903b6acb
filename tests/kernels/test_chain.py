"""Layers in a row as one function, against the same layers one by one: by interpreter, or a GPU."""

import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from cosnorm import algorithm, chain, chain_op, fold, reference
from cosnorm.conversion import folded
from cosnorm.nn import CosineConv2d, PearsonConv1d, PearsonConv2d, PearsonConv3d, Sequential

pytest.importorskip("triton", reason="the kernels need triton")
from cosnorm.kernels import launch, layout, passes

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [GPU] if torch.cuda.is_available() else ["cpu", GPU]
ARGUMENTS = [  # in, out, kernel, and the rest, of the layers of a network
    [(3, 7, 3, {"padding": 1}), (7, 8, 3, {"padding": 1}), (8, 5, 1, {})],
    [(4, 16, (3, 2), {"stride": (2, 1)}), (16, 33, 3, {"padding": 2, "dilation": 2})],
    [(2, 6, 3, {"bias": True}), (6, 4, 2, {"bias": True, "stride": 2}), (4, 3, 2, {"bias": True})],
]


@pytest.fixture(autouse=True)
def triton_steps():
    before = algorithm.set_backend("triton")
    passes.forget()  # some tests change what plans are made of
    with reference.without_tf32():
        yield
    passes.forget()
    algorithm.set_backend(before)


@pytest.fixture(params=["together", "apart", "apart but for windows"])
def manner(request, monkeypatch):
    def apart(input, weight, windows_only=False):
        return request.param == "apart" or (request.param != "together" and not windows_only)

    monkeypatch.setattr(launch, "apart", apart)
    if request.param != "together":
        monkeypatch.setattr(layout, "_LARGE", 0)


@pytest.fixture
def chains(monkeypatch):
    """Counts how many layers went through a chain."""
    lengths = []

    def counted(input, links):
        lengths.append(len(links))
        return chain.chain(input, links)

    monkeypatch.setattr("cosnorm.nn.sequential.chain", counted)
    return lengths


def network(arguments, centered, container=Sequential):
    kind = PearsonConv2d if centered else CosineConv2d
    return container(*(kind(*a, **rest, activation="relu") for *a, rest in arguments))


def gradients(net, x, seed, call=None):
    y = (call or net)(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *net.parameters()], seed.to(y.dtype))]


def assert_a_chain_is_its_layers(arguments, centered, device, dtype, last, size):
    net = network(arguments, centered).to(device, dtype)
    x = torch.randn(size, device=device, dtype=dtype)
    if last:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    seed = torch.randn_like(net(x))
    got = gradients(net, x, seed)
    plain = nn.Sequential(*net)
    one_by_one = gradients(plain, x, seed)
    exact = gradients(plain.double(), x.detach().double().requires_grad_(), seed.double())
    slack = 1e-5 if dtype == torch.float32 else 2e-2
    for a, b, c in zip(got, one_by_one, exact, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        allowed = 2 * (b.double() - c).norm() + slack * c.norm() + 1e-9
        assert (a.double() - c).norm() <= allowed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_a_chain_is_its_layers(arguments, centered, device, manner, chains):
    size = (2, arguments[0][0], 7, 6)
    assert_a_chain_is_its_layers(arguments, centered, device, torch.float32, True, size)
    assert_a_chain_is_its_layers(arguments, centered, device, torch.float16, False, size)
    assert set(chains) == {len(arguments)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
def test_channels_that_do_not_fit_into_a_tile(centered, device, chains, monkeypatch):
    monkeypatch.setattr(layout, "_TILES", dict.fromkeys(layout._TILES, (4, 1)))
    arguments = [(2, 9, 2, {}), (9, 5, 2, {})]
    size = (1, 2, 4, 3)
    assert_a_chain_is_its_layers(arguments, centered, device, torch.float32, True, size)
    assert chains


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
def test_only_what_is_wanted(centered, device, chains):
    net = network(ARGUMENTS[0], centered).to(device)
    x = torch.randn(2, 3, 5, 4, device=device)

    def grads(model, wants):
        leaf = x.clone().requires_grad_(wants[0])
        for parameter, want in zip(net.parameters(), wants[1:], strict=True):
            parameter.requires_grad_(want)
            parameter.grad = None
        model(leaf).square().sum().backward()
        return [t.grad for t in (leaf, *net.parameters())]

    full = grads(nn.Sequential(*net), (True,) * 4)
    assert not chains
    for wants in itertools.product((False, True), repeat=4):
        if any(wants):
            for got, want, wanted in zip(grads(net, wants), full, wants, strict=True):
                if wanted:
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                else:
                    assert got is None
    assert set(chains) == {3}


@pytest.mark.parametrize("device", DEVICES)
def test_frozen_layers_and_inference_keep_nothing(device, chains):
    net = network([(3, 4, 1, {})] + 3 * [(4, 4, 1, {})], True).to(device)
    x = torch.randn(2, 3, 5, 4, device=device)
    for parameter in list(net.parameters())[:2]:
        parameter.requires_grad_(False)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    sizes = []
    for model in (net, nn.Sequential(*net)):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = model(x)
        sizes.append(sum(saved.values()))
        del y
    assert chains == [4] and sizes[0] <= sizes[1]
    with torch.no_grad():
        arguments = (x, [m.weight for m in net], [], [1] * 8, [0] * 8, [1] * 8, True)
        assert len(torch.ops.cosnorm.cosine_chain(*arguments, False)) == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [PearsonConv1d, PearsonConv3d])
def test_one_and_three_dimensions(kind, device, chains):
    net = Sequential(kind(3, 5, 2, activation="relu"), kind(5, 4, 1, activation="relu")).to(device)
    x = torch.randn(2, 3, *[4] * net[0].dims, device=device, requires_grad=True)
    y = net(x)
    got = torch.autograd.grad(y.sum(-1).square().sum(), [x, *net.parameters()])
    plain = nn.Sequential(*net)
    want = torch.autograd.grad(plain(x).sum(-1).square().sum(), [x, *net.parameters()])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    net(x).add_(1)  # as any layer's output, it may be changed in place
    assert chains == [2, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_in_batches(device, chains):
    net = network([(3, 4, 2, {"bias": True}), (4, 2, 2, {"bias": True})], True).to(device)
    x = torch.randn(1, 3, 4, 4, device=device, requires_grad=True)
    leaves, results = [x, *net.parameters()], []
    for model in (net, nn.Sequential(*net)):
        y = model(x)
        seeds = torch.eye(y.numel(), device=device).view(-1, *y.shape)[:3]
        results.append(torch.autograd.grad(y, leaves, seeds, is_grads_batched=True))
    assert chains == [2]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_gradients(device, chains):
    net = network(ARGUMENTS[1], True).to(device)
    x = torch.randn(1, 4, 7, 7, device=device, requires_grad=True)
    results = []
    for container in (net, nn.Sequential(*net)):
        (dx,) = torch.autograd.grad(container(x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), list(net.parameters())))
    assert chains
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_without_gradients_and_under_autocast(device, chains):
    net = network(ARGUMENTS[0], True).to(device)
    x = torch.randn(2, 3, 6, 6, device=device)
    with torch.no_grad():
        torch.testing.assert_close(net(x), nn.Sequential(*net)(x))
    assert chains == [3]
    with torch.autocast(device, torch.float16):
        got, want = net(x), nn.Sequential(*net)(x)
    assert got.dtype == want.dtype == torch.float16
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_folded_layers(arguments, centered, device, manner, chains, monkeypatch):
    net = network(arguments, centered).to(device).eval()
    x = torch.randn(2, arguments[0][0], 7, 6, device=device)
    with torch.no_grad():
        want = nn.Sequential(*net).double()(x.double())
        net.float()
        fold(net)
        monkeypatch.setattr(folded, "_on_gpu", lambda input: True)
        got = net(x)
    assert chains == [len(arguments)]
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_may_be_lists(device, chains, monkeypatch):
    """As some set them on a layer that they have."""
    net = network(ARGUMENTS[0], True).to(device).eval()
    x = torch.randn(2, 3, 7, 6, device=device)
    with torch.no_grad():
        want = net(x)
        for layer in net:
            layer.stride, layer.padding = list(layer.stride), list(layer.padding)
            layer.dilation = list(layer.dilation)
        torch.testing.assert_close(net(x), want, rtol=0, atol=0)
        fold(net)
        monkeypatch.setattr(folded, "_on_gpu", lambda input: True)
        torch.testing.assert_close(net(x), want)
        torch.testing.assert_close(nn.Sequential(*net)(x), want)
    assert chains == [3, 3, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")
@pytest.mark.parametrize("centered", [False, True])
def test_a_trace_of_folded_layers_is_of_torch(centered, monkeypatch):
    """As on a GPU, where the kernels would serve: whoever traces meets torch's ops alone."""
    monkeypatch.setattr(folded, "_on_gpu", lambda input: True)
    net = network(ARGUMENTS[0], centered).eval()
    fold(net)
    x, other = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        want = net(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(net, x)
        torch.testing.assert_close(traced(other), want, rtol=1e-4, atol=1e-5)
        for mode in ("real", "fake"):
            graph = make_fx(net, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
            torch.testing.assert_close(graph(other), want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")
def test_a_trace_does_not_chain():
    """Whether gradients are wanted would be part of it, and a check of the trace fail."""
    net = network(ARGUMENTS[0], True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(net, torch.randn(2, 3, 9, 8))
    assert "cosine_chain" not in str(traced.inlined_graph)
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(traced(x), nn.Sequential(*net)(x))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")
def test_gradients_of_a_batch_by_vmap():
    net = network(ARGUMENTS[0], True)
    x = torch.randn(1, 3, 9, 8, requires_grad=True)
    y, leaves = net(x), [x, *net.parameters()]
    seeds = torch.randn(3, *y.shape)
    batched = torch.vmap(lambda g: torch.autograd.grad(y, leaves, g, retain_graph=True))(seeds)
    for i, seed in enumerate(seeds):
        one = torch.autograd.grad(y, leaves, seed, retain_graph=True)
        for got, want in zip(batched, one, strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_constants_between_layers_stay_without_direction(device, chains):
    """The second layer sees constants: statistics told from layer to layer must say so too."""
    net = network([(3, 33, 1, {}), (33, 5, 1, {})], True).to(device)
    x = torch.randn(1, 3, 4, 4, device=device).expand(2, 3, 4, 4)
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight[:1].expand_as(net[0].weight))
    assert (net(x) == 0).all() and chains == [2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "breaks",
    ["hook", "global hook", "replaced hook", "activation", "groups", "scale", "mode"],
)
def test_whatever_does_not_fit_is_called_as_it_is(breaks, device, chains):
    changed = {
        "activation": {"activation": None},
        "groups": {"groups": 2, "activation": "relu"},
        "scale": {"scale": 2.0, "activation": "relu"},
        "mode": {"padding_mode": "reflect", "padding": 1, "activation": "relu"},
    }.get(breaks, {"activation": "relu"})
    net = Sequential(CosineConv2d(4, 4, 3, activation="relu"), CosineConv2d(4, 4, 3, **changed))
    net.to(device)
    seen, handle = [], None
    if breaks == "hook":
        net[1].register_forward_hook(lambda *_: seen.append(1))
    if breaks == "replaced hook":  # as wrappers of modules do it
        call = net[1].forward
        net[1].forward = lambda input: (seen.append(1), call(input))[1]
    if breaks == "global hook":
        handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(1, 4, 8, 8, device=device)
    try:
        torch.testing.assert_close(net(x), nn.Sequential(*net)(x))
    finally:
        if handle:
            handle.remove()
    assert not chains and bool(seen) == ("hook" in breaks)


def test_what_is_wrong_is_told_by_the_layer():
    net = network([(3, 8, 3, {}), (9, 8, 3, {})], False)
    with pytest.raises(ValueError, match="9"):
        net(torch.randn(1, 3, 8, 8))
    with pytest.raises((ValueError, RuntimeError)):
        network([(3, 8, 3, {}), (8, 8, 3, {})], False)(torch.randn(1, 3, 4, 4))


def test_it_is_torchs_container_in_all_else(chains):
    algorithm.set_backend("auto")  # on a CPU: torch
    net = network(ARGUMENTS[0], True)
    assert list(net.state_dict()) == [f"{i}.weight" for i in range(3)]
    assert net(torch.randn(2, 3, 6, 6)).shape == (2, 5, 6, 6)
    assert net(torch.randn(3, 6, 6)).shape == (5, 6, 6)
    assert isinstance(net[:2], Sequential) and not chains


@pytest.mark.parametrize("backend", ["torch", pytest.param("triton", id="interpreter")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_the_op_keeps_its_word(bias, dtype, backend):
    """Schema, fake, autograd and tracing; bfloat16 inputs with float32 weights, as in autocast."""
    if backend == "triton" and torch.cuda.is_available():
        pytest.skip("where there is a GPU the kernels are compiled for it")
    algorithm.set_backend(backend)
    x = torch.randn(2, 3, 5, 4).to(dtype).contiguous(memory_format=torch.channels_last)
    weights = [torch.randn(4, 3, 3, 3), torch.randn(2, 4, 2, 2)]
    biases = [torch.randn(4), torch.randn(2)] if bias else []
    for tensor in (x, *weights, *biases):
        tensor.requires_grad_()
    sizes = ([1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1])
    arguments = (x, weights, biases, *sizes, True, True)
    torch.library.opcheck(torch.ops.cosnorm.cosine_chain.default, arguments)
    with torch.no_grad():
        kept = torch.ops.cosnorm.cosine_chain(*arguments)
    grad, need = torch.randn_like(kept[-chain_op.KEPT]), [True] * (3 + len(biases))
    whole = (grad, *arguments[:3], kept, *arguments[3:], need)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.cosnorm.cosine_chain_backward.default, whole, test_utils=utils)


@pytest.mark.gpu
@pytest.mark.parametrize("centered", [False, True])
def test_it_compiles_to_one_graph(centered):
    net = network(ARGUMENTS[0], centered).to("cuda")
    x = torch.randn(2, 3, 9, 8, device="cuda", requires_grad=True)
    seed = torch.randn_like(net(x))
    function = torch.compile(net, fullgraph=True)
    compiled = gradients(net, x, seed, function)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as profile:
        function(x)
    assert "cosnorm::cosine_chain" in {event.name for event in profile.events()}
    for got, want in zip(compiled, gradients(net, x, seed), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


LARGE = [(64, 512, 3, {"padding": 1})] + 2 * [(512, 512, 3, {"padding": 1})]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # one that torch makes for itself
@pytest.mark.parametrize("centered", [False, True])
def test_in_the_graphs_of_the_compiler(centered):
    """torch.compile(mode="reduce-overhead") captures forward and backward by itself."""
    net = network(LARGE, centered).to("cuda").to(memory_format=torch.channels_last)
    x = torch.randn(64, 64, 12, 12, device="cuda").contiguous(memory_format=torch.channels_last)
    parameters = list(net.parameters())

    def step(model):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
        return [t.clone() for t in (y, *torch.autograd.grad(y.float().square().sum(), parameters))]

    compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
    made = [step(compiled) for _ in range(6)][-1]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as profile:
        again = step(compiled)
    names = {event.name for event in profile.events()}
    assert any("cudaGraphLaunch" in name for name in names) and "cosnorm::cosine_chain" not in names
    for a, b, want in zip(made, again, step(net), strict=True):
        assert torch.equal(a, b)
        assert (a.double() - want.double()).norm() <= 0.03 * want.double().norm()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [32, 128])
@pytest.mark.parametrize("centered", [False, True])
def test_large_layers_in_a_graph(centered, batch, chains):
    """As one trains: autocast, channels last, the step in a CUDA graph, replayed."""
    net = network(LARGE, centered).to("cuda").to(memory_format=torch.channels_last)
    x = torch.randn(batch, 64, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    assert launch.apart(x, parameters[1])
    assert launch.apart(x, parameters[1], windows_only=True) == (batch == 128)

    def step(model):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            y = model(x)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), parameters)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        want, first = step(nn.Sequential(*net)), step(net)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = step(net)
        for _ in range(20):
            for tensor in got:
                tensor.fill_(float("nan"))
            graph.replay()
            stream.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True))
    assert set(chains) == {3}
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b.double()).norm() <= 0.03 * b.double().norm()
