"""Finite differences, first and second order, and torch's own checks of every registered op."""

import pytest
import torch
from layer_cases import normal

import cosnorm.functional as F

# name: (function, shape of the input, shape of the weight, units, torch's arguments)
CASES = {
    "linear": (F.cosine_linear, (3, 5), (4, 5), 4, {}),
    "linear, one row": (F.cosine_linear, (5,), (4, 5), 4, {}),
    "linear, sequences": (F.cosine_linear, (2, 3, 4), (2, 4), 2, {}),
    "conv1d": (F.cosine_conv1d, (2, 4, 6), (4, 2, 3), 4, {"stride": 2, "padding": 2, "groups": 2}),
    "conv2d": (F.cosine_conv2d, (1, 2, 4, 4), (3, 2, 2, 3), 3, {"padding": 1, "dilation": (2, 1)}),
    "conv2d, same": (F.cosine_conv2d, (2, 3, 3), (2, 2, 2, 2), 2, {"padding": "same"}),
    "conv3d": (F.cosine_conv3d, (1, 2, 2, 3, 3), (2, 2, 2, 2, 2), 2, {"padding": (0, 1, 0)}),
    "transpose1d": (
        F.cosine_conv_transpose1d, (2, 4, 3), (4, 2, 3), 4,
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    "transpose2d": (F.cosine_conv_transpose2d, (1, 2, 3, 2), (2, 2, 2, 3), 2, {"dilation": 2}),
    "transpose3d": (F.cosine_conv_transpose3d, (1, 2, 2, 2, 1), (2, 2, 2, 1, 2), 2, {"stride": 2}),
}  # fmt: skip
# (bias, scale, activation); the inputs are drawn so that no value lies near a kink
OPTIONS = [
    (False, None, None),
    (True, None, "relu"),
    (True, "one", None),
    (False, "per_output", "relu"),
    (False, -1.5, "relu"),
    (True, "one", "gelu"),
    (False, 4.0, "silu"),
    (True, 5.0, "hardswish"),
]


def build(name, centered, options):
    """(function of the tensors alone, tensors)."""
    function, x, w, units, rest = CASES[name]
    bias, kind, activation = options
    make = normal(5)
    tensors = [make(*x), make(*w)]
    if bias:
        tensors.append(make(units))
    sizes = {"one": 1, "per_output": units}
    if kind in sizes:
        tensors.append(make(sizes[kind]))

    def call(*given):
        b = given[2] if bias else None
        scale = given[-1] if kind in sizes else kind
        return function(
            given[0], given[1], b, **rest, centered=centered, scale=scale, activation=activation
        )

    return call, [t.requires_grad_() for t in tensors]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("centered", [False, True], ids=["cosine", "pearson"])
@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives(name, centered, options):
    call, tensors = build(name, centered, options)
    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, of its jvp of other ops
@pytest.mark.parametrize("centered", [False, True], ids=["cosine", "pearson"])
@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "transpose1d"])
def test_every_entry_of_the_jacobian_and_forward_mode(name, centered):
    call, tensors = build(name, centered, (True, "per_output", None))
    assert torch.autograd.gradcheck(
        call,
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("name", CASES)
def test_the_formula_and_the_differentiated_reference_agree(name):
    """Backward has two ways: the fast one, and one that can be differentiated again."""
    call, tensors = build(name, True, (True, "per_output", "relu"))
    y = call(*tensors)
    fast = torch.autograd.grad(y, tensors, torch.ones_like(y), retain_graph=True)
    slow = torch.autograd.grad(y, tensors, torch.ones_like(y), create_graph=True)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)
        assert other.requires_grad and not one.requires_grad


def op_arguments(name, centered, options, dtype):
    """(op, its arguments) as the function would call it."""
    function, x, w, units, rest = CASES[name]
    bias, kind, activation = options
    dims = len(w) - 2
    make = normal(5)
    tensors = [make(*x) if len(x) != dims + 1 or not dims else make(1, *x), make(*w)]
    tensors.append(make(units) if bias else None)
    tensors.append(make({"one": 1, "per_output": units}[kind]) if isinstance(kind, str) else None)
    tensors = [None if t is None else t.to(dtype).requires_grad_() for t in tensors]

    def each(label, default):
        value = rest.get(label, default)
        value = 0 if value == "same" else value
        return [value] * dims if isinstance(value, int) else list(value)

    groups = rest.get("groups", 1)
    if "transpose" in function.__name__:
        statics = [each("stride", 1), each("padding", 0), each("dilation", 1), groups]
        statics.append(each("output_padding", 0))
    elif dims:
        statics = [each("stride", 1), each("padding", 0), each("dilation", 1), groups]
    else:
        statics = []
    gain = 1.0 if kind is None or isinstance(kind, str) else kind
    op = getattr(torch.ops.cosnorm, function.__name__)
    similarity = "pearson" if centered else "cosine"
    return op.default, [*tensors, *statics, similarity, activation, gain]


QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")


def passes(op, arguments, *checks) -> bool:
    outcome = torch.library.opcheck(op, tuple(arguments), test_utils=checks)
    return set(outcome) == set(checks) and set(outcome.values()) == {"SUCCESS"}


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[2]], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_opcheck_of_every_op(name, options):
    op, arguments = op_arguments(name, True, options, torch.float32)
    assert passes(op, arguments, *QUICK)


@pytest.mark.parametrize(
    "name", ["linear", "conv1d", "conv2d", "conv3d", "transpose1d", "transpose2d", "transpose3d"]
)
def test_opcheck_of_tracing_with_symbolic_shapes(name):
    op, arguments = op_arguments(name, True, OPTIONS[2], torch.float32)
    assert passes(op, arguments, "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", ["linear", "conv2d", "transpose2d"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_opcheck_in_other_dtypes_and_layouts(dtype, name):
    op, arguments = op_arguments(name, True, OPTIONS[2], dtype)
    if arguments[0].dim() == 4:
        last = arguments[0].detach().to(memory_format=torch.channels_last)
        arguments[0] = last.requires_grad_()
    assert passes(op, arguments, *QUICK)


@pytest.mark.parametrize(
    "need", [[True] * 4, [True, False, False, False], [False, True, True, False]]
)
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[2]], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_opcheck_of_every_backward_op(name, options, need):
    op, arguments = op_arguments(name, True, options, torch.float32)
    arguments = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    backward = getattr(torch.ops.cosnorm, op._schema.name.split("::")[1] + "_backward").default
    whole = (torch.randn_like(op(*arguments)), *arguments, need)
    assert passes(backward, whole, "test_schema", "test_faketensor")


def test_every_registered_op_was_checked():
    names = {f"cosine_{kind}" for kind in ("linear", "conv1d", "conv2d", "conv3d")}
    names |= {f"cosine_conv_transpose{dims}d" for dims in (1, 2, 3)}
    registered = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("cosnorm::")
    }
    chains = {"cosine_chain", "cosine_chain_backward"}  # checked in a file of their own
    assert registered - chains == names | {f"{name}_backward" for name in names}
    assert {function.__name__ for function, *_ in CASES.values()} == names
