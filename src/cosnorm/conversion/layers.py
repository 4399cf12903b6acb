"""Which layers can become cosine layers, what they become, and how: the same object, a new class.

A converted layer is the very object it was: its parameters, hooks, mode and every reference to it
(other names, optimisers, tied weights) stay as they are. Only its class changes, and the attributes
that the new class needs are added.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

import cosnorm.nn
from cosnorm import functional
from cosnorm.nn import CosineLinear, PearsonLinear
from cosnorm.nn.conv import _CosineConv, _CosineConvTranspose
from cosnorm.nn.dead import is_dead, warn_if_dead, weight_rows

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TORCH_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
FEWEST_DEPTHWISE = 49
"""Entries of a filter of a depthwise layer that is converted unless said otherwise."""
# What a cosine layer has beside the attributes of torch's layer.
OURS = ("activation", "centered", "initial_scale", "learn_scale", "scale")
# What a subclass may define and still compute what its torch layer computes.
_HARMLESS = {"__init__", "__repr__", "__setstate__", "extra_repr", "reset_parameters"}


class _Transposed(CosineLinear):
    """The weight has the shape (in, out), and in memory lies as (out, in).

    So `weight.t()`, which the product and its gradients work on, is contiguous: no step copies it.
    """

    transposed = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.weight = nn.Parameter(self.weight.detach().t())

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = 1 / math.sqrt(self.in_features)  # as torch's, which would take `out` for `in` here
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and self.training and not self.looked_at:
            warn_if_dead(self)
        return functional.cosine_linear(
            input, self.weight.t(), self.bias,
            centered=self.centered, scale=self.scale, activation=self.activation,
        )  # fmt: skip


class TransposedCosineLinear(_Transposed):
    """`CosineLinear` whose weight lies as (in, out): what transformers' `Conv1D` becomes."""


class TransposedPearsonLinear(_Transposed, PearsonLinear):
    """`PearsonLinear` whose weight lies as (in, out): what transformers' `Conv1D` becomes."""


def check_adapters(model: nn.Module, what: str, remedy: str) -> None:
    """Raise ValueError for a model that PEFT has put its own modules into."""
    for module in model.modules():
        if type(module).__module__.partition(".")[0] == "peft":
            raise ValueError(
                f"model must be {what}; got a {type(module).__name__} of PEFT: {remedy}"
            )


def is_similar(module: nn.Module) -> bool:
    """Whether a module is one of our layers."""
    return isinstance(module, CosineLinear | _CosineConv | _CosineConvTranspose)


def torch_layer(module: nn.Module) -> type[nn.Module] | None:
    """The layer of torch that a module is, or is a kind of."""
    return next((kind for kind in TORCH_LAYERS if isinstance(module, kind)), None)


def is_transformers_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, `x @ weight + bias`, known by its name and shapes: no import needed."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if type(module).__name__ != "Conv1D" or weight is None or bias is None:
        return False
    outputs = getattr(module, "nf", None)
    return weight.dim() == 2 and weight.shape[1] == outputs and bias.shape == (outputs,)


def is_quantised(module: nn.Module) -> bool:
    """One of torch's quantised layers, which keep their weight behind a method."""
    return type(module).__module__.startswith("torch.ao.nn") and hasattr(module, "weight")


def obstacle(module: nn.Module, centered: bool) -> str | None:
    """Why a layer can't become a cosine layer; None where it can."""
    kind = torch_layer(module)
    if is_similar(module):
        return "a cosine layer already"
    if is_quantised(module):
        return "a quantised layer"
    if kind is None and not is_transformers_conv1d(module):
        return "not a linear or convolution layer"
    return _computes_otherwise(module, kind) or odd_weight(module) or _too_short(module, centered)


def _computes_otherwise(module: nn.Module, kind: type[nn.Module] | None) -> str | None:
    if isinstance(module, LazyModuleMixin):
        return "lazy: its shape is unknown until the model has run once"
    if parametrize.is_parametrized(module):
        return "parametrised: call torch.nn.utils.parametrize.remove_parametrizations first"
    if "forward" in vars(module):
        return "its forward was replaced on the object"
    own = type(module).__mro__[: type(module).__mro__.index(kind)] if kind else ()
    defined = {key for cls in own for key, value in vars(cls).items() if callable(value)}
    methods = sorted(defined - _HARMLESS)
    if methods and not (methods == ["forward"] and _acts_as_linear(module)):
        return f"a subclass with its own {', '.join(methods)}"
    if taken := [name for name in OURS if hasattr(module, name)]:
        return f"it has an attribute {', '.join(taken)} that a cosine layer needs for itself"
    return None


@torch.no_grad()
def _acts_as_linear(module: nn.Module) -> bool:
    """Whether a subclass of nn.Linear computes what that does, tried with other weights.

    Image model libraries have one, for the sake of scripting.
    """
    weight = module._parameters.get("weight")
    own = set(module._parameters) - {"weight", "bias"} or module._buffers or module._modules
    if not isinstance(module, nn.Linear) or own or weight is None or weight.dim() != 2:
        return False
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, weight.shape[1], generator=generator)
    bias = None if module.bias is None else torch.randn(len(weight), generator=generator)
    twin = copy.copy(module)
    twin._parameters = {  # the rows alike, so that a large weight costs nothing
        "weight": nn.Parameter(row.expand(weight.shape)),
        "bias": None if bias is None else nn.Parameter(bias),
    }
    x = torch.randn(2, 3, weight.shape[1], generator=generator)
    expected = nn.functional.linear(x, twin.weight, twin.bias)
    try:
        outputs = [twin.train(mode).forward(x) for mode in (True, False)]
    except Exception:  # whatever it does, it is not that
        return False
    return all(
        isinstance(y, Tensor) and y.shape == expected.shape and torch.allclose(y, expected)
        for y in outputs
    )


def odd_weight(module: nn.Module) -> str | None:
    """Why a layer's weight or bias can't be taken for good: made anew in each pass, or odd."""
    for name in ("weight", "bias"):
        if module._parameters.get(name) is None and (
            getattr(module, name, None) is not None or name == "weight"
        ):
            return f"its {name} is not a parameter: a hook or another layer computes it"
    for name in ("weight", "bias"):
        tensor = module._parameters.get(name)
        if tensor is None:
            continue
        if type(tensor) is not nn.Parameter:
            return f"its {name} is a {type(tensor).__name__}, not a plain parameter"
        if tensor.dtype not in DTYPES:
            return f"its {name} is {tensor.dtype}: quantised or complex layers stay"
    return None


def _too_short(module: nn.Module, centered: bool) -> str | None:
    """A vector of one entry has no direction but its sign; centred, nor has one of two."""
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    if not weight.numel() and weight.shape[1:].numel():
        return "it has no outputs"
    entries = weight.shape[0] if is_transformers_conv1d(module) else weight.shape[1:].numel()
    if isinstance(module, _ConvNd) and module.transposed:
        taps = zip(module.kernel_size, module.stride, strict=True)
        reaching = math.prod(max(1, size // step) for size, step in taps)
        entries = weight.shape[0] // module.groups * reaching
    entries += module.bias is not None
    if entries > 1 + centered:
        return None
    return f"its vectors have {entries} entries: their similarity is a sign or zero, never a degree"


def is_depthwise(module: nn.Module) -> bool:
    """Whether every output of a convolution sees one channel."""
    if not isinstance(module, _ConvNd):
        return False
    return module.groups == module.in_channels > 1


def small_depthwise(module: nn.Module) -> str | None:
    """Why a depthwise layer is better left; None for any other.

    Measured with 9 and 25 entries, where a network errs far more with such layers converted, and
    with 49, where it errs less (the page on fine-tuning).
    """
    entries = math.prod(module.kernel_size) if isinstance(module, _ConvNd) else 0
    if not is_depthwise(module) or entries >= FEWEST_DEPTHWISE:
        return None
    return (
        f"depthwise, {entries} entries: flat patches would be blown up to full size; "
        "depthwise=True converts it"
    )


def can_never_learn(module: nn.Module, centered: bool) -> bool:
    """Whether a layer is to be trained and, as a cosine layer, would get no gradient."""
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    rows = weight.detach().t() if is_transformers_conv1d(module) else weight_rows(module)
    bias = module._parameters.get("bias")
    return weight.requires_grad and is_dead(rows, bias, centered)


def template(
    module: nn.Module, similarity: str, start: float | None, bias: bool = True
) -> nn.Module:
    """An empty cosine layer of a module's shape, on the meta device: what the module becomes.

    With `start` it has a learned scale, which is real and starts there. Without `bias` it has none.
    """
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    options: dict[str, Any] = {"device": "meta", "dtype": weight.dtype}
    options |= {"scale": start, "learn_scale": start is not None}
    options["bias"] = bias and module.bias is not None
    pattern = _kind(module, similarity)(**_arguments(module), **options)
    if start is not None:
        scale = torch.full((1,), start, device=weight.device, dtype=weight.dtype)
        pattern.scale = nn.Parameter(scale)
    return pattern


def _kind(module: nn.Module, similarity: str) -> type[nn.Module]:
    kind = torch_layer(module)
    if kind is None:
        return TransposedPearsonLinear if similarity == "pearson" else TransposedCosineLinear
    return getattr(cosnorm.nn, similarity.capitalize() + kind.__name__)


def _arguments(module: nn.Module) -> dict[str, Any]:
    """The constructor's arguments that give a layer of the module's shape."""
    if isinstance(module, _ConvNd):
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
        names += ("groups", "padding_mode", *(["output_padding"] if module.transposed else []))
        return {name: getattr(module, name) for name in names}
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    outputs, inputs = weight.shape if isinstance(module, nn.Linear) else reversed(weight.shape)
    return {"in_features": inputs, "out_features": outputs}


def graft(module: nn.Module, pattern: nn.Module) -> None:
    """Make a module what its template is: its class, and what it lacks of the template's state.

    A bias that the template does not have goes.
    """
    module.__class__ = type(pattern)
    for name, value in vars(pattern).items():
        vars(module).setdefault(name, value)
    for name, value in pattern._parameters.items():
        module._parameters.setdefault(name, value)
    if pattern.bias is None:
        module._parameters["bias"] = None
    if isinstance(module, _Transposed):
        module.weight.data = module.weight.data.t().contiguous().t()


def set_scale(pattern: Any, scale: Tensor) -> None:
    """Give a template a learned scale, of one number or of one for each output, that starts there.

    scale: (1,) or (out,), on the device of the layer.
    """
    pattern.scale = nn.Parameter(scale.to(pattern.weight.dtype))
    pattern.learn_scale = True if len(scale) == 1 and pattern.learn_scale else "per_output"
    pattern.initial_scale = float(scale) if pattern.learn_scale is True else None
