"""The three kinds of op: linear, convolution and transposed convolution.

Each has forward, backward and shapes under one signature, from which `ops` makes ops of
torch.library; FAMILIES says by name which op is of which kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from cosnorm import algorithm, reference, transposed
from cosnorm.kernels.steps import LINEAR, Geometry, Kept, output_size

_CONV = "int[] stride, int[] padding, int[] dilation, int groups, "
_TRANSPOSE = "int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation, "


@dataclass(frozen=True)
class Family:
    """What the ops of one kind have in common; the static arguments follow four tensors."""

    statics: str
    reference: Callable[..., reference.Result]
    forward: Callable[..., Kept]
    backward: Callable[..., Sequence[Tensor | None]]
    shapes: Callable[..., tuple[Sequence[int], Sequence[int], int]]


def _linear_forward(input, weight, bias, scale, *tail) -> Kept:
    if input.dim() == 2:
        return algorithm.forward(input, weight, bias, scale, LINEAR, *tail)
    rows = input.reshape(-1, input.shape[-1])
    kept = algorithm.forward(rows, weight, bias, scale, LINEAR, *tail)
    lead = input.shape[:-1]

    def unfold(map: Tensor) -> Tensor:
        return map.view(*lead, map.shape[-1]) if map.dim() == 2 else map

    return _each_map(kept, unfold)


def _each_map(kept: Kept, change: Callable[[Tensor], Tensor]) -> Kept:
    output, cosine, rnorm, mean = map(change, kept[:4])
    return Kept(output, cosine, rnorm, mean, *kept[4:])


def _linear_backward(grad, input, weight, bias, scale, kept, *tail):
    if input.dim() == 2:
        return algorithm.backward(grad, input, weight, bias, scale, kept, LINEAR, *tail)

    def fold(map: Tensor) -> Tensor:
        return map.reshape(-1, map.shape[-1]) if map.numel() or map.dim() > 1 else map

    kept = _each_map(kept, fold)
    dx, *rest = algorithm.backward(
        fold(grad), fold(input), weight, bias, scale, kept, LINEAR, *tail
    )
    return None if dx is None else dx.view(input.shape), *rest


def _conv_forward(input, weight, bias, scale, stride, padding, dilation, groups, *tail) -> Kept:
    geometry = Geometry.of(stride, padding, dilation, groups)
    return algorithm.forward(input, weight, bias, scale, geometry, *tail)


def _conv_backward(
    grad, input, weight, bias, scale, kept, stride, padding, dilation, groups, *tail
):
    geometry = Geometry.of(stride, padding, dilation, groups)
    return algorithm.backward(grad, input, weight, bias, scale, kept, geometry, *tail)


def _transpose_forward(input, weight, bias, scale, *statics) -> Kept:
    result = transposed.cosine_conv_transpose(input, weight, bias, scale, *statics)
    none = result.rnorm.new_empty(0)
    unit = result.output.new_empty(0)
    return Kept(result.output, result.cosine, none, none.clone(), none.clone(), unit)


def _transpose_backward(grad, input, weight, bias, scale, kept, *statics):
    geometry, tail = transposed.Geometry(*statics[:5]), statics[5:]
    return transposed.cosine_conv_transpose_backward(
        grad, input, weight, bias, scale, kept.output, kept.cosine, geometry, *tail
    )


def _linear_shapes(input, weight, *_):
    return (*input.shape[:-1], weight.shape[0]), (*input.shape[:-1], 1), weight.shape[0]


def _conv_shapes(input, weight, stride, padding, dilation, groups, *_):
    geometry = Geometry.of(stride, padding, dilation, groups)
    size = output_size(input.shape[2:], weight.shape[2:], geometry)
    batch, out = input.shape[0], weight.shape[0]
    return (batch, out, *size), (batch, groups, *size), out


def _transpose_shapes(input, weight, stride, padding, output_padding, groups, dilation, *_):
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, o, d in zip(
            input.shape[2:],
            weight.shape[2:],
            stride,
            padding,
            output_padding,
            dilation,
            strict=True,
        )
    ]
    return (input.shape[0], weight.shape[1] * groups, *size), (0,), 0


_CONVOLUTION = Family(_CONV, reference.cosine_conv, _conv_forward, _conv_backward, _conv_shapes)
_TRANSPOSED = Family(
    _TRANSPOSE,
    transposed.cosine_conv_transpose,
    _transpose_forward,
    _transpose_backward,
    _transpose_shapes,
)
FAMILIES = {
    "cosine_linear": Family(
        "", reference.cosine_linear, _linear_forward, _linear_backward, _linear_shapes
    ),
    **{f"cosine_conv{dims}d": _CONVOLUTION for dims in (1, 2, 3)},
    **{f"cosine_conv_transpose{dims}d": _TRANSPOSED for dims in (1, 2, 3)},
}
