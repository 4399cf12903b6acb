"""fold: the same values, no weight work, nothing but torch."""

import copy
import io

import pytest
import torch
import torch.fx
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export import Dim
from torch.nn.utils import prune

import cosnorm
from cosnorm.nn import CosineConv2d, CosineLinear, PearsonConv2d, PearsonLinear
from cosnorm.ops import reference

LAYERS = {
    "linear": ("Linear", (5, 6), {}, (3, 5)),
    "linear on sequences": ("Linear", (5, 6), {}, (3, 2, 5)),
    "linear on one row": ("Linear", (5, 6), {}, (5,)),
    "conv1d": ("Conv1d", (4, 6, 3, 2, 1), {}, (3, 4, 9)),
    "conv2d": ("Conv2d", (4, 6, 3), {"padding": (2, 1), "groups": 2}, (3, 4, 7, 7)),
    "conv2d, reflected": (
        "Conv2d",
        (4, 6, 3),
        {"padding": 1, "padding_mode": "reflect"},
        (3, 4, 7, 7),
    ),
    "conv2d, uneven": ("Conv2d", (4, 6, (2, 4)), {"padding": "same"}, (3, 4, 7, 7)),
    "conv2d, unbatched": ("Conv2d", (4, 6, 3), {"dilation": 2}, (4, 7, 7)),
    "conv3d": ("Conv3d", (4, 6, 2), {"dilation": 2}, (3, 4, 5, 5, 5)),
}
SCALES = {
    "none": {},
    "fixed": {"scale": 3.0},
    "learned": {"scale": 3.0, "learn_scale": True},
    "per output": {"scale": 2.0, "learn_scale": "per_output"},
}


def build(case, similarity="Pearson", **options):
    kind, arguments, more, shape = LAYERS[case]
    layer = getattr(cosnorm.nn, similarity + kind)(*arguments, **more, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer.eval(), shape


def folded(layer):
    model = nn.Sequential(copy.deepcopy(layer)).eval()
    cosnorm.fold(model)
    return model[0]


@pytest.mark.parametrize("similarity", ["Cosine", "Pearson"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("case", LAYERS)
def test_values_stay(case, scale, activation, bias, similarity):
    options = {**SCALES[scale], "activation": activation, "bias": bias, "dtype": torch.float64}
    layer, shape = build(case, similarity, **options)
    x = torch.randn(shape, dtype=torch.float64)
    twin = folded(layer)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), layer(x))
    differentiable = twin(x.requires_grad_())
    torch.testing.assert_close(differentiable, layer(x))


@pytest.mark.parametrize("case", ["linear", "conv2d"])
def test_gradients_of_the_input_stay(case):
    layer, shape = build(case, bias=True, scale=2.0, activation="relu", dtype=torch.float64)
    twin = folded(layer)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(twin(x).square().sum(), x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("similarity", ["Cosine", "Pearson"])
@pytest.mark.parametrize("case", ["linear", "conv2d"])
def test_low_precision_keeps_the_rules(case, similarity, dtype):
    layer, shape = build(case, similarity, bias=True)
    x = torch.randn(shape) + 30
    exact = copy.deepcopy(layer).double()
    layer, x = layer.to(dtype), x.to(dtype)
    expected = exact(x.double())
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for twin in (folded(layer), folded(layer.float()).to(dtype)):
        y = twin(x)
        assert y.dtype == dtype
        assert y.abs().max() <= 1
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)
    huge = twin(torch.full_like(x, torch.finfo(torch.float16).max))
    assert huge.isfinite().all()


def test_a_cast_after_folding_corrects_the_rounded_weights():
    layer = PearsonLinear(64, 32).eval()
    twin = folded(layer).bfloat16()
    assert twin.total.dtype == torch.float32
    torch.testing.assert_close(twin.total, twin.unit_weight.float().sum(1))
    assert twin.total.abs().max() > 1e-4
    x = (torch.randn(16, 64) + 100).bfloat16()
    expected = layer.double()(x.double())
    torch.testing.assert_close(twin(x).double(), expected, rtol=0, atol=3e-2)


def test_autocast_corrects_the_rounded_weights():
    layer = PearsonLinear(64, 32).eval()
    twin = folded(layer)
    x = torch.randn(16, 64) + 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(x)
    assert y.dtype == torch.bfloat16
    expected = layer.double()(x.bfloat16().double())
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=3e-2)


def test_zero_vectors_stay_zero():
    layer = PearsonConv2d(4, 6, 3).eval()
    with torch.no_grad():
        layer.weight[2] = 0.5
    twin = folded(layer)
    x = torch.randn(2, 4, 6, 6)
    x[0] = 7
    y = twin(x)
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    assert torch.equal(y[:, 2], torch.zeros_like(y[:, 2]))


def test_no_weight_work_and_no_op_of_ours(monkeypatch):
    model = nn.Sequential(
        PearsonConv2d(4, 6, 3, activation="relu"), nn.Flatten(), CosineLinear(6, 3)
    )
    model.eval()
    x = torch.randn(2, 4, 3, 3)
    expected = model(x)
    cosnorm.fold(model)
    monkeypatch.setattr(reference, "unit_weight", None)
    exported = torch.export.export(model, (x,))
    ops = {str(n.target) for n in exported.graph.nodes if n.op == "call_function"}
    assert not any("cosnorm" in op for op in ops)
    torch.testing.assert_close(exported.module()(x), expected)
    weights = {
        spec.target: spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.target and "unit_weight" in spec.target
    }
    assert len(weights) == 2
    for node in exported.graph.nodes:
        if node.name in weights.values():
            assert [str(user.target) for user in node.users] in (
                ["aten.conv2d.default"],
                ["aten.linear.default"],
            )


@pytest.mark.parametrize("similarity", ["Cosine", "Pearson"])
def test_export_leaves_the_size_of_images_open(similarity):
    layer = getattr(cosnorm.nn, f"{similarity}Conv2d")
    model = nn.Sequential(layer(3, 4, 5, stride=3, padding=2, dilation=2, bias=True)).eval()
    cosnorm.fold(model)
    sizes = {0: Dim("batch"), 2: Dim("height", min=8), 3: Dim("width", min=8)}
    program = torch.export.export(model, (torch.randn(2, 3, 12, 15),), dynamic_shapes=(sizes,))
    for shape in ((1, 3, 8, 17), (3, 3, 19, 8), (2, 3, 14, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("case", LAYERS)
def test_fx_sees_one_call(case):
    layer, shape = build(case, bias=True, scale=2.0, activation="relu")
    model, x = nn.Sequential(layer, nn.Tanh()).eval(), torch.randn(shape) + 30
    cosnorm.fold(model)
    traced = torch.fx.symbolic_trace(model)
    called = [n.target.__name__ for n in traced.graph.nodes if n.op == "call_function"]
    assert called == ["folded_linear" if "linear" in case else "folded_conv"]
    assert torch.equal(traced(x), model(x))
    cast = copy.deepcopy(traced).bfloat16()
    assert torch.equal(cast(x.bfloat16()), model.bfloat16()(x.bfloat16()))
    with pytest.raises(TypeError, match=r"Folded.*input must be floating point.*got torch\.int64"):
        traced(x.long())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch uses what it deprecates
def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = nn.Sequential(PearsonConv2d(4, 6, 3, padding=1), nn.ReLU(), CosineConv2d(6, 3, 1))
    model.eval()
    x = torch.randn(2, 4, 6, 6)
    expected = model(x)
    cosnorm.fold(model)
    path = tmp_path / "folded.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), expected)


def test_compiles_to_one_graph():
    torch.compiler.reset()
    model = nn.Sequential(PearsonConv2d(4, 6, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(2, 4, 6, 6)
    expected = model(x)
    cosnorm.fold(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)


def test_channels_last_stays():
    layer = PearsonConv2d(4, 6, 3).eval().to(memory_format=torch.channels_last)
    twin = folded(layer)
    assert twin.unit_weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert twin(x).is_contiguous(memory_format=torch.channels_last)


def test_state_account_and_objects():
    model = nn.ModuleDict({
        "one": PearsonConv2d(4, 6, 3, bias=True, learn_scale=True),
        "two": CosineLinear(5, 3),
        "three": cosnorm.nn.CosineConvTranspose2d(4, 6, 3),
        "four": nn.Linear(4, 4),
    }).eval()  # fmt: skip
    model["five"] = model["two"]
    one, names = model["one"], ["unit_weight", "unit_bias", "scale"]
    account = cosnorm.fold(model)
    assert model["one"] is one
    assert [tuple(entry) for entry in account] == [
        ("one", "PearsonConv2d", "FoldedConv", ""),
        ("two", "CosineLinear", "FoldedLinear", ""),
        (
            "three",
            "CosineConvTranspose2d",
            None,
            "the norm of its weights changes from position to position",
        ),
        ("five", "CosineLinear", "FoldedLinear", ""),
    ]
    assert list(one.state_dict()) == names
    assert list(model["two"].state_dict()) == ["unit_weight"]
    assert not list(one.parameters())
    assert not hasattr(one, "weight")
    assert cosnorm.fold(model).changed == ()


def test_state_dict_round_trip_and_no_confusion_with_training_weights():
    model, other = (nn.Sequential(CosineLinear(5, 3)).eval() for _ in range(2))
    trained = copy.deepcopy(model.state_dict())
    cosnorm.fold(model)
    cosnorm.fold(other)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, 5)
    assert torch.equal(other(x), model(x))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(trained)


@pytest.mark.parametrize("units", [1, 6])
@pytest.mark.parametrize("case", ["linear", "conv2d"])
def test_a_bias_costs_no_second_weight_and_is_saved(case, units, tmp_path):
    kind, (inputs, _, *more), options, shape = LAYERS[case]
    options = {**options, "groups": 1} if case == "conv2d" else options
    layer = getattr(cosnorm.nn, f"Pearson{kind}")(inputs, units, *more, bias=True, **options)
    nn.init.normal_(layer.bias)
    twin = folded(layer.eval())
    held = sum(buffer.untyped_storage().nbytes() for buffer in twin.buffers())
    assert held == 4 * (layer.weight.numel() + 2 * units)  # v, its bias and Σv
    assert all(buffer.is_contiguous() for buffer in twin.buffers())
    path = tmp_path / "folded.safetensors"
    save_file(twin.state_dict(), path)
    other = folded(copy.deepcopy(layer))
    nn.init.zeros_(other.unit_weight)
    other.load_state_dict(load_file(path))
    x = torch.randn(shape)
    assert torch.equal(other(x), twin(x))


def test_halves_are_kept_as_halves():
    twin = folded(PearsonLinear(64, 32, bias=True, dtype=torch.float16).eval())
    assert (twin.unit_weight.dtype, twin.unit_bias.dtype) == (torch.float16, torch.float16)
    torch.testing.assert_close(twin.total, twin.unit_weight.float().sum(1) + twin.unit_bias)


@pytest.mark.parametrize("assign", [False, True])
def test_the_sums_follow_weights_that_are_loaded(assign):
    layer = PearsonLinear(64, 32).eval()
    state = folded(layer).state_dict()
    twin = folded(copy.deepcopy(layer).bfloat16())
    nn.init.zeros_(twin.unit_weight)
    twin.load_state_dict(state, assign=assign)
    assert twin.unit_weight.dtype == (torch.float32 if assign else torch.bfloat16)
    assert torch.equal(twin.total, twin.unit_weight.float().sum(1))


def test_another_dtype_is_refused_as_before_folding():
    model = nn.Sequential(PearsonLinear(5, 3), PearsonConv2d(4, 6, 3)).eval().bfloat16()
    cosnorm.fold(model)
    rule = r"input and weight must have one dtype, got torch\.float32 and torch\.bfloat16"
    with pytest.raises(TypeError, match=f"FoldedLinear: {rule}"):
        model[0](torch.randn(2, 5))
    with pytest.raises(TypeError, match=f"FoldedConv2d: {rule}"):
        model[1](torch.randn(2, 4, 6, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model[0](torch.randn(2, 5)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("case", "similarity", "options", "shown"),
    [
        ("linear", "Cosine", {}, "in_features=5, out_features=6, bias=False, centered=False"),
        (
            "linear",
            "Pearson",
            {"bias": True, "scale": 2.5, "activation": "relu"},
            "in_features=5, out_features=6, bias=True, centered=True, scale=2.5, activation='relu'",
        ),
        ("linear", "Cosine", {"learn_scale": "per_output"}, "centered=False, scale of 6"),
        (
            "conv2d, reflected",
            "Pearson",
            {},
            "4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, "
            "padding_mode='reflect', bias=False, centered=True",
        ),
    ],
)
def test_repr_shows_what_the_layer_computes(case, similarity, options, shown):
    assert shown in repr(folded(build(case, similarity, **options)[0]))


def test_code_that_reads_the_weight_fails():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = CosineLinear(5, 3)

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight)

    model = Reads().eval()
    cosnorm.fold(model)
    with pytest.raises(AttributeError, match="'FoldedLinear' object has no attribute 'weight'"):
        model(torch.randn(2, 5))


class Speech(nn.Module):
    """Takes the weight of one layer without a call, looks at another's dtype, calls two."""

    def __init__(self):
        super().__init__()
        self.taken = CosineLinear(5, 5)
        self.asked = CosineLinear(5, 5)
        self.called = CosineLinear(5, 5)
        self.spare = CosineLinear(5, 5)

    def forward(self, x):
        x = nn.functional.linear(x, self.taken.weight)
        return self.called(self.asked(x.to(self.asked.weight.dtype)))


def test_an_example_finds_what_reads_weights():
    model = Speech().eval()
    x = torch.randn(2, 5)
    expected = model(x)
    account = cosnorm.fold(model, example=x)
    assert {entry.name: entry.reason for entry in account.left} == {
        "taken": "does not run on the example: other code reads its weight",
        "asked": "other code reads its weight",
        "spare": "does not run on the example",
    }
    assert [entry.name for entry in account.changed] == ["called"]
    torch.testing.assert_close(model(x), expected)
    with pytest.raises(TypeError, match=r"example must be a tensor, a tuple .*; got str"):
        cosnorm.fold(model, example="x")


def test_too_small_an_input_for_its_padding():
    twin = folded(PearsonConv2d(4, 6, 3, padding=2, padding_mode="reflect").eval())
    with pytest.raises(ValueError, match="FoldedConv2d: reflect padding of 2 needs"):
        twin(torch.randn(2, 4, 2, 2))


def test_tied_weights_part():
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 5), "head": CosineLinear(5, 7)}).eval()
    model["head"].weight = model["embedding"].weight
    before = model["embedding"].weight.clone()
    (entry,) = cosnorm.fold(model)
    assert entry.reason == "its weight was shared; the unit weight is its own"
    assert torch.equal(model["embedding"].weight, before)


def test_a_converted_model_folds():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    cosnorm.convert(model)
    model.eval()
    x = torch.randn(2, 3, 6, 6)
    expected = model(x)
    cosnorm.fold(model)
    torch.testing.assert_close(model(x), expected)


def test_wrong_use_is_refused_and_changes_nothing():
    model = nn.Sequential(CosineLinear(5, 3), CosineConv2d(4, 6, 3)).eval()
    model[1].train()
    with pytest.raises(ValueError, match=r"got layer '1' in training mode: call model\.eval"):
        cosnorm.fold(model)
    with pytest.raises(ValueError, match="got the model in training mode"):
        cosnorm.fold(CosineLinear(5, 3))
    assert type(model[0]) is CosineLinear
    with pytest.raises(TypeError, match=r"torch\.nn\.Module; got list"):
        cosnorm.fold([])
    model.eval()
    cosnorm.fold(model)
    with pytest.raises(ValueError, match=r"5 features.*got shape \(2, 4\)"):
        model[0](torch.randn(2, 4))
    with pytest.raises(ValueError, match="channels"):
        model[1](torch.randn(2, 3, 6, 6))
    with pytest.raises(TypeError, match=r"input must be floating point.*got torch\.int64"):
        model[0](torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"input must be floating point.*got torch\.uint8"):
        model[1](torch.ones(2, 4, 6, 6, dtype=torch.uint8))


def test_layers_whose_weight_or_forward_is_not_their_own_stay():
    pruned = prune.l1_unstructured(PearsonConv2d(4, 6, 3), "weight", 0.5).eval()
    replaced = CosineLinear(5, 3).eval()
    replaced.forward = lambda input: input
    x = torch.randn(2, 4, 6, 6)
    expected = pruned(x)
    account = cosnorm.fold(nn.ModuleDict({"pruned": pruned, "replaced": replaced}).eval())
    assert [entry.reason for entry in account.left] == [
        "its weight is not a parameter: a hook or another layer computes it",
        "its forward was replaced on the object",
    ]
    assert torch.equal(pruned(x), expected)


def test_what_is_folded_under_inference_mode_passes_gradients():
    model = nn.Sequential(nn.Linear(4, 3))
    cosnorm.convert(model)
    model.eval()
    with torch.inference_mode():
        cosnorm.fold(model)
    x = torch.randn(2, 4, requires_grad=True)
    model(x).square().sum().backward()
    assert x.grad is not None and x.grad.any()


class Sharded(nn.Parameter):
    """Stands for the tensors of sharded layers, which are no plain parameters."""


def test_layers_with_parameters_of_another_kind_are_left():
    model = nn.Sequential(CosineLinear(4, 4)).eval()
    model[0].weight = Sharded(model[0].weight.detach())
    (entry,) = cosnorm.fold(model)
    assert entry.now is None and entry.reason == "its weight is a Sharded, not a plain parameter"
    assert model(torch.randn(2, 4)).shape == (2, 4)
