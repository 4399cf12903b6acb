"""torch's container, for networks whose cosine convolutions follow one another."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from cosnorm.chain import Layer, chain, serves
from cosnorm.kernels.steps import Geometry
from cosnorm.nn.conv import (
    CosineConv1d,
    CosineConv2d,
    CosineConv3d,
    PearsonConv1d,
    PearsonConv2d,
    PearsonConv3d,
)

_KINDS = (CosineConv1d, CosineConv2d, CosineConv3d, PearsonConv1d, PearsonConv2d, PearsonConv3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Sequential(nn.Sequential):
    """`nn.Sequential` that runs neighbouring cosine or Pearson convolutions as one.

    Same arguments, state and results, to rounding. On a GPU, convolutions with fused ReLU that
    follow one another share the passes over what lies between them; everything else, and every
    layer with a hook, is called as torch calls it.

    Example:
        >>> Sequential(
        ...     CosineConv2d(3, 8, 3, activation="relu"), CosineConv2d(8, 8, 3, activation="relu")
        ... )(torch.rand(2, 3, 9, 9)).shape
        torch.Size([2, 8, 5, 5])
    """

    def forward(self, input: Any) -> Any:
        modules: list[Any] = list(self)
        while modules:
            ours = isinstance(input, Tensor) and not _has_any_global_hook()
            layers = _leading(modules) if ours else []
            if len(layers) > 1 and input.dim() == layers[0].weight.dim() and serves(input, layers):
                input = chain(input, layers, modules[0].centered)
                modules = modules[len(layers) :]
            else:
                input = modules.pop(0)(input)
        return input


def _leading(modules: Sequence[Any]) -> list[Layer]:
    """As many modules from the first on as can be one chain."""
    layers: list[Layer] = []
    bare = getattr(modules[0], "bias", None) is None
    for module in modules:
        if not _fits(module) or module.dims != modules[0].dims:
            break
        if module.centered != modules[0].centered or (module.bias is None) != bare:
            break
        geometry = Geometry(module.stride, module.padding, module.dilation, 1)
        layers.append(Layer(module.weight, module.bias, geometry))
    return layers


def _fits(module: Any) -> bool:
    if type(module) not in _KINDS or any(getattr(module, name) for name in _HOOKS):
        return False
    plain = module.groups == 1 and module.padding_mode == "zeros" and module.scale is None
    return plain and module.activation == "relu" and not isinstance(module.padding, str)
