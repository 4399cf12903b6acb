"""What the functions accept, and what they say of anything else before any work is done."""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cosnorm.ops.activations import ACTIVATIONS
from cosnorm.ops.reference import autocasting

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LARGEST = sys.float_info.max
_FLOATS = "floating point (float64, float32, bfloat16 or float16)"


class ConvSizes(NamedTuple):
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    extra: list[int]  # for F.pad, where the two sides of "same" padding differ


_WEIGHT_SHAPES = {
    (False, False): "(out, in)",
    (False, True): "(out, in / groups, *kernel size)",
    (True, True): "(in, out / groups, *kernel size)",
}


def check_kind(name: str, label: str, tensor: Any) -> None:
    """A dense tensor of one of our dtypes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name}: {label} must be a tensor, got {type(tensor).__name__}; "
            "make one with torch.tensor"
        )
    if tensor.is_nested:
        raise TypeError(
            f"{name}: {label} must be one dense tensor, got a nested one of {tensor.layout}; "
            "pad it with torch.nested.to_padded_tensor, or call the layer on each part"
        )
    if tensor.layout != torch.strided:
        raise TypeError(
            f"{name}: {label} must be dense, got {tensor.layout}; call {label}.to_dense()"
        )
    if tensor.dtype not in _DTYPES:
        raise TypeError(
            f"{name}: {label} must be {_FLOATS}, got {tensor.dtype}; "
            f"convert it, for example {label}.float()"
        )


def check_dtype(name: str, dtype: Any) -> None:
    """The dtype that a layer's parameters are asked for in."""
    if dtype is not None and dtype not in _DTYPES:
        raise TypeError(
            f"{name}: dtype must be {_FLOATS}, got {dtype}; leave it out, or pass one of these"
        )


def check_tensors(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    weight_dims: int,
    groups: Any = 1,
    transposed: bool = False,
) -> None:
    """Kinds, dtypes, devices, groups and the shapes of weight and bias."""
    named = {"input": input, "weight": weight, "bias": bias}
    for label, tensor in named.items():
        if tensor is None and label == "bias":
            continue
        check_kind(name, label, tensor)
        assert tensor is not None
        if tensor.device != input.device:
            raise ValueError(
                f"{name}: {label} is on {tensor.device} and input on {input.device}; "
                "move them to one device"
            )
    _check_dtypes(name, named)
    if weight.dim() != weight_dims:
        raise ValueError(
            f"{name}: weight must have {weight_dims} dimensions, got {tuple(weight.shape)}; "
            f"reshape it to {_WEIGHT_SHAPES[transposed, weight_dims > 2]}"
        )
    if 0 in weight.shape:
        raise ValueError(
            f"{name}: weight must have no empty dimension, got {tuple(weight.shape)}; "
            "give it at least one entry in each"
        )
    check_groups(name, groups, "the input channels" if transposed else "the output channels",
                  weight.shape[0])  # fmt: skip
    units = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and tuple(bias.shape) != (units,):
        raise ValueError(
            f"{name}: bias must have one entry for each of the {units} outputs, "
            f"got shape {tuple(bias.shape)}; pass bias of shape ({units},)"
        )


def _check_dtypes(name: str, named: dict[str, Tensor | None]) -> None:
    """One dtype, as torch demands; under autocast the input may differ from the parameters."""
    input, weight = named["input"], named["weight"]
    assert input is not None and weight is not None
    if autocasting(input.device.type):
        return
    for label, tensor in named.items():
        if tensor is not None and tensor.dtype != input.dtype:
            raise TypeError(
                f"{name}: input and {label} must have one dtype, got {input.dtype} and "
                f"{tensor.dtype}; convert one of them, or use torch.autocast"
            )


def check_scale(name: str, scale: Any, units: int, weight: Tensor) -> float:
    """The number by which the cosine is multiplied: 1 where a tensor does it."""
    if scale is None:
        return 1.0
    if isinstance(scale, Tensor):
        check_kind(name, "scale", scale)
        if tuple(scale.shape) not in ((), (1,), (units,)):
            raise ValueError(
                f"{name}: scale must have shape (1,) or ({units},), one for each output, "
                f"got {tuple(scale.shape)}; reshape it"
            )
        if scale.device != weight.device:
            raise ValueError(
                f"{name}: scale is on {scale.device} and weight on {weight.device}; "
                "move them to one device"
            )
        return 1.0
    return check_number(name, scale, "None, a number or a tensor")


def check_number(name: str, scale: Any, rule: str) -> float:
    """A fixed scale."""
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: scale must be {rule}, got {scale!r}; pass a float such as 10.0")
    if isinstance(scale, int) and not -_LARGEST <= scale <= _LARGEST:
        told = "an int beyond every float"
        raise ValueError(f"{name}: scale must be finite, got {told}; pass a float such as 10.0")
    if not -math.inf < scale < math.inf:  # and not isfinite, which torch.compile can't trace
        raise ValueError(f"{name}: scale must be finite, got {scale}; pass a float such as 10.0")
    return float(scale)


def check_bias(name: str, bias: Any) -> None:
    """Whether a layer is to have a bias; the bias itself is the layer's to make."""
    if bias is not None and not isinstance(bias, bool | np.bool_ | int):
        given = "a tensor" if isinstance(bias, Tensor) else repr(bias)
        raise TypeError(
            f"{name}: bias must be True or False, got {given}; "
            "to start from values of your own, copy them into layer.bias"
        )


def check_counts(name: str, **counts: Any) -> None:
    """Numbers of channels or features."""
    rule = "must be a positive int"
    for label, count in counts.items():
        if not _is_int(count) or count < 1:
            raise ValueError(f"{name}: {label} {rule}, got {count!r}; pass 1 or more")


def check_choices(name: str, centered: Any, activation: Any) -> None:
    if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
        *known, last = ["None", *(f'"{each}"' for each in ACTIVATIONS if each)]
        raise ValueError(
            f"{name}: activation must be {', '.join(known)} or {last}, got {activation!r}; "
            "apply any other to the output"
        )
    if not isinstance(centered, bool):
        raise TypeError(
            f"{name}: centered must be True or False, got {centered!r}; "
            "True for Pearson, False for the cosine"
        )


def sizes(name: str, label: str, value: Any, dims: int, least: int) -> list[Any]:
    """An int, or one int for each dimension, none below `least`."""
    many = f"pass an int or a tuple of {dims}"
    values = [value] * dims if _is_int(value) else value
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name}: {label} must be an int or {dims} ints, got {value!r}; {many}")
    values = list(values) * dims if len(values) == 1 else list(values)
    if len(values) != dims or not all(_is_int(v) for v in values):
        raise ValueError(f"{name}: {label} must be an int or {dims} ints, got {value!r}; {many}")
    if any(v < least for v in values):
        raise ValueError(
            f"{name}: {label} must be at least {least}, got {value!r}; pass {least} or more"
        )
    return [v if isinstance(v, torch.SymInt) else int(v) for v in values]


def _is_int(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt | np.integer) and not isinstance(value, bool)


def _check_input(
    name: str, dims: int, input: Tensor, channels: int, rule: str, *values: int
) -> None:
    """rule: a text that `values` go into when it is told, and not before: torch.compile cannot
    write a number that it leaves open.
    """
    _check_dims(name, dims, input)
    if input.shape[-dims - 1] != channels:
        raise ValueError(
            f"{name}: input has {input.shape[-dims - 1]} channels and {rule.format(*values)} "
            f"{channels}; input is {tuple(input.shape)}: change its channels, weight or groups"
        )


def _check_dims(name: str, dims: int, input: Tensor) -> None:
    if input.dim() not in (dims + 1, dims + 2):
        raise ValueError(
            f"{name}: input must have {dims + 2} dimensions, or {dims + 1} without a batch, "
            f"got {tuple(input.shape)}; reshape it to (N, C, …)"
        )


def _check_places(name: str, dims: int, input: Tensor) -> None:
    if 0 in input.shape[-dims:]:
        raise ValueError(
            f"{name}: input must have at least one position in each dimension of space, got "
            f"{tuple(input.shape)}; leave such inputs out (a batch of none is fine)"
        )


def check_padding_mode(name: str, mode: Any, known: Sequence[str]) -> None:
    if not isinstance(mode, str) or mode not in known:
        *others, last = [f'"{each}"' for each in known]
        rule = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(
            f"{name}: padding_mode must be {rule}, got {mode!r}; pad the input with "
            "torch.nn.functional.pad for any other"
        )


def check_output_size(name: str, dims: int, input: Any, output_size: Any) -> None:
    """What a transposed layer is asked for beside its input; the sizes themselves torch checks."""
    check_kind(name, "input", input)
    _check_dims(name, dims, input)
    lengths = (dims, input.dim())
    is_right = isinstance(output_size, Sequence) and len(output_size) in lengths
    if not is_right or not all(_is_int(size) for size in output_size):
        raise ValueError(
            f"{name}: output_size must be a list of {dims} ints, got {output_size!r}; pass the "
            "size of the output in each dimension of space"
        )


def check_groups(name: str, groups: Any, label: str, channels: int) -> None:
    if not _is_int(groups) or groups < 1:
        raise ValueError(f"{name}: groups must be a positive int, got {groups!r}; pass 1 or more")
    if channels % groups:
        raise ValueError(
            f"{name}: groups must divide {label} ({channels}), got {groups}; "
            f"choose a divisor of {channels}"
        )


def conv_sizes(
    name: str,
    dims: int,
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> ConvSizes:
    """Stride, padding and dilation as lists, after every check of the geometry."""
    channels = weight.shape[1] * groups
    _check_input(name, dims, input, channels, "weight × groups ({}) asks for", groups)
    _check_places(name, dims, input)
    stride = sizes(name, "stride", stride, dims, 1)
    dilation = sizes(name, "dilation", dilation, dims, 1)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    extra: list[int] = []
    padding = conv_padding(name, padding, dims, stride)
    if isinstance(padding, str):
        padding, extra = _named_padding(padding, reach)
    margins = [2 * p for p in padding]
    if extra:
        margins = [extra[2 * i] + extra[2 * i + 1] for i in reversed(range(dims))]
    for length, margin, span in zip(input.shape[-dims:], margins, reach, strict=True):
        if length + margin < span + 1:
            raise ValueError(
                f"{name}: the kernel spans {span + 1} positions and the padded input has only "
                f"{length + margin}; pad more, or use a smaller kernel or dilation"
            )
    return ConvSizes(stride, padding, dilation, extra)


def conv_padding(name: str, padding: Any, dims: int, stride: Sequence[int]) -> Any:
    """One int for each dimension, "same" or "valid"."""
    if not isinstance(padding, str):
        return tuple(sizes(name, "padding", padding, dims, 0))
    if padding not in ("same", "valid"):
        raise ValueError(
            f'{name}: padding must be ints, "same" or "valid", got {padding!r}; pass one of these'
        )
    if padding == "same" and any(s != 1 for s in stride):
        raise ValueError(
            f'{name}: padding="same" needs stride 1, got {tuple(stride)}; '
            "use stride 1 or give the padding as ints"
        )
    return padding


def check_margins(
    name: str, dims: int, input: Tensor, channels: int, margins: Sequence[int], mode: str
) -> None:
    """What a padding mode other than zeros asks of the input; margins: as F.pad's."""
    _check_input(name, dims, input, channels, "the layer asks for")
    for axis in range(dims):
        length, margin = input.shape[-1 - axis], max(margins[2 * axis : 2 * axis + 2])
        most = {"reflect": length - 1, "circular": length}.get(mode, margin if length else -1)
        if margin > most:
            raise ValueError(
                f"{name}: {mode} padding of {margin} needs a longer input, got "
                f"{tuple(input.shape)}; pad at most {max(most, 0)} there"
            )


def _named_padding(padding: str, reach: list[int]) -> tuple[list[int], list[int]]:
    if padding == "valid":
        return [0] * len(reach), []
    if all(r % 2 == 0 for r in reach):
        return [r // 2 for r in reach], []
    return [0] * len(reach), [p for r in reversed(reach) for p in (r // 2, r - r // 2)]


def transpose_sizes(
    name: str,
    dims: int,
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> tuple[list[int], list[int], list[int], int, list[int]]:
    """The geometry of a transposed convolution as lists, in torch's order, after every check."""
    _check_input(name, dims, input, weight.shape[0], "weight asks for")
    _check_places(name, dims, input)
    stride = sizes(name, "stride", stride, dims, 1)
    dilation = sizes(name, "dilation", dilation, dims, 1)
    padding = sizes(name, "padding", padding, dims, 0)
    extra = sizes(name, "output_padding", output_padding, dims, 0)
    for o, s, d in zip(extra, stride, dilation, strict=True):
        if o >= max(s, d):
            raise ValueError(
                f"{name}: output_padding must be smaller than stride or dilation, got "
                f"{tuple(extra)} with stride {tuple(stride)} and dilation {tuple(dilation)}; "
                "lower it"
            )
    for n, k, s, p, o, d in zip(
        input.shape[-dims:], weight.shape[2:], stride, padding, extra, dilation, strict=True
    ):
        if (n - 1) * s - 2 * p + d * (k - 1) + o + 1 < 1:
            raise ValueError(
                f"{name}: the output must not be empty, got input {tuple(input.shape)} with "
                f"padding {tuple(padding)}; pad less"
            )
    return stride, padding, extra, groups, dilation
