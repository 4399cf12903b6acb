"""The layers as functions, argument for argument as torch.nn.functional's; ours are keyword-only.

    c = x·w / (|x| |w|), for `centered` (x-μx)·(w-μw) / (|x-μx| |w-μw|);    y = act(scale · c)

- With a bias the vectors are [x, 1] and [w, b].
- A zero vector, when centred a constant one, gives exactly 0 and passes exactly 0 gradient.
- |c| ≤ 1; norms, means and sums are float32 (float64 for float64), under autocast as well.
- Padding belongs to the receptive field: padded zeros count as entries.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor

import cosnorm.ops.registration  # noqa: F401  # the ops of torch.library
from cosnorm.checks import (
    check_choices,
    check_scale,
    check_tensors,
    conv_sizes,
    transpose_sizes,
)
from cosnorm.ops.activations import Name as Activation
from cosnorm.ops.direct import Kind, call, compiled
from cosnorm.ops.reference import AUTOCAST_DEVICES, autocasting
from cosnorm.ops.spec import Geometry, Spec

__all__ = [
    "cosine_conv1d",
    "cosine_conv2d",
    "cosine_conv3d",
    "cosine_conv_transpose1d",
    "cosine_conv_transpose2d",
    "cosine_conv_transpose3d",
    "cosine_linear",
]

for _name in __all__:  # torch.fx traces a call of these, not the checks inside
    torch.fx.wrap(_name)

Size = int | Sequence[int]
Scale = float | Tensor | None


class _Checked(NamedTuple):
    """What the arguments of a call come to, once they have passed every check."""

    kind: Kind
    margins: list[int]  # padding that differs from side to side, for F.pad
    batched: bool


_known: dict[tuple, _Checked] = {}
_MOST = 8192  # calls that are remembered: inputs of many sizes must not fill memory


def _look(tensor: Any) -> Any:
    """What the checks and plans look at in an argument that may be a number or a tensor."""
    if isinstance(tensor, Tensor):
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.layout
    return type(tensor), tensor


def _called(check: Any, statics: tuple, input: Any, weight: Any, bias: Any, scale: Any) -> Tensor:
    """The layer, after its checks, whose result is remembered by all that they and the plans look
    at: a call like one before passes.

    Sizes are remembered as they are written: 1, 1.0 and True are equal, and not all of them pass.
    """
    if torch.compiler.is_compiling():
        checked = check(*statics, input, weight, bias, scale)
        return _applied(compiled, checked, autocast(input), weight, bias, scale)
    try:
        device = input.device
        cast, place = None, device.type
        if place in AUTOCAST_DEVICES and torch.is_autocast_enabled(place):
            cast = torch.get_autocast_dtype(place)
        key = (
            check, repr(statics), cast, input.shape, input.stride(), input.dtype, device,
            input.layout, weight.shape, weight.stride(), weight.dtype, weight.device, weight.layout,
            None if bias is None else _look(bias), None if scale is None else _look(scale),
        )  # fmt: skip
        checked = _known.get(key)
    except (TypeError, AttributeError, RuntimeError):  # no tensors, sparse or nested ones
        checked = check(*statics, input, weight, bias, scale)
        return _applied(call, checked, autocast(input), weight, bias, scale)
    if checked is None:
        checked = check(*statics, input, weight, bias, scale)
        # To a tracer sizes are tensors, of which no two are equal: nothing to remember.
        if not torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]  # documented
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = checked
    x = input
    if cast is not None and x.dtype is not cast and x.dtype is not torch.float64:
        x = x.to(cast)
    return _applied(call, checked, x, weight, bias, scale)


def _applied(
    call: Any, checked: _Checked, x: Tensor, weight: Tensor, bias: Tensor | None, scale: Scale
) -> Tensor:
    kind, margins, batched = checked
    if not batched:
        x = x.unsqueeze(0)
    if margins:  # belongs to the field all the same
        x = F.pad(x, margins)
    if bias is not None and bias.dtype is not weight.dtype:  # under autocast at most
        bias = bias.to(weight.dtype)
    output = call(x, weight, bias, scale if isinstance(scale, Tensor) else None, kind)
    return output if batched else _unbatched(output)


def autocast(input: Tensor) -> Tensor:
    """Only the input is cast: the weights are normalised first, and rounded once after that."""
    device = input.device.type
    if not autocasting(device) or input.dtype == torch.float64:
        return input
    return input.to(torch.get_autocast_dtype(device))


def _unbatched(output: Tensor) -> Tensor:
    """Without its batch dimension. Where there will be a backward, autograd has to see a change in
    place of what it keeps; else it is no view, which callers could not change everywhere.
    """
    if output.requires_grad:
        return output.squeeze(0)
    return torch.ops.aten._unsafe_view(output, output.shape[1:])


def _spec(
    name: str,
    centered: bool,
    activation: Any,
    scale: Any,
    units: int,
    weight: Tensor,
    geometry: Geometry | None = None,
) -> Spec:
    check_choices(name, centered, activation)
    gain = check_scale(name, scale, units, weight)
    return Spec("pearson" if centered else "cosine", activation, gain, geometry)


def _check_linear(centered, activation, input, weight, bias, scale) -> _Checked:
    check_tensors("cosine_linear", input, weight, bias, weight_dims=2)
    if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"cosine_linear: the last dimension of input must equal that of weight, but input is "
            f"{tuple(input.shape)} and weight {tuple(weight.shape)}; pass weight as (out, in)"
        )
    spec = _spec("cosine_linear", centered, activation, scale, weight.shape[0], weight)
    return _Checked(Kind(spec), [], True)


def _check_conv(
    dims, stride, padding, dilation, groups, centered, activation, input, weight, bias, scale
) -> _Checked:
    name = f"cosine_conv{dims}d"
    check_tensors(name, input, weight, bias, weight_dims=dims + 2, groups=groups)
    sizes = conv_sizes(name, dims, input, weight, stride, padding, dilation, groups)
    place = (tuple(sizes.stride), tuple(sizes.padding), tuple(sizes.dilation), groups)
    geometry = Geometry(*place)
    spec = _spec(name, centered, activation, scale, weight.shape[0], weight, geometry)
    return _Checked(Kind(spec), sizes.extra, input.dim() == dims + 2)


def _check_transpose(
    dims, stride, padding, output_padding, groups, dilation, centered, activation,
    input, weight, bias, scale,
) -> _Checked:  # fmt: skip
    name = f"cosine_conv_transpose{dims}d"
    check_tensors(name, input, weight, bias, weight_dims=dims + 2, groups=groups, transposed=True)
    stride, padding, extra, groups, dilation = transpose_sizes(
        name, dims, input, weight, stride, padding, output_padding, groups, dilation
    )
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups, tuple(extra))
    units = weight.shape[1] * groups
    spec = _spec(name, centered, activation, scale, units, weight, geometry)
    return _Checked(Kind(spec), [], input.dim() == dims + 2)


def cosine_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """Cosine similarity of each row of `input` with each row of `weight`.

    Args:
        input: (…, in), floating point.
        weight: (out, in).
        bias: (out,), the last entry of each weight vector; the input's is 1.
        centered: Pearson correlation instead of the cosine.
        scale: None, a number, or a tensor of shape (1,) or (out,), which may be learned.
        activation: None, "relu", "gelu", "silu" or "hardswish", fused.

    Returns:
        (…, out), in the dtype of `input`, under autocast in the autocast dtype.

    Example:
        >>> cosine_linear(torch.randn(8, 3, 16), torch.randn(5, 16)).shape
        torch.Size([8, 3, 5])
    """
    return _called(_check_linear, (centered, activation), input, weight, bias, scale)


def _convolution(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    centered: bool,
    scale: Scale,
    activation: Activation | None,
) -> Tensor:
    statics = (dims, stride, padding, dilation, groups, centered, activation)
    return _called(_check_conv, statics, input, weight, bias, scale)


def cosine_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """Cosine similarity of each receptive field of `input` (N, C, L) with each filter.

    The arguments are those of torch.nn.functional.conv1d, then those of cosine_linear.

    Example:
        >>> cosine_conv1d(torch.randn(2, 4, 9), torch.randn(8, 4, 3), padding="same").shape
        torch.Size([2, 8, 9])
    """
    return _convolution(
        1, input, weight, bias, stride, padding, dilation, groups, centered, scale, activation
    )


def cosine_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """Cosine similarity of each receptive field of `input` (N, C, H, W) with each filter.

    The arguments are those of torch.nn.functional.conv2d, then those of cosine_linear.

    Example:
        >>> cosine_conv2d(torch.randn(2, 4, 9, 9), torch.randn(8, 4, 3, 3), padding=1).shape
        torch.Size([2, 8, 9, 9])
    """
    return _convolution(
        2, input, weight, bias, stride, padding, dilation, groups, centered, scale, activation
    )


def cosine_conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """Cosine similarity of each receptive field of `input` (N, C, D, H, W) with each filter.

    The arguments are those of torch.nn.functional.conv3d, then those of cosine_linear.

    Example:
        >>> cosine_conv3d(torch.randn(2, 4, 5, 6, 7), torch.randn(8, 4, 3, 3, 3)).shape
        torch.Size([2, 8, 3, 4, 5])
    """
    return _convolution(
        3, input, weight, bias, stride, padding, dilation, groups, centered, scale, activation
    )


def _transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
    centered: bool,
    scale: Scale,
    activation: Activation | None,
) -> Tensor:
    statics = (dims, stride, padding, output_padding, groups, dilation, centered, activation)
    return _called(_check_transpose, statics, input, weight, bias, scale)


def cosine_conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """Cosine similarity of the inputs that reach an output with the taps by which they do.

    The arguments are those of torch.nn.functional.conv_transpose1d, then those of cosine_linear.
    An output that no input reaches is 0 (with a bias, the similarity of [1] and [b]).

    Example:
        >>> cosine_conv_transpose1d(torch.randn(2, 4, 9), torch.randn(4, 8, 3), stride=2).shape
        torch.Size([2, 8, 19])
    """
    return _transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation,
        centered, scale, activation,
    )  # fmt: skip


def cosine_conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """As cosine_conv_transpose1d, over (N, C, H, W).

    Example:
        >>> cosine_conv_transpose2d(torch.randn(2, 4, 5, 5), torch.randn(4, 8, 3, 3)).shape
        torch.Size([2, 8, 7, 7])
    """
    return _transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation,
        centered, scale, activation,
    )  # fmt: skip


def cosine_conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: Activation | None = None,
) -> Tensor:
    """As cosine_conv_transpose1d, over (N, C, D, H, W).

    Example:
        >>> cosine_conv_transpose3d(torch.randn(2, 4, 3, 3, 3), torch.randn(4, 8, 2, 2, 2)).shape
        torch.Size([2, 8, 4, 4, 4])
    """
    return _transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation,
        centered, scale, activation,
    )  # fmt: skip
