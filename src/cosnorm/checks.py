"""What the functions accept, and what they say of anything else before any work is done."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ConvSizes(NamedTuple):
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    extra: list[int]  # for F.pad, where the two sides of "same" padding differ


def check_tensors(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    weight_dims: int,
    groups: int = 1,
    transposed: bool = False,
) -> None:
    """Kinds, dtypes, devices and the shapes of weight and bias."""
    named = {"input": input, "weight": weight, "bias": bias}
    for label, tensor in named.items():
        if tensor is None and label == "bias":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {label} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(
                f"{name}: {label} must be floating point, got {tensor.dtype}; "
                f"convert it, for example {label}.float()"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"{name}: {label} is on {tensor.device} and input on {input.device}; "
                "move them to one device"
            )
    _check_dtypes(name, named)
    if weight.dim() != weight_dims:
        raise ValueError(
            f"{name}: weight must have {weight_dims} dimensions, got {tuple(weight.shape)}"
        )
    if 0 in weight.shape[2:]:
        raise ValueError(f"{name}: the kernel must not be empty, got weight {tuple(weight.shape)}")
    units = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and tuple(bias.shape) != (units,):
        raise ValueError(
            f"{name}: bias must have one entry for each of the {units} outputs, "
            f"got shape {tuple(bias.shape)}"
        )


def _check_dtypes(name: str, named: dict[str, Tensor | None]) -> None:
    """One dtype, as torch demands; under autocast the input may differ from the parameters."""
    input, weight = named["input"], named["weight"]
    assert input is not None and weight is not None
    device = input.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return
    for label, tensor in named.items():
        if tensor is not None and tensor.dtype != input.dtype:
            raise TypeError(
                f"{name}: input and {label} must have one dtype, got {input.dtype} and "
                f"{tensor.dtype}; convert one of them, or use torch.autocast"
            )


def check_scale(name: str, scale: Any, units: int, weight: Tensor) -> tuple[Tensor | None, float]:
    """(tensor or None, number) by which the cosine is multiplied."""
    if scale is None:
        return None, 1.0
    if isinstance(scale, Tensor):
        if not scale.is_floating_point():
            raise TypeError(f"{name}: scale must be floating point, got {scale.dtype}")
        if tuple(scale.shape) not in ((), (1,), (units,)):
            raise ValueError(
                f"{name}: scale must have shape (1,) or ({units},), one for each output, "
                f"got {tuple(scale.shape)}"
            )
        if scale.device != weight.device:
            raise ValueError(
                f"{name}: scale is on {scale.device} and weight on {weight.device}; "
                "move them to one device"
            )
        return scale, 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(
            f"{name}: scale must be None, a number or a tensor, got {type(scale).__name__}"
        )
    if not math.isfinite(scale):
        raise ValueError(f"{name}: scale must be finite, got {scale}")
    return None, float(scale)


def _sizes(name: str, label: str, value: Any, dims: int, least: int) -> list[int]:
    """An int, or one int for each dimension, none below `least`."""
    values = [value] * dims if _is_int(value) else value
    if isinstance(values, str) or not isinstance(values, Sequence | torch.Size):
        raise TypeError(f"{name}: {label} must be an int or a tuple of {dims}, got {value!r}")
    values = list(values) * dims if len(values) == 1 else list(values)
    if len(values) != dims or not all(_is_int(v) for v in values):
        raise ValueError(f"{name}: {label} must be an int or {dims} ints, got {value!r}")
    if any(v < least for v in values):
        raise ValueError(f"{name}: {label} must be at least {least}, got {value!r}")
    return values


def _is_int(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _check_input(name: str, dims: int, input: Tensor, channels: int, rule: str) -> None:
    if input.dim() not in (dims + 1, dims + 2):
        raise ValueError(
            f"{name}: input must have {dims + 2} dimensions, or {dims + 1} without a batch, "
            f"got {tuple(input.shape)}"
        )
    if input.shape[-dims - 1] != channels:
        raise ValueError(
            f"{name}: input has {input.shape[-dims - 1]} channels and {rule} {channels}; "
            f"input is {tuple(input.shape)}"
        )


def _check_groups(name: str, groups: Any, label: str, channels: int) -> None:
    if not _is_int(groups) or groups < 1:
        raise ValueError(f"{name}: groups must be a positive int, got {groups!r}")
    if channels % groups:
        raise ValueError(f"{name}: groups must divide {label} ({channels}), got {groups}")


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
    _check_groups(name, groups, "the output channels", weight.shape[0])
    _check_input(
        name, dims, input, weight.shape[1] * groups, f"weight × groups ({groups}) asks for"
    )
    stride = _sizes(name, "stride", stride, dims, 1)
    dilation = _sizes(name, "dilation", dilation, dims, 1)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    extra: list[int] = []
    if isinstance(padding, str):
        padding, extra = _named_padding(name, padding, stride, reach)
    else:
        padding = _sizes(name, "padding", padding, dims, 0)
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


def _named_padding(
    name: str, padding: str, stride: list[int], reach: list[int]
) -> tuple[list[int], list[int]]:
    if padding == "valid":
        return [0] * len(reach), []
    if padding != "same":
        raise ValueError(f'{name}: padding must be ints, "same" or "valid", got {padding!r}')
    if any(s != 1 for s in stride):
        raise ValueError(f'{name}: padding="same" needs stride 1, got {tuple(stride)}')
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
    _check_groups(name, groups, "the input channels", weight.shape[0])
    _check_input(name, dims, input, weight.shape[0], "weight asks for")
    stride = _sizes(name, "stride", stride, dims, 1)
    dilation = _sizes(name, "dilation", dilation, dims, 1)
    padding = _sizes(name, "padding", padding, dims, 0)
    extra = _sizes(name, "output_padding", output_padding, dims, 0)
    for o, s, d in zip(extra, stride, dilation, strict=True):
        if o >= max(s, d):
            raise ValueError(
                f"{name}: output_padding must be smaller than stride or dilation, got "
                f"{tuple(extra)} with stride {tuple(stride)} and dilation {tuple(dilation)}"
            )
    for n, k, s, p, o, d in zip(
        input.shape[-dims:], weight.shape[2:], stride, padding, extra, dilation, strict=True
    ):
        if (n - 1) * s - 2 * p + d * (k - 1) + o + 1 < 1:
            raise ValueError(
                f"{name}: the output would be empty; input is {tuple(input.shape)}, "
                f"padding {tuple(padding)}: pad less"
            )
    return stride, padding, extra, groups, dilation
