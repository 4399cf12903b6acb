"""The Triton passes against the float64 reference: by interpreter here, on a GPU by marker."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from kernel_cases import DEVICES, HALF, LAST, check, tensors_of

import cosnorm
from cosnorm import functional as F
from cosnorm.ops import backend, direct
from cosnorm.ops.direct import Kind
from cosnorm.ops.reference import numerics
from cosnorm.ops.spec import Geometry, Spec
from cosnorm.study.bench.verify import cases, faults_of
from cosnorm.testing import SLACK, error, fault, values_and_grads

pytest.importorskip("triton", reason="the kernels need triton")
from cosnorm.ops import triton
from cosnorm.ops.triton import plan, products, tuning

pytestmark = pytest.mark.usefixtures("triton_passes")


class Case(NamedTuple):
    """A convolution, and what its plan has to say of it: a case must be of the kind it stands for.

    kinds: of both layouts; last: of channels last alone.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    kinds: str = ""
    last: str = ""

    @property
    def geometry(self):
        return Geometry(self.stride, self.padding, self.dilation, self.groups)


CASES = {
    "3×3": Case((2, 3, 5, 7), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1, "taps"),
    "two groups": Case((2, 6, 7, 9), (8, 3, 3, 2), (2, 1), (1, 2), (1, 2), 2, "", "lanes"),
    "1×1": Case((1, 63, 4, 5), (5, 63, 1, 1), (1, 1), (0, 0), (1, 1), 1, "point"),
    "1×1, strided": Case((2, 8, 5, 5), (4, 8, 1, 1), (2, 2), (0, 0), (1, 1), 1, "taps"),
    "many small groups": Case((2, 16, 4, 5), (16, 2, 3, 3), (1, 1), (1, 1), (1, 1), 8, "", "lanes"),
    "one output a group": Case(
        (2, 8, 4, 5), (4, 2, 3, 3), (1, 1), (1, 1), (1, 1), 4, "", "lanes single"
    ),
    "points of groups": Case(
        (2, 12, 4, 3), (8, 3, 1, 1), (1, 1), (0, 0), (1, 1), 4, "point", "lanes"
    ),
    "depthwise": Case((3, 4, 6, 6), (4, 1, 3, 3), (3, 2), (2, 0), (1, 1), 4, "thin", "single"),
    "depthwise, two each": Case((2, 4, 5, 6), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 4, "thin"),
    "depthwise, wide": Case((2, 3, 7, 9), (3, 1, 5, 4), (2, 3), (2, 1), (1, 2), 3, "thin"),
    "depthwise 1d": Case((2, 4, 9), (4, 1, 3), (2,), (1,), (1,), 4, "thin"),
    "depthwise 3d": Case(
        (1, 3, 3, 4, 5), (3, 1, 2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 3, "thin"
    ),
    "patches": Case((2, 3, 8, 12), (5, 3, 4, 4), (4, 4), (0, 0), (1, 1), 1, "taps"),
    "1d": Case((2, 5, 11), (7, 5, 4), (2,), (3,), (2,), 1, "taps"),
    "3d": Case((1, 2, 3, 4, 5), (3, 2, 2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1, "taps"),
}
# half?, bias?, kind of scale, gain, activation; the cases take turns
TAILS = [
    (False, False, None, 2.0, None),
    (True, True, "one", 1.0, "relu"),
    (False, True, "each", 1.0, "gelu"),
    (True, False, None, 1.0, "relu"),
    (False, False, "one", 1.0, None),
    (False, False, "each", 4.0, "silu"),
    (False, True, None, 5.0, "hardswish"),
]


def kinds_of(made):
    """The kinds that a plan says it is of."""
    kinds = {name for name in ("point", "thin", "lanes") if getattr(made, name)}
    kinds |= {"single"} if made.lanes and made.width == 1 else set()
    if not (made.point or made.thin or made.lanes):
        passes = (made.launches["finish", True], made.launches["end_grad", True, True])
        kinds |= {"taps" if launch._constants["TAPS"] else "loop" for launch in passes}
    return kinds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name, similarity, last, device):
    case = CASES[name]
    if last and len(case.size) == 3:
        pytest.skip("one dimension of space has one layout")
    turn = 2 * list(CASES).index(name) + last + 2 * (similarity == "pearson")
    half, bias, scale, gain, activation = TAILS[turn % len(TAILS)]
    dtype = HALF[device] if half else torch.float32
    tensors = tensors_of(case.size, case.kernel, bias, scale, device, dtype, last)
    spec = Spec(similarity, activation, gain, case.geometry)
    assert backend.backend_for(*tensors[:2], spec) is triton
    kinds = kinds_of(plan.plan_for(*tensors, spec))
    assert set(f"{case.kinds} {case.last if last else ''}".split()) <= kinds, kinds
    check(spec, tensors, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [(1, 3), (5, 63), (3, 2, 130)], ids=str)
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_linear(shape, similarity, half, device):
    dtype = HALF[device] if half else torch.float32
    for activation, bias, scale in (
        (None, False, None),
        ("relu", True, "each"),
        ("gelu", 1, "one"),
        ("silu", False, "each"),
        ("hardswish", False, "one"),
    ):
        tensors = tensors_of(shape, (5, shape[-1]), bias, scale, device, dtype)
        check(Spec(similarity, activation), tensors, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("name", ["1×1", "points of groups", "linear"])
def test_layers_that_keep_no_output(name, similarity, bias, last, device):
    """Without activation and scale, of fields that are points: callers may change y in place."""
    case = CASES.get(name, Case((4, 3, 63), (7, 63), (), (), (), 1))
    if name == "linear" and last:
        pytest.skip("rows have one layout")
    spec = Spec(similarity, None, 3.0, case.geometry if case.stride else None)
    for dtype in (torch.float32, HALF[device]):
        tensors = tensors_of(case.size, case.kernel, bias, None, device, dtype, last)
        made = plan.plan_for(*tensors, spec)
        assert made.lean and triton.forward(*tensors, made, True)[1][0] is None
        check(spec, tensors, dtype)
    given = [t.clone().requires_grad_() for t in tensors[:2]]
    y = direct.call(*given, tensors[2], None, Kind(spec))
    plainly = torch.autograd.grad(y.sum(), given, retain_graph=True)
    y.detach().zero_()
    assert all(map(torch.equal, torch.autograd.grad(y.sum(), given), plainly))


@pytest.mark.parametrize("name", ["3×3", "1×1", "depthwise", "linear"])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("autocast", [False, True])
def test_float16_multiplied_as_such(name, similarity, autocast, monkeypatch):
    """As on a GPU: lifted weights, in the dtype of the input, and g the other way."""
    monkeypatch.setattr(numerics, "HALF_PRODUCTS", ("cpu", "cuda"))
    case = CASES.get(name, Case((5, 63), (7, 63), (), (), (), 1))
    tensors = tensors_of(case.size, case.kernel, True, "each", "cpu", torch.float16)
    if autocast:  # float32 weights, of which v is kept
        tensors[1:] = [t.float() for t in tensors[1:]]
    spec = Spec(similarity, "relu", 1.0, case.geometry if case.stride else None)
    made = plan.plan_for(*tensors, spec)
    assert (made.dtype, made.lift < 1, made.raw) == (torch.float16, True, False)
    check(spec, tensors, torch.float16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("groups", [1, 5])
def test_more_than_a_tile_holds(similarity, groups, last, device, monkeypatch):
    """Rows, channels, positions and groups in several steps, the last of them not full."""
    monkeypatch.setattr(tuning, "ROW", 16)
    monkeypatch.setattr(tuning, "POSITIONS", 16)
    monkeypatch.setattr(tuning, "ELEMENTS", dict.fromkeys(tuning.ELEMENTS, 128))
    monkeypatch.setattr(tuning, "SHARED", 8)
    tensors = tensors_of(
        (1, 20, 3, 4), (5, 20 // groups, 3, 3), True, "each", device, torch.float32, last
    )
    geometry = Geometry((1, 1), (1, 1), (1, 1), groups)
    check(Spec(similarity, "relu", 1.0, geometry), tensors, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_more_shares_than_are_read_at_once(device, monkeypatch):
    """The gradients of a bias and a scale, of more blocks of positions than a step adds up."""
    monkeypatch.setattr(tuning, "ROW", 4)
    monkeypatch.setattr(tuning, "ELEMENTS", dict.fromkeys(tuning.ELEMENTS, 128))
    monkeypatch.setattr(tuning, "SHARED", 8)
    tensors = tensors_of((150, 9), (20, 9), True, "each", device, torch.float32)
    assert plan.plan_for(*tensors, Spec("pearson")).blocks > 4
    check(Spec("pearson"), tensors, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_more_taps_than_a_tile_holds(similarity, last, device, monkeypatch):
    monkeypatch.setattr(tuning, "WINDOW", 8)
    tensors = tensors_of((2, 3, 5, 4), (4, 3, 3, 3), True, None, device, torch.float32, last)
    spec = Spec(similarity, "relu", 1.0, Geometry((2, 1), (1, 1), (1, 1), 1))
    assert kinds_of(plan.plan_for(*tensors, spec)) == {"loop"}
    check(spec, tensors, torch.float32)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kernel", [3, 5, 7, 16])
def test_tiles_stay_small_whatever_the_window(kernel, last):
    """Of positions times taps: beyond that registers spill, and Triton compiles for minutes."""
    for width in (1, 4, 16, 64, 512):
        tensors = tensors_of((1, 3, 20, 20), (width, 3, kernel, kernel), False, None, "cpu",
                             torch.float32, last)  # fmt: skip
        made = plan.plan_for(
            *tensors, Spec("pearson", None, 1.0, Geometry((1, 1), (0, 0), (1, 1), 1))
        )
        for launch in (made.launches["finish", True], made.launches["end_grad", True, True]):
            constants = launch._constants
            assert constants["TAPS"] * constants["BP"] <= 4096
            assert constants["TAPS"] or kernel > 3 or width == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_many_channels(similarity, last, device):
    tensors = tensors_of((1, 1000, 2, 3), (3, 1000, 3, 3), False, None, device, torch.float32, last)
    check(
        Spec(similarity, "relu", 1.0, Geometry((1, 1), (1, 1), (1, 1), 1)), tensors, torch.float32
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value, centered", [(0.0, False), (0.0, True), (0.1, True), (1e4, True)])
def test_vectors_without_direction_give_exact_zeros(value, centered, device):
    for groups in (1, 5):
        x = torch.full((2, 5, 4, 4), value, device=device, requires_grad=True)
        w = torch.randn(5, 5 // groups, 3, 3, device=device, requires_grad=True)
        y = F.cosine_conv2d(x, w, groups=groups, centered=centered)
        assert (y == 0).all()
        y.sum().backward()
        assert (x.grad == 0).all() and (w.grad == 0).all()
        flat = torch.full_like(w, value, requires_grad=True)
        x = torch.randn(2, 5, 4, 4, device=device, requires_grad=True)
        y = F.cosine_conv2d(x, flat, groups=groups, centered=centered)
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
@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("centered", [False, True])
def test_what_is_frozen_is_not_computed_and_the_rest_is_the_same(centered, kind, device):
    sizes = ((5, 6), (3, 6)) if kind == "linear" else ((2, 4, 5, 5), (3, 4, 3, 3))
    function = F.cosine_linear if kind == "linear" else F.cosine_conv2d
    tensors = tensors_of(*sizes, True, "each", device, torch.float32)

    def grads(wants):
        leaves = [t.clone().requires_grad_(n) for t, n in zip(tensors, wants, strict=True)]
        x, w, b, s = leaves
        y = function(x, w, b, centered=centered, scale=s, activation="gelu")
        y.square().sum().backward()
        return [t.grad for t in leaves]

    full = grads((True,) * 4)
    for wants in (
        (True, False, False, False),
        (False, True, False, True),
        (False, False, True, True),
    ):
        for got, whole, want in zip(grads(wants), full, wants, strict=True):
            assert (got is None) == (not want)
            if want:
                torch.testing.assert_close(got, whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"activation": "gelu"}], ids=str)
def test_without_gradients_the_values_are_the_same(options, device):
    x, w, b, s = tensors_of((2, 4, 5, 5), (3, 4, 3, 3), True, "each", device, torch.float32)
    y = F.cosine_conv2d(x, w.requires_grad_(), b, centered=True, scale=s, **options)
    with torch.no_grad():
        assert torch.equal(y, F.cosine_conv2d(x, w, b, centered=True, scale=s, **options))


def results_of(call, tensors, seed):
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = call(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, seed)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
def test_any_strides_and_addresses(last, device):
    """Slices, transposed weights, tensors at odd addresses: what their copies give."""
    base = torch.randn(2, 8, 5, 14, device=device)
    x, w = base[:, ::2, :, ::2], torch.randn(3, 3, 4, 6, device=device).permute(3, 2, 0, 1)
    b, s = torch.randn(12, device=device)[::2], torch.rand(1, device=device).expand(6)
    seed = torch.randn(2, 6, 5, 7, device=device)
    layout = torch.channels_last if last else torch.contiguous_format

    def odd(t):  # four bytes behind a round address
        room = torch.empty(t.numel() + 1, device=device)[1:]
        return room.as_strided(t.shape, t.stride()).copy_(t) if t.dim() > 1 else room.copy_(t)

    def call(x, w, b, s):
        return F.cosine_conv2d(x, w, b, padding=1, centered=True, scale=s, activation="relu")

    x = x.contiguous(memory_format=layout) if last else x
    copies = [t.contiguous(memory_format=layout) for t in (x, w)] + [b.clone(), s.clone()]
    want = results_of(call, copies, seed)
    for got in (
        results_of(call, (x, w, b, s), seed),
        results_of(call, [odd(t) for t in copies], odd(seed)),
    ):
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axes", [(-1,), (2,), (1, 3), (0, 1, 2)], ids=str)
def test_gradients_of_sums_are_expanded(axes, device):
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
@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_wider_weights_as_autocast_leaves_them(similarity, device):
    """float32 weights, an input of half the size: v is kept, and rounded once."""
    x, w, b, _ = tensors_of((2, 6, 5, 5), (8, 3, 3, 3), True, None, device, torch.float32)
    x = x.to(torch.bfloat16)
    spec = Spec(similarity, "relu", 1.0, Geometry((1, 1), (1, 1), (1, 1), 2))
    made = plan.plan_for(x, w, b, None, spec)
    *_, unit = triton.forward(x, w, b, None, made, True)[1]
    assert unit.shape == w.shape and unit.dtype == torch.bfloat16
    check(spec, [x, w, b, None], torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kind", ["CosineConv2d", "PearsonConv2d"])
def test_folded(kind, groups, device):
    layer = getattr(cosnorm.nn, kind)(4, 8, 3, padding=1, groups=groups, bias=True, scale=2.0)
    exact = layer.double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        want = exact(x.double())
        model = torch.nn.Sequential(layer.float()).to(device).eval()
        near = model(x.to(device)).cpu()
        cosnorm.fold(model)
        got = model(x.to(device)).cpu()
    assert not fault("folded", error(got, want), error(near, want), torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_that_is_kept_gives_the_same_gradients_again(device):
    """What backward writes for itself lies beside what forward has kept, not over it."""
    x, w, b, s = tensors_of((2, 4, 5, 5), (3, 4, 3, 3), True, "each", device, torch.float32)
    leaves = [t.requires_grad_() for t in (x, w, b, s)]
    y = F.cosine_conv2d(x, w, b, centered=True, scale=s)
    seed = torch.randn_like(y)
    first, again = (torch.autograd.grad(y, leaves, seed, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_what_triton_does_not_serve_goes_to_torch():
    linear = Spec("cosine")
    assert triton.serves(torch.randn(2, 3), torch.randn(4, 3), linear)
    assert not triton.serves(torch.randn(2, 3).double(), torch.randn(4, 3).double(), linear)
    assert not triton.serves(torch.randn(0, 3), torch.randn(4, 3), linear)
    transposed = Spec("cosine", None, 1.0, Geometry((1,), (0,), (1,), 1, (0,)))
    assert not triton.serves(torch.randn(1, 3, 4), torch.randn(3, 4, 2), transposed)
    y = F.cosine_conv_transpose1d(torch.randn(1, 3, 4), torch.randn(3, 4, 2))
    assert y.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases(torch.device("cuda"), tuple(SLACK)), ids=str)
def test_what_is_checked_before_anything_is_timed(case):
    assert not faults_of(case, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 63, 512, 1000])
def test_repeated_runs_agree_bit_for_bit(channels):
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
def test_two_streams_at_once_give_what_one_gives(weights, centered):
    """Kernels are launched on the stream of the caller, memory is freed and used again on it."""
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
        return [x.detach(), *torch.autograd.grad(x.float().square().sum(), leaves)]

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
    """In a CUDA graph: same bits, replay after replay."""
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
            got = step()
        for _ in range(10):
            for tensor in got:
                tensor.fill_(float("nan"))
            graph.replay()
            stream.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
def test_another_size_compiles_nothing():
    from cosnorm.ops.triton.compilations import compilations

    w = torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)

    def step(batch, size):
        x = torch.randn(batch, 64, size, size, device="cuda", requires_grad=True)
        F.cosine_conv2d(x, w, padding=1, centered=True, activation="relu").sum().backward()

    with compilations() as first:
        step(8, 16)
    with compilations() as later:
        for batch, size in ((7, 16), (8, 24), (3, 32)):
            step(batch, size)
    assert len(first) <= 4 and later == []


def contiguously(tensor):
    """As hooks do that keep tensors elsewhere: values and sizes, not the order in memory."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("last_x", "last_w"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_saved_tensors_come_back_in_another_order(activation, last_x, last_w, autocast, device):
    layouts = [LAST[4] if last else torch.contiguous_format for last in (last_x, last_w)]
    tensors = tensors_of((2, 4, 5, 6), (6, 4, 3, 3), True, "each", device, torch.float32)
    x, w = (t.contiguous(memory_format=m) for t, m in zip(tensors, layouts, strict=False))
    x = x.to(HALF[device]) if autocast else x
    leaves = [t.requires_grad_() for t in (x, w, *tensors[2:])]
    geometry = Geometry((1, 1), (1, 1), (1, 1), 1)
    kind = Kind(Spec("pearson", activation, 1.0, geometry))
    seed = torch.randn_like(direct.call(*leaves, kind))
    plainly = torch.autograd.grad(direct.call(*leaves, kind), leaves, seed)
    with torch.autograd.graph.saved_tensors_hooks(contiguously, contiguously):
        hooked = torch.autograd.grad(direct.call(*leaves, kind), leaves, seed)
    for got, want in zip(hooked, plainly, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["3×3", "1×1", "depthwise", "two groups"])
def test_some_gradients_alone(name, last, device):
    """Whichever are wanted, they are those of all: a first layer has no gradient of its input."""
    case = CASES[name]
    tensors = tensors_of(case.size, case.kernel, True, "one", device, torch.float32, last)
    kind = Kind(Spec("pearson", "relu", 1.0, case.geometry))
    seed = torch.randn_like(direct.call(*tensors, kind))
    whole = values_and_grads(partial(direct.call, kind=kind), tensors, seed)[1:]
    for chosen in (0b0001, 0b0010, 0b0100, 0b1000, 0b0110):
        given = [t.detach().requires_grad_(bool(chosen >> i & 1)) for i, t in enumerate(tensors)]
        wanted = [i for i, t in enumerate(given) if t.requires_grad]
        y = direct.call(*given, kind)
        grads = torch.autograd.grad(y, [given[i] for i in wanted], seed)
        for i, grad in zip(wanted, grads, strict=True):
            torch.testing.assert_close(grad, whole[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["linear", "3×3", "1×1"])
def test_autocast_in_backward_alone(name, given, device):
    """As where a layer without autocast is part of a step with it: gradients are as without."""
    sizes = ((5, 8), (6, 8)) if name == "linear" else CASES[name][:2]
    geometry = None if name == "linear" else CASES[name].geometry
    given = HALF[device] if given is torch.float16 else given
    tensors = [t if t is None else t.to(given).requires_grad_()
               for t in tensors_of(*sizes, True, "one", device, torch.float32)]  # fmt: skip
    kind = Kind(Spec("pearson", None, 1.0, geometry))
    seed = torch.randn_like(direct.call(*tensors, kind))

    def grads(**autocast):
        y = direct.call(*tensors, kind)
        with torch.autocast(device, **autocast):
            return torch.autograd.grad(y, tensors, seed)

    plainly, other = grads(enabled=False), torch.bfloat16
    if given is torch.bfloat16:
        other = torch.float16
    for got, want in zip(grads(dtype=other), plainly, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["1×1", "depthwise", "3×3"])
def test_gradients_of_weights_are_not_copied(name, last, monkeypatch):
    """Of dimensions of size one strides say nothing, and products choose them as they like."""
    case = CASES[name]
    tensors = tensors_of(case.size, case.kernel, False, None, "cpu", torch.float32, last)
    kind = Kind(Spec("cosine", None, 1.0, case.geometry))
    seed = torch.randn_like(direct.call(*tensors, kind))
    for room in (triton, products):
        monkeypatch.delattr(room, "in_rows")
    values_and_grads(lambda x, w: direct.call(x, w, None, None, kind), tensors[:2], seed)
