"""The layers as functions, argument for argument as torch.nn.functional's; ours are keyword-only.

    c = x·w / (|x| |w|), for `centered` (x-μx)·(w-μw) / (|x-μx| |w-μw|);    y = act(scale · c)

- With a bias the vectors are [x, 1] and [w, b].
- A zero vector, when centred a constant one, gives exactly 0 and passes exactly 0 gradient.
- |c| ≤ 1; norms, means and sums are float32 (float64 for float64), under autocast as well.
- Padding belongs to the receptive field: padded zeros count as entries.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from cosnorm import ops, reference, transposed
from cosnorm.checks import (
    check_choices,
    check_scale,
    check_tensors,
    conv_sizes,
    transpose_sizes,
)

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

# Before 2.13 the compiler knows no answer; transforms inside a compiled region meet the ops then.
_COMPILES_THE_QUESTION = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

Size = int | Sequence[int]
Scale = float | Tensor | None


def cosine_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    centered: bool = False,
    scale: Scale = None,
    activation: str | None = None,
) -> Tensor:
    """Cosine similarity of each row of `input` with each row of `weight`.

    Args:
        input: (…, in), floating point.
        weight: (out, in).
        bias: (out,), the last entry of each weight vector; the input's is 1.
        centered: Pearson correlation instead of the cosine.
        scale: None, a number, or a tensor of shape (1,) or (out,), which may be learned.
        activation: None or "relu", fused.

    Returns:
        (…, out), in the dtype of `input`, under autocast in the autocast dtype.

    Example:
        >>> cosine_linear(torch.randn(8, 3, 16), torch.randn(5, 16)).shape
        torch.Size([8, 3, 5])
    """
    check_tensors("cosine_linear", input, weight, bias, weight_dims=2)
    if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"cosine_linear: the last dimension of input must equal that of weight, but input is "
            f"{tuple(input.shape)} and weight {tuple(weight.shape)}; pass weight as (out, in)"
        )
    tail = _tail("cosine_linear", scale, activation, centered, weight.shape[0], weight)
    return _apply("cosine_linear", reference.cosine_linear, input, weight, bias, (), tail)


def _tail(
    name: str, scale: Scale, activation: str | None, centered: bool, units: int, weight: Tensor
) -> tuple[Tensor | None, float, bool, bool]:
    """(scale tensor, gain, centered, relu) from the arguments that are ours."""
    check_choices(name, centered, activation)
    tensor, gain = check_scale(name, scale, units, weight)
    return tensor, gain, centered, activation == "relu"


def _apply(
    name: str,
    formula: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: tuple,
    tail: tuple[Tensor | None, float, bool, bool],
) -> Tensor:
    scale, *rest = tail
    input = autocast(input)
    bias = None if bias is None else bias.to(weight.dtype)  # they differ under autocast at most
    if exporting() or transforming():
        return formula(input, weight, bias, scale, *geometry, *rest).output
    return ops.call(name, input, weight, bias, scale, *geometry, *rest)


def autocast(input: Tensor) -> Tensor:
    """Only the input is cast: the weights are normalised first, and rounded once after that."""
    device = input.device.type
    if not reference.autocasting(device) or input.dtype == torch.float64:
        return input
    return input.to(torch.get_autocast_dtype(device))


def transforming() -> bool:
    """Whether torch.func or forward-mode differentiation is under way.

    Torch differentiates the reference by any of them, the ops by none: the autograd.Function that
    torch.library makes of an op refuses torch.func, and has no forward mode.
    """
    if torch.compiler.is_compiling() and not _COMPILES_THE_QUESTION:
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def exporting() -> bool:
    """Whether torch.export is tracing: it gets the formula, in torch's own ops.

    An op of ours would need its decomposition in torch's table for exporters to take it apart, and
    Inductor refuses ops that have one where CI is set. Not torch.compiler.is_exporting(): to torch
    2.11 that is true under torch.compile as well.
    """
    return torch.compiler._is_exporting_flag


def _unbatched(output: Tensor) -> Tensor:
    """Without its batch dimension; no view, which callers could not change in place."""
    return torch.ops.aten._unsafe_view(output, output.shape[1:])


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
    activation: str | None,
) -> Tensor:
    name = f"cosine_conv{dims}d"
    check_tensors(name, input, weight, bias, weight_dims=dims + 2, groups=groups)
    sizes = conv_sizes(name, dims, input, weight, stride, padding, dilation, groups)
    tail = _tail(name, scale, activation, centered, weight.shape[0], weight)
    batched = input if input.dim() == dims + 2 else input.unsqueeze(0)
    if sizes.extra:  # padding that differs from side to side belongs to the field all the same
        batched = F.pad(batched, sizes.extra)
    geometry = (sizes.stride, sizes.padding, sizes.dilation, groups)
    output = _apply(name, reference.cosine_conv, batched, weight, bias, geometry, tail)
    return output if input.dim() == dims + 2 else _unbatched(output)


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
    activation: str | None = None,
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
    activation: str | None = None,
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
    activation: str | None = None,
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
    activation: str | None,
) -> Tensor:
    name = f"cosine_conv_transpose{dims}d"
    check_tensors(name, input, weight, bias, weight_dims=dims + 2, groups=groups, transposed=True)
    geometry = transpose_sizes(
        name, dims, input, weight, stride, padding, output_padding, groups, dilation
    )
    tail = _tail(name, scale, activation, centered, weight.shape[1] * groups, weight)
    batched = input if input.dim() == dims + 2 else input.unsqueeze(0)
    formula = transposed.cosine_conv_transpose
    output = _apply(name, formula, batched, weight, bias, geometry, tail)
    return output if input.dim() == dims + 2 else _unbatched(output)


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
    activation: str | None = None,
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
    activation: str | None = None,
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
    activation: str | None = None,
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
