"""Linear layers whose rows are normalised before the product, by Triton and by torch."""

from functools import partial

import pytest
import torch
from kernel_cases import DEVICES, HALF, check, tensors_of
from torch import nn

from cosnorm import functional as F
from cosnorm.nn import CosineLinear, PearsonLinear
from cosnorm.ops import backend, direct
from cosnorm.ops import spec as specs
from cosnorm.ops.direct import Kind
from cosnorm.ops.eager import early
from cosnorm.ops.reference import numerics
from cosnorm.ops.spec import Spec, is_early
from cosnorm.testing import SLACK, error, values_and_grads

pytest.importorskip("triton", reason="the kernels need triton")
from cosnorm.ops import triton
from cosnorm.ops.triton import plan, tuning

pytestmark = pytest.mark.usefixtures("triton_passes")

SIMILARITIES = ["cosine", "pearson"]
SIZES = {"one row": ((1, 8), 8), "rows": ((2, 9, 24), 40), "wide": ((2, 72), 80)}


EARLY = specs.EARLY


@pytest.fixture(autouse=True)
def float16_goes_this_way(monkeypatch):
    """In place of bfloat16, which no CPU shows the kernels in; multiplied as such, as on a GPU."""
    monkeypatch.setattr(numerics, "HALF_PRODUCTS", ("cpu", "cuda"))
    monkeypatch.setattr(specs, "EARLY", (*EARLY, torch.float16))


def tensors_for(size, bias, device):
    """Weights are wider, as autocast leaves them."""
    shape, units = SIZES[size]
    tensors = tensors_of(shape, (units, shape[-1]), bias, None, device, HALF[device])
    tensors[1:] = [t if t is None else t.float() for t in tensors[1:]]
    return tensors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients(size, similarity, bias, device):
    tensors, spec = tensors_for(size, bias, device), Spec(similarity)
    made = plan.plan_for(*tensors, spec)
    assert made.early and made.lift == 1
    check(spec, tensors, HALF[device])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_more_than_a_tile_holds(similarity, bias, device, monkeypatch):
    monkeypatch.setattr(tuning, "ROW", 16)
    monkeypatch.setattr(tuning, "ELEMENTS", dict.fromkeys(tuning.ELEMENTS, 128))
    monkeypatch.setattr(tuning, "SHARED", 8)
    tensors = tensors_for("rows", bias, device)
    made = plan.plan_for(*tensors, Spec(similarity))
    assert made.early and made.blocks > 1
    check(Spec(similarity), tensors, HALF[device])


def test_of_which_layers_it_is(monkeypatch):
    monkeypatch.setattr(specs, "EARLY", EARLY)
    weight, low, spec = torch.empty(16, 8), torch.bfloat16, Spec("cosine")
    assert is_early(spec, weight, None, low)
    assert is_early(Spec("pearson"), weight, None, low)
    for other in (
        (spec, weight, None, torch.float32),
        (spec, weight, None, torch.float16),
        (spec, weight.to(low), None, low),
        (Spec("pearson"), weight.to(low), None, low),
        (spec, weight, torch.ones(1), low),
        (Spec("cosine", "relu"), weight, None, low),
        (Spec("cosine", None, 2.0), weight, None, low),
        (spec, weight.t(), None, low),
        (spec, torch.empty(16, 9), None, low),
    ):
        assert not is_early(*other)


ROUND_BADLY = {torch.float16: 56, torch.bfloat16: 112}  # lengths of flat vectors that do


def parallel(kind, count, size, dtype):
    """Vectors that round badly, which are weights and inputs both."""
    if kind == "blocks":
        return (torch.rand(count, 4) + 0.3).repeat_interleave(size // 4, 1).to(dtype)
    if kind == "two values":
        pairs = torch.rand(count, 2) + 0.5
        return torch.where(torch.rand(count, size) < 0.5, *pairs.split(1, 1)).to(dtype)
    if kind == "flat":  # all entries of a vector round the same way
        return (torch.rand(count, 1) + 0.5).expand(count, size).contiguous().to(dtype)
    return torch.randn(count, size).to(dtype)


def similarities(x, w, b, similarity):
    """Of weights in float32, and so by an early layer."""
    kind = Kind(Spec(similarity))
    return direct.call(x, w.float(), b if b is None else b.float(), None, kind)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("choice", ["torch", "triton"])
@pytest.mark.parametrize("kind", ["flat", "random"])
@pytest.mark.parametrize("bias", [False, True])
def test_no_similarity_is_above_one(bias, kind, choice, device):
    backend.set_backend(choice)
    size = 16 if kind == "random" else ROUND_BADLY[HALF[device]]
    w = parallel(kind, size, size, HALF[device]).to(device)
    b = torch.ones(size, dtype=HALF[device], device=device) if bias else None
    if kind == "flat":  # the case is one that needs care
        unit = nn.functional.normalize(w.float(), dim=1).to(w.dtype).float()
        assert bias or (unit @ unit.t()).to(w.dtype).max() > 1
    for similarity in SIMILARITIES:
        y = similarities(w, w, b, similarity)
        assert y.abs().max() <= 1
        if kind == "random" or similarity == "cosine":  # 1 as far as it can be told
            assert (1 - y.diagonal().float()).abs().max() < 1.6 * torch.finfo(w.dtype).eps


@pytest.mark.parametrize("kind", ["flat", "blocks", "two values", "random"])
@pytest.mark.parametrize("parts", [2, 8])
def test_no_similarity_is_above_one_where_parts_of_a_sum_are_rounded(parts, kind, monkeypatch):
    """As cuBLAS may do it: parts in two bytes, added up in four."""

    def in_parts(_, hat, v, __):
        pairs = zip(hat.chunk(parts, 1), v.chunk(parts, 1), strict=True)
        rounded = [(h.float() @ u.float().t()).to(hat.dtype).float() for h, u in pairs]
        return sum(rounded[1:], rounded[0]).to(hat.dtype)

    backend.set_backend("triton")
    monkeypatch.setattr(triton.early, "product", in_parts)
    torch.manual_seed(0)
    size, dtype = 64, HALF["cpu"]
    w = torch.cat([parallel(kind, size, size, dtype) for _ in range(3)])
    for similarity in SIMILARITIES[: 1 if kind == "flat" else 2]:
        assert similarities(w, w, None, similarity).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 64, 128, 512, 4096])
@pytest.mark.parametrize("size", [64, 384, 896, 1024, 3584, 4096])
def test_no_similarity_is_above_one_whatever_way_the_product_goes(size, rows):
    """cuBLAS may split a sum into parts that it rounds before it adds them."""
    for units in (size, 4 * size):
        w = torch.randn(units, size, device="cuda").bfloat16()
        kinds = ("flat", "blocks", "two values")
        for kind, some in zip(kinds, w[: units // 4 * 3].chunk(3), strict=True):
            some.copy_(parallel(kind, len(some), size, torch.bfloat16))
        w = w[torch.randperm(units, device="cuda")]
        for similarity in SIMILARITIES:
            for x in w.split(rows)[:8]:
                assert similarities(x.contiguous(), w, None, similarity).abs().max() <= 1


CANCELLING = [
    *((choice, True, HALF["cpu"], "cpu") for choice in ("torch", "triton")),
    ("torch", False, torch.bfloat16, "cpu"),
    *(
        pytest.param(choice, wider, torch.bfloat16, "cuda", marks=pytest.mark.gpu)
        for choice in ("torch", "triton")
        for wider in (False, True)
    ),
]


@pytest.mark.parametrize(("choice", "wider", "low", "device"), CANCELLING)
@pytest.mark.parametrize("bias", [False, True])
def test_what_cancels_is_as_exact_as_in_a_plain_layer(bias, choice, wider, low, device):
    """Inputs far from zero, of which the weights or the bias take nearly all away."""
    backend.set_backend(choice)
    weights = torch.float32 if wider else low
    x = (10 + torch.randn(32, 64)).to(device, low)
    w = torch.randn(64, 64)
    w = (w if bias else w - w.mean(1, keepdim=True)).to(device, weights)
    b = (-10 * w.float().sum(1)).to(weights) if bias else None
    given = (x, w, b) if bias else (x, w)
    y = direct.call(x, w, b, None, Kind(Spec("cosine")))
    right = F.cosine_linear(*(t.double() for t in given))
    plain = nn.functional.linear(*(t.to(low) for t in given))
    near = error(plain, nn.functional.linear(*(t.double() for t in given)))
    assert error(y, right) <= 2 * near + SLACK[low]


@pytest.mark.parametrize(("choice", "wider", "low", "device"), CANCELLING)
def test_so_is_what_pearson_does_not_see_as_an_offset(choice, wider, low, device):
    """A direction of mean zero that all inputs share, and no weights have."""
    backend.set_backend(choice)
    shared = torch.tensor([1.0, -1.0]).repeat(128)
    x = (torch.randn(64, 256) + 3 * shared).to(device, low)
    w = torch.randn(256, 256)
    w = (w - (w @ shared)[:, None] * shared / 256).to(device, torch.float32 if wider else low)
    y = direct.call(x, w, None, None, Kind(Spec("pearson")))
    right = F.cosine_linear(x.double(), w.double(), centered=True)
    near = error(nn.functional.linear(x, w.to(low)), nn.functional.linear(x.double(), w.double()))
    assert error(y, right) <= 2 * near + SLACK[low]


def rounded(x, w):
    """A plain layer under autocast."""
    return nn.functional.linear(x, w.to(x.dtype))


@pytest.mark.parametrize("choice", ["torch", "triton"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_float16_gradients_have_the_size_of_a_plain_layers(similarity, choice, monkeypatch):
    """Small ones do not vanish before those of a plain layer, large ones of x stay."""
    monkeypatch.setattr(specs, "EARLY", EARLY)
    backend.set_backend(choice)
    x, w = torch.randn(16, 256).half(), torch.randn(256, 256) / 16
    seed = (torch.randn(16, 256) * 1e-5).half().double()

    def layer(x, w):
        return direct.call(x, w, None, None, Kind(Spec(similarity)))

    exact = partial(F.cosine_linear, centered=similarity == "pearson")
    for which, size in ((1, 0.01), (2, 1.0)):  # gradients of x have the size of 1/|x|
        given = [x * size, w]
        wide = [t.double() for t in given]
        got, want, near, far = (
            values_and_grads(function, tensors, seed)[which]
            for function, tensors in (
                (layer, given),
                (exact, wide),
                (rounded, given),
                (nn.functional.linear, wide),
            )
        )
        assert error(got, want) <= 2 * error(near, far) + SLACK[torch.float16]
    seed = torch.rand(1, 256).half().double() * 12_000  # times weights of one sign
    large = values_and_grads(partial(layer, w=w.abs()), [x[:1] * 4], seed)
    assert large[1].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("choice", ["torch", "triton"])
@pytest.mark.parametrize("value, centered", [(0.0, False), (0.0, True), (0.1, True), (1e4, True)])
def test_vectors_without_direction_give_exact_zeros(value, centered, choice, device):
    backend.set_backend(choice)
    low = {"device": device, "dtype": HALF[device]}
    flat, some = torch.full((24, 24), value, **low), torch.randn(24, 24, **low)
    for x, w in ((flat, some), (some, flat)):
        x, w = (t.clone().requires_grad_() for t in (x, w))
        y = similarities(x, w, None, "pearson" if centered else "cosine")
        y.sum().backward()
        assert (y == 0).all() and (x.grad == 0).all() and (w.grad == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_some_gradients_alone(similarity, device):
    tensors = tensors_for("rows", True, device)[:3]
    kind = Kind(Spec(similarity))
    run = partial(direct.call, scale=None, kind=kind)
    seed = torch.randn_like(run(*tensors))
    whole = values_and_grads(run, tensors, seed)
    for chosen in (0b001, 0b010, 0b100, 0b011, 0b101):
        given = [t.detach().requires_grad_(bool(chosen >> i & 1)) for i, t in enumerate(tensors)]
        wanted = [i for i, t in enumerate(given) if t.requires_grad]
        grads = torch.autograd.grad(run(*given), [given[i] for i in wanted], seed)
        for i, grad in zip(wanted, grads, strict=True):
            torch.testing.assert_close(grad, whole[1:][i], rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(run(*tensors), whole[0])


def moved(tensor):
    buffer = torch.empty(2 * tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return buffer[1::2].view(tensor.shape).copy_(tensor)


def spread(tensor):
    """From the same round address on."""
    buffer = tensor.new_zeros(*tensor.shape, 8)
    return buffer[..., 0].copy_(tensor)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wide", [True, False], ids=["early", "late"])
@pytest.mark.parametrize("moved", [moved, spread])
def test_saved_tensors_come_back_elsewhere(moved, wide, device):
    """What hooks return may begin at any address and have any strides."""
    tensors = tensors_for("rows", True, device)[:3]
    assert plan.plan_for(*tensors, None, Spec("pearson")).early
    if not wide:  # weights as wide as the product
        tensors[1:] = [t.to(HALF[device]) for t in tensors[1:]]
    leaves = [t.requires_grad_() for t in tensors]
    run = partial(direct.call, scale=None, kind=Kind(Spec("pearson")))
    seed = torch.randn_like(run(*leaves))
    plainly = torch.autograd.grad(run(*leaves), leaves, seed)
    with torch.autograd.graph.saved_tensors_hooks(moved, moved):
        hooked = torch.autograd.grad(run(*leaves), leaves, seed)
    for got, want in zip(hooked, plainly, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_outputs_may_be_changed_in_place(similarity, device):
    leaves = [t.requires_grad_() for t in tensors_for("rows", True, device)[:3]]
    run = partial(direct.call, *leaves, None, Kind(Spec(similarity)))
    plainly = torch.autograd.grad(run().sum(), leaves)
    y = run()
    y.detach().zero_()
    assert y._base is None
    assert all(map(torch.equal, torch.autograd.grad(y.sum(), leaves), plainly))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_what_is_held_for_backward(similarity, device):
    """x, statistics and v: no output, and no normalised rows."""
    from cosnorm.study.bench.timing import held_bytes

    x, w, b = tensors_for("rows", True, device)[:3]
    leaves = [t.requires_grad_() for t in (x, w, b)]
    held = held_bytes(partial(direct.call, *leaves, None, Kind(Spec(similarity))), leaves)
    rows, units = x.numel() // x.shape[-1], len(w)
    assert held <= 8 * rows + 8 * units + 4 * max(rows, units) + 2 * units * (w.shape[1] + 8)


def test_the_two_rooms_agree(monkeypatch):
    """In torch the same formulas: `eager.early` is what runs, and gives what the kernels give."""
    calls = []
    forward = early.forward
    monkeypatch.setattr(early, "forward", lambda *a: calls.append(a) or forward(*a))
    x = torch.randn(3, 5, 16, dtype=torch.float16)
    w, b = torch.randn(32, 16), torch.randn(32)
    by_triton = direct.call(x, w, b, None, Kind(Spec("pearson")))
    assert not calls
    backend.set_backend("torch")
    by_torch = direct.call(x, w, b, None, Kind(Spec("pearson")))
    torch.testing.assert_close(by_torch, by_triton, rtol=2e-3, atol=1e-3)
    assert len(calls) == 1 and triton.serves(x, w, Spec("pearson"))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", [CosineLinear, PearsonLinear])
def test_compiled_for_any_number_of_rows(layer, bias):
    """The formulas in aten, no break in the graph, one graph for all sizes; the bound holds."""
    backend.set_backend("torch")
    layer = layer(16, 24, bias=bias)
    nn.init.uniform_(layer.bias, 0.5, 1.5) if bias else None
    with torch.no_grad():
        layer.weight[:8] = 0.7
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (5, 9):
        x = torch.randn(rows, 2, 16, dtype=torch.bfloat16)
        x[0] = layer.weight[:2].detach()
        x.requires_grad_()
        results = []
        for run in (layer, compiled):
            with torch.autocast("cpu", torch.bfloat16):
                y = run(x)
            assert y.abs().max() <= 1
            results.append([y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
