"""The product of a layer, linear or a convolution, and its gradients."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cosnorm.ops.spec import Spec, memory_format

_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


def product(x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> Tensor:
    if spec.geometry is None:
        return F.linear(x, weight, bias)
    stride, padding, dilation, groups, _ = spec.geometry
    none = [0] * len(stride)
    z = torch.convolution(x, weight, bias, stride, padding, dilation, False, none, groups)
    return z.contiguous(memory_format=memory_format(x, weight))


def product_grad(
    g: Tensor, x: Tensor, w: Tensor, spec: Spec, need: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if spec.geometry is None:
        dx = g @ w if need[0] else None
        dw = g.t() @ x if need[1] else None
        return dx, dw, g.sum(0) if need[2] else None
    stride, padding, dilation, groups, _ = spec.geometry
    none, out = [0] * len(stride), [w.shape[0]]
    return _CONVOLUTION_BACKWARD(
        g, x, w, out, stride, padding, dilation, False, none, groups, list(need)
    )
