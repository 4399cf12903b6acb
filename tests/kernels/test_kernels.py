"""The Triton passes against the float64 reference: by interpreter here, on a GPU by marker."""

import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from cosnorm import algorithm, reference
from cosnorm import functional as F
from cosnorm.benchmarks.verify import SLACK, cases, faults_of

pytest.importorskip("triton", reason="the kernels need triton")
from cosnorm.kernels import launch, layout, passes

# Where there is a GPU the kernels are compiled for it, and none is left for the CPU.
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [GPU] if torch.cuda.is_available() else ["cpu", GPU]
HALF = {"cpu": torch.float16, "cuda": torch.bfloat16}  # the interpreter is wrong for bfloat16


@pytest.fixture(autouse=True)
def triton_steps():
    before = algorithm.set_backend("triton")
    passes.forget()  # some tests change what plans are made of
    with reference.without_tf32():  # what is compared is the passes, not how products round
        yield
    passes.forget()
    algorithm.set_backend(before)


@pytest.fixture(params=[False, True], ids=["together", "apart"])
def apart(request, monkeypatch):
    """Small layers as if they were large: passes beside the products, in tiles for large ones."""
    monkeypatch.setattr(launch, "apart", lambda *_: request.param)
    if request.param:
        monkeypatch.setattr(layout, "_LARGE", 0)


def run(function, tensors, seed):
    leaves = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors
    ]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed.to(output.dtype))]


def assert_exact(call, tensors, dtype, relu=False):
    """Values and all gradients against the reference in float64, call(formula, relu, *tensors).

    The error may be twice that of the same steps in torch, plus an entry of the dtype table: times
    the norm, or for one number, a sum in which most may cancel, times the sum of what went into it.
    With ReLU, gradients are compared where the unit was on: rounding may move it across the corner.
    """
    y = call(False, relu, *tensors).detach()
    seed = torch.randn(y.shape, device=y.device).to(y.dtype).double()
    want = run(
        partial(call, True, False), [t.double() for t in tensors], seed * (y > 0) if relu else seed
    )
    want[0] = want[0].relu() if relu else want[0]
    got = run(partial(call, False, relu), tensors, seed)
    algorithm.set_backend("torch")
    torch_steps = run(partial(call, False, relu), tensors, seed)
    algorithm.set_backend("triton")
    for a, b, c in zip(got, want, torch_steps, strict=True):
        assert a.isfinite().all()
        size = (seed * want[0]).abs().sum() if b.numel() == 1 else b.norm()
        allowed = 2 * (c.double() - b).norm() + SLACK[dtype] * size + 1e-9
        assert (a.double() - b).norm() <= allowed


CASES = [
    # input, weight, stride, padding, dilation, groups
    ((2, 3, 5, 7), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 6, 7, 9), (8, 3, 3, 2), (2, 1), (1, 2), (1, 2), 2),
    ((1, 63, 4, 5), (5, 63, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 4, 6, 6), (4, 1, 3, 3), (3, 2), (2, 0), (1, 1), 4),
    ((2, 5, 11), (7, 5, 4), (2,), (3,), (2,), 1),
    ((1, 2, 3, 4, 5), (3, 2, 2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case, centered, device, apart):
    size, kernel, stride, padding, dilation, groups = case
    dims = len(stride)
    function = getattr(F, f"cosine_conv{dims}d")
    tail = itertools.cycle([(None, 2.0, False), ("one", 1.0, False), ("each", 1.0, True)])
    for dtype, bias, last in itertools.product(
        (torch.float32, HALF[device]), (False, True), (False, True)
    ):
        kind, gain, relu = next(tail)
        layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(dims + 2)
        if last and layout is None:
            continue
        tensors = [torch.randn(size), torch.randn(kernel)]
        if last:
            tensors = [t.contiguous(memory_format=layout) for t in tensors]
        tensors += [torch.randn(kernel[0])] if bias else []
        tensors += [] if kind is None else [torch.rand(kernel[0] if kind == "each" else 1) + 0.5]
        tensors = [t.to(device, dtype) for t in tensors]

        def call(formula, relu, x, w, *rest, bias=bias, kind=kind, gain=gain):
            b, s = rest[0] if bias else None, rest[-1] if kind else None
            if formula:
                return reference.cosine_conv(
                    x, w, b, s, stride, padding, dilation, groups, gain, centered, relu
                ).output
            return function(
                x, w, b, stride, padding, dilation, groups,
                centered=centered, scale=gain if s is None else s,
                activation="relu" if relu else None,
            )  # fmt: skip

        assert_exact(call, tensors, dtype, relu)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [512, 1000])
@pytest.mark.parametrize("centered", [False, True])
def test_many_channels(centered, channels, last, device, apart):
    layout = torch.channels_last if last else torch.contiguous_format
    tensors = [torch.randn(1, channels, 4, 3), torch.randn(5, channels, 3, 3)]
    tensors = [t.to(device).contiguous(memory_format=layout) for t in tensors]
    arguments = ([1, 1], [1, 1], [1, 1], 1)

    def call(formula, relu, x, w):
        if formula:
            return reference.cosine_conv(x, w, None, None, *arguments, 1.0, centered, relu).output
        return F.cosine_conv2d(x, w, None, *arguments, centered=centered, activation="relu")

    assert_exact(call, tensors, torch.float32, True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [(1, 3), (5, 63), (3, 2, 130)], ids=str)
@pytest.mark.parametrize("centered", [False, True])
def test_linear(shape, centered, half, device, apart):
    dtype = HALF[device] if half else torch.float32
    tensors = [torch.randn(shape), torch.randn(33, shape[-1]), torch.randn(33), torch.rand(33)]
    tensors = [t.to(device, dtype) for t in tensors]

    def call(formula, relu, x, w, b, s):
        if formula:
            return reference.cosine_linear(x, w, b, s, 1.0, centered, relu).output
        act = "relu" if relu else None
        return F.cosine_linear(x, w, b, centered=centered, scale=s, activation=act)

    for relu in (False, True):
        assert_exact(call, tensors, dtype, relu)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
def test_rows_and_channels_longer_than_a_block(centered, device, apart, monkeypatch):
    monkeypatch.setattr(layout, "MOST_ROW", 16)
    monkeypatch.setattr(layout, "_TILES", dict.fromkeys(layout._TILES, (32, 4)))
    tensors = [torch.randn(2, 50, 4, 3), torch.randn(6, 50, 3, 3), torch.randn(6)]
    tensors = [t.to(device).contiguous() for t in tensors]
    arguments = ([1, 1], [1, 1], [1, 1], 1)

    def call(formula, relu, x, w, b):
        if formula:
            return reference.cosine_conv(x, w, b, None, *arguments, 1.0, centered, relu).output
        return F.cosine_conv2d(x, w, b, *arguments, centered=centered)

    assert_exact(call, tensors, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value, centered", [(0.0, False), (0.0, True), (0.1, True), (1e4, True)])
def test_vectors_without_direction_give_exact_zeros(value, centered, device, apart):
    x = torch.full((2, 33, 6, 6), value, device=device, requires_grad=True)
    w = torch.randn(4, 33, 3, 3, device=device, requires_grad=True)
    y = F.cosine_conv2d(x, w, centered=centered)
    assert (y == 0).all()
    y.sum().backward()
    assert (x.grad == 0).all() and (w.grad == 0).all()
    flat = torch.full_like(w, value, requires_grad=True)
    x = torch.randn(2, 33, 6, 6, device=device, requires_grad=True)
    y = F.cosine_conv2d(x, flat, centered=centered)
    y.sum().backward()
    assert (y == 0).all() and (x.grad == 0).all() and (flat.grad == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [3, 1023, 4608, 8191, 20_000])
@pytest.mark.parametrize("value", [0.1, 1e-4, 3.3e3])
def test_constants_of_any_length_have_no_direction(value, size, device):
    x = torch.randn(3, size, device=device)
    flat = torch.full((2, size), value, device=device)
    assert (F.cosine_linear(flat, x, centered=True) == 0).all()
    assert (F.cosine_linear(x, flat, centered=True) == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_only_what_is_wanted_is_computed(device, apart):
    x = torch.randn(2, 4, 5, 5, device=device)
    w = torch.randn(3, 4, 3, 3, device=device)

    def grads(wants):
        leaves = [t.clone().requires_grad_(n) for t, n in zip((x, w), wants, strict=True)]
        F.cosine_conv2d(*leaves, centered=True, activation="relu").square().sum().backward()
        return [t.grad for t in leaves]

    full = grads((True, True))
    for wants in ((True, False), (False, True)):
        for got, whole, want in zip(grads(wants), full, wants, strict=True):
            if want:
                torch.testing.assert_close(got, whole)
            else:
                assert got is None


@pytest.mark.parametrize("device", DEVICES)
def test_awkward_strides(device, apart):
    """Expanded gradients, slices and transposed weights give what their copies give."""
    base = torch.randn(2, 8, 5, 14, device=device)
    x, w = base[:, ::2, :, ::2], torch.randn(3, 3, 4, 6, device=device).permute(3, 2, 0, 1)
    results = []
    for a, b in ((x, w), (x.contiguous(), w.contiguous())):
        leaves = [a.detach().requires_grad_(), b.detach().requires_grad_()]
        y = F.cosine_conv2d(*leaves, padding=1, centered=True, activation="relu")
        results.append([y, *torch.autograd.grad(y.sum(), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axes", [(-1,), (2,), (1, 3), (0, 1, 2)], ids=str)
def test_gradients_of_sums_are_expanded(axes, device, apart):
    x, w = torch.randn(2, 3, 5, 4, device=device), torch.randn(4, 3, 3, 3, device=device)
    results = []
    for expanded in (True, False):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        y = F.cosine_conv2d(*leaves, padding=1, centered=True)
        grad = torch.autograd.grad(y.sum(axes).square().sum(), y, retain_graph=True)[0]
        grad = grad if expanded else grad.contiguous()
        results.append(torch.autograd.grad(y, leaves, grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
def test_biases_and_scales_that_are_slices(centered, device, apart):
    x, w = torch.randn(2, 3, 5, 4, device=device), torch.randn(4, 3, 3, 3, device=device)
    bias, scale = torch.randn(8, device=device)[::2], torch.rand(1, device=device).expand(4)
    results = []
    for b, s in ((bias, scale), (bias.contiguous(), scale.contiguous())):
        leaves = [t.detach().requires_grad_() for t in (x, w, b, s)]
        y = F.cosine_conv2d(*leaves[:3], centered=centered, scale=leaves[3])
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1e-20, 3e-21])
def test_squares_below_the_smallest_normal_number(size, device):
    """Σx² is a subnormal number and still a length: nothing may become infinite."""
    x, w = torch.randn(3, 16, device=device), torch.randn(4, 16, device=device)
    want = F.cosine_linear(x, w)
    for a, b in ((x * size, w), (x, w * size)):
        got = F.cosine_linear(a, b)
        assert got.isfinite().all()
        torch.testing.assert_close(got, want, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centered", [False, True])
def test_wider_weights_as_autocast_leaves_them(centered, device, apart):
    """float32 weights, an input of half the size: v is kept, and rounded once."""
    x, w = torch.randn(2, 6, 5, 5, device=device), torch.randn(8, 3, 3, 3, device=device)
    leaves = [x.bfloat16().requires_grad_(), w.requires_grad_()]
    arguments = ([1, 1], [1, 1], [1, 1], 2)
    outputs = torch.ops.cosnorm.cosine_conv2d(*leaves, None, None, *arguments, 1.0, centered, True)
    assert outputs[5].shape == w.shape and outputs[5].dtype == torch.bfloat16
    got = torch.autograd.grad(outputs[0].float().square().sum(), leaves)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    y = reference.cosine_conv(*wide, None, None, *arguments, 1.0, centered, True).output
    want = torch.autograd.grad(y.square().sum(), wide)
    for a, b in zip((outputs[0], *got), (y, *want), strict=True):
        assert (a.double() - b).norm() <= 0.02 * b.norm()


def test_what_triton_does_not_serve_goes_to_torch():
    assert not launch.serves(torch.randn(2, 3).double(), torch.randn(4, 3).double())
    assert not launch.serves(torch.randn(0, 3), torch.randn(4, 3))
    assert not launch.serves(torch.randn(1, 1, 40, 40), torch.randn(1, 1, 20, 20))
    y = F.cosine_conv2d(torch.randn(1, 1, 40, 40), torch.randn(1, 1, 20, 20))
    assert y.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases(torch.device("cuda"), tuple(SLACK)), ids=str)
def test_what_is_checked_before_anything_is_timed(case):
    assert not faults_of(case, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 63, 512, 1000])
def test_repeated_runs_agree_bit_for_bit(channels, apart):
    x = torch.randn(4, channels, 13, 11, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(65, channels, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def once():
        y = F.cosine_conv2d(x, w, padding=1, centered=True, activation="relu")
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, w))]

    first = once()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(once(), first, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_streams_side_by_side_do_not_race(weights, centered, monkeypatch):
    """Large layers on two streams at once, memory freed and reused: to the bit what comes of the
    same launches one after another."""
    batch = [
        torch.randn(32, 256, 16, 16, device="cuda", dtype=torch.bfloat16).contiguous(
            memory_format=torch.channels_last
        )
        for _ in range(2)
    ]
    layers = [torch.randn(256, 256, 3, 3, device="cuda", dtype=weights) / 48 for _ in range(4)]

    def steps(x):
        leaves = [w.clone().requires_grad_() for w in layers]
        with torch.autocast("cuda", torch.bfloat16):  # which keeps v, where it has to be made
            for w in leaves:
                x = F.cosine_conv2d(x, w, padding=1, centered=centered, activation="relu")
        with torch.no_grad():
            y = x.clone()
        return [y, *torch.autograd.grad(x.float().square().sum(), leaves)]

    monkeypatch.setattr(launch, "apart", lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "beside", lambda device, what: nullcontext(nullcontext()))
        want = [t for x in batch for t in steps(x)]
    streams = [torch.cuda.Stream() for _ in batch]
    torch.cuda.synchronize()
    for _ in range(25):
        got = []
        for x, stream in zip(batch, streams, strict=True):
            with torch.cuda.stream(stream):
                got += steps(x)
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("centered", [False, True])
def test_a_captured_layer_is_the_layer(centered):
    """In a CUDA graph the passes run beside the products: same bits, replay after replay."""
    x = torch.randn(128, 256, 12, 12, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(256, 256, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    seed = torch.randn(128, 256, 12, 12, device="cuda", dtype=torch.bfloat16)

    def step():
        y = F.cosine_conv2d(x, w, padding=1, centered=centered, activation="relu")
        return [y.detach(), *torch.autograd.grad(y, (x, w), seed)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        want = step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            assert launch.apart(x, w)
            got = step()
        for _ in range(10):
            for tensor in got:
                tensor.fill_(float("nan"))
            graph.replay()
            stream.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
