"""What an optimiser should know of layers whose outputs do not change with the length of weights.

    y(a·w) = y(w) for a > 0,   so   ⟨w, dw⟩ = 0   and   |w|² grows by lr²|dw|² a step of plain SGD

The direction w/|w| moves by `lr/|w|²` for a gradient at unit length: the effective learning rate.
Weight decay does not make such a network simpler, it keeps |w| short and so the rate high.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cosnorm.nn.baselines import _Batch, _Weight
from cosnorm.nn.conv import _CosineConv, _CosineConvTranspose
from cosnorm.nn.dead import weight_rows
from cosnorm.nn.linear import CosineLinear
from cosnorm.nn.sparse import SparseLinear

__all__ = ["effective_lr", "param_groups", "project", "project_after_step", "translated_lr"]

_SIMILAR = (CosineLinear, _CosineConv, _CosineConvTranspose)
_SPARSE = ("cosine", "pearson", "weight", "batch")


def scale_free(model: nn.Module) -> dict[str, Any]:
    """The layers, by name, whose outputs do not change with the length of their weight vectors.

    Similarity layers, and the blocks of batch and weight normalisation.
    """
    kinds = (*_SIMILAR, _Batch, _Weight)
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) or (isinstance(layer, SparseLinear) and layer.method in _SPARSE)
    }


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for any optimiser of torch: what decays, and what is spared.

    Spared are the weights (and biases) of scale-free layers, and every parameter of fewer than two
    dimensions: other biases, gains, learned scales.

    >>> from cosnorm.nn import PearsonLinear
    >>> model = nn.Sequential(PearsonLinear(8, 4), nn.Linear(4, 2))
    >>> [len(group["params"]) for group in param_groups(model, 0.1)]
    [1, 2]
    """
    if not (isinstance(weight_decay, int | float) and 0 <= weight_decay < math.inf):
        raise ValueError(f"weight_decay must be a number of at least 0; got {weight_decay!r}")
    free = {parameter for layer in scale_free(model).values() for parameter in _vectors(layer)}
    groups: dict[float, list[nn.Parameter]] = {float(weight_decay): [], 0.0: []}
    for parameter in model.parameters():
        is_spared = parameter in free or parameter.dim() < 2
        groups[0.0 if is_spared else float(weight_decay)].append(parameter)
    return [{"params": some, "weight_decay": decay} for decay, some in groups.items() if some]


@torch.no_grad()
def project(model: nn.Module) -> None:
    """Give the weight vectors of scale-free layers length one; what the model computes stays.

    In place, but for vectors of zeros and parameters that are not trained. With a bias, which is an
    entry more of a similarity layer's vectors, both are scaled.
    """
    for layer in scale_free(model).values():
        if not layer.weight.requires_grad:
            continue
        inverse = 1 / _lengths(layer)
        inverse = torch.where(inverse.isfinite(), inverse, 1.0)
        layer.weight.mul_(_per_unit(layer, inverse).to(layer.weight.dtype))
        if len(_vectors(layer)) > 1:
            layer.bias.mul_(inverse.to(layer.bias.dtype))


def project_after_step(optimizer: torch.optim.Optimizer, model: nn.Module) -> RemovableHandle:
    """`project` the model now and after every step of the optimiser; `remove()` ends it.

    The learning rate is then the effective one: `lr/|w|²` of before, as `effective_lr` tells it
    (for Adam and its kin, whose steps do not depend on the gradient's size, `lr/|w|`).

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        cosnorm.optim.project_after_step(optimizer, model)
    """
    updated = {p for group in optimizer.param_groups for p in group["params"]}
    layers = scale_free(model)
    if not any(layer.weight in updated for layer in layers.values()):
        raise ValueError(
            "the optimiser must update the weights of scale-free layers of the model; it updates "
            f"none of {len(layers)}: make it from this model's parameters, after conversion"
        )
    project(model)
    return optimizer.register_step_post_hook(lambda *_: project(model))


@torch.no_grad()
def effective_lr(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """`lr/|w|²` of every scale-free layer, mean over its outputs: a number to log.

    >>> from cosnorm.nn import PearsonLinear
    >>> model = nn.Sequential(PearsonLinear(8, 4))
    >>> effective_lr(model, torch.optim.SGD(model.parameters(), lr=1.0)).keys()
    dict_keys(['0'])
    """
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {
        name: float((float(rates[layer.weight]) / _lengths(layer).square()).mean())
        for name, layer in scale_free(model).items()
        if layer.weight in rates
    }


@torch.no_grad()
def translated_lr(model: nn.Module, lr: float, *inputs: Any) -> dict[str, float]:
    """The rate of plain SGD at which each similarity layer moves as a dot product does at `lr`.

    A step changes an output of `w·x` by `lr·|x|²` times its gradient, and one of
    `s·cos(x, w)` by about `lr·s²/|w|²` times it, so the rate is `lr·(|x||w|/s)²`.

    model: with the weights that training begins from. inputs: of a call of the model, such as a
    batch; it runs once, in evaluation mode. Layers that it does not run are left out.

    Returns the rate of each layer by name; the median is a rate for all of them.

    >>> from cosnorm.nn import CosineLinear
    >>> model = nn.Sequential(CosineLinear(8, 4), CosineLinear(4, 2))
    >>> translated_lr(model, 0.1, torch.randn(16, 8)).keys()
    dict_keys(['0', '1'])
    """
    found: dict[str, float] = {}

    def look(name: str) -> Any:
        def looked(layer: Any, arguments: Any) -> None:
            x2 = float(arguments[0].double().square().mean()) * _entries(layer)
            w2 = float(_lengths(layer).square().mean())
            scale = getattr(layer, "scale", None)
            s = 1.0 if scale is None else float(torch.as_tensor(scale).double().mean())
            found.setdefault(name, lr * x2 * w2 / s**2)

        return looked

    similar = {n: m for n, m in model.named_modules() if isinstance(m, _SIMILAR)}
    hooks = [layer.register_forward_pre_hook(look(name)) for name, layer in similar.items()]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    if not found:
        raise ValueError(
            f"the model must run a similarity layer; it has {len(similar)} and ran none: convert "
            "it first"
        )
    return found


def _vectors(layer: Any) -> list[Any]:
    """The parameters that make up the weight vectors: a similarity's bias is an entry of them."""
    is_joint = isinstance(layer, _SIMILAR) and layer.bias is not None
    return [layer.weight, layer.bias] if is_joint else [layer.weight]


def _lengths(layer: Any) -> Tensor:
    """The length of each output's weight vector, in double precision."""
    lengths = torch.linalg.vector_norm(weight_rows(layer), dim=1, dtype=torch.float64)
    joint = len(_vectors(layer)) > 1
    return torch.hypot(lengths, layer.bias.detach().double()) if joint else lengths


def _entries(layer: Any) -> int:
    return weight_rows(layer).shape[1]


def _per_unit(layer: Any, values: Tensor) -> Tensor:
    """One number for each output, shaped to multiply the weight."""
    weight = layer.weight
    if not getattr(layer, "transposed", False):
        return values.view(-1, *[1] * (weight.dim() - 1))
    if weight.dim() == 2:
        return values.view(1, -1)
    inside = weight.shape[0] // layer.groups
    spread = values.view(layer.groups, 1, -1).expand(-1, inside, -1).flatten(0, 1)
    return spread.view(*spread.shape, *[1] * (weight.dim() - 2))
