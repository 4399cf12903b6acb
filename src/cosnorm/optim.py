"""What an optimiser should know of layers whose outputs do not change with the length of weights.

    y(a·w) = y(w) for a > 0,   so   ⟨w, dw⟩ = 0   and   |w|² grows by lr²|dw|² a step of plain SGD

The direction w/|w| moves by `lr/|w|²` for a gradient at unit length: the effective learning rate.
(Adam and its kin divide by the gradient's size, which goes as 1/|w|: there it is `lr/|w|`.)
Weight decay does not make such a network simpler, it keeps |w| short and so the rate high.
A Pearson layer knows its weights without their mean: there w is w − μw throughout.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from cosnorm.nn.baselines import _Batch, _Weight
from cosnorm.nn.conv import _CosineConv, _CosineConvTranspose
from cosnorm.nn.dead import weight_rows
from cosnorm.nn.linear import CosineLinear
from cosnorm.nn.sparse import SparseLinear

__all__ = ["effective_lr", "param_groups", "project", "project_after_step", "translated_lr"]

_SIMILAR = (CosineLinear, _CosineConv, _CosineConvTranspose)
_SPARSE = ("cosine", "pearson", "weight", "batch")
_ADAMS_KIN = (
    torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.SparseAdam,
)  # fmt: skip
_CONSTANT = 1e-12  # a centred vector that is shorter, beside the whole, is rounding: no direction


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
    dimensions: other biases, gains, learned scales. A weight that another module has too, such as
    an embedding tied to a head, decays: there its length counts.

    >>> from cosnorm.nn import PearsonLinear
    >>> model = nn.Sequential(PearsonLinear(8, 4), nn.Linear(4, 2))
    >>> [len(group["params"]) for group in param_groups(model, 0.1)]
    [1, 2]
    """
    _check_model(model)
    is_number = isinstance(weight_decay, int | float) and not isinstance(weight_decay, bool)
    if not (is_number and 0 <= weight_decay < math.inf):
        raise ValueError(f"weight_decay must be a number of at least 0; got {weight_decay!r}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"the parameters of model must have shapes; {name} has none yet: run the model on "
                "a batch first"
            )
    free = {parameter for layer in _alone(model).values() for parameter in _vectors(layer)}
    groups: dict[float, list[nn.Parameter]] = {float(weight_decay): [], 0.0: []}
    for parameter in model.parameters():
        is_spared = parameter in free or parameter.dim() < 2
        groups[0.0 if is_spared else float(weight_decay)].append(parameter)
    return [{"params": some, "weight_decay": decay} for decay, some in groups.items() if some]


@torch.no_grad()
def project(model: nn.Module) -> None:
    """Give the weight vectors of scale-free layers length one; what the model computes stays.

    In place, but for vectors without a direction, parameters that are not trained, and weights that
    other modules have too (an embedding tied to a head). With a bias, which is an entry more of a
    similarity layer's vectors, both are scaled. The vectors of Pearson layers lose their mean. The
    running statistics of batch norm blocks go along; their eps counts for more or less then.
    """
    for layer in _projected(model).values():
        if not _is_trained(layer):
            continue
        found, means = lengths(layer), _means(layer)
        factors, means = torch.where(found > 0, 1 / found, 1.0), torch.where(found > 0, means, 0.0)
        spread = [_per_unit(layer, values) for values in (means, factors)]
        _move(layer.weight, *spread)
        if len(_vectors(layer)) > 1:
            _move(layer.bias, means, factors)
        for norm in layer.children():
            if (
                isinstance(norm, _BatchNorm)
                and norm.running_mean is not None
                and norm.running_var is not None
            ):
                shift = 0 if getattr(layer, "bias", None) is None else layer.bias.double()
                norm.running_mean.copy_((norm.running_mean.double() - shift) * factors + shift)
                norm.running_var.copy_(norm.running_var * factors.square())


def _is_trained(layer: nn.Module) -> bool:
    """Whether all entries of the vectors are: a part alone can't be given another length."""
    return all(vector.requires_grad for vector in _vectors(layer))


def _projected(model: nn.Module) -> dict[str, Any]:
    """The layers whose vectors `project` gives length one; raises where it cannot."""
    layers = _alone(_check_model(model))
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer):
            raise ValueError(
                f"the weights that are projected must be parameters; {name} computes its own by a "
                "parametrization: call torch.nn.utils.parametrize.remove_parametrizations first"
            )
        _check_in_memory(name, layer)
    return layers


def _alone(model: nn.Module) -> dict[str, Any]:
    """The scale-free layers whose vectors are nobody else's, or of layers just like them; of those
    that share them, the first.
    """
    holders: dict[Any, list[nn.Module]] = {}
    for module in model.modules():
        for held in (*module._parameters.values(), *module._modules.values()):
            if held is not None:
                holders.setdefault(held, []).append(module)
    layers = scale_free(model)
    found = {}
    for name, layer in layers.items():
        norms = [norm for norm in layer.children() if isinstance(norm, _BatchNorm)]
        others = [m for held in (*_vectors(layer), *norms) for m in holders.get(held, ())]
        if all(m in layers.values() and _like(m) == _like(layer) for m in others):
            found.setdefault(_like(layer), (name, layer))
    return dict(found.values())


def _like(layer: Any) -> tuple:
    """What two layers must have in common for one change of their vectors to suit both."""
    if parametrize.is_parametrized(layer) or _has_batch_norm(layer):
        return (layer,)
    kinds = (_is_centered(layer), getattr(layer, "transposed", False), getattr(layer, "groups", 1))
    return (*map(id, _vectors(layer)), *kinds)


def _has_batch_norm(layer: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in layer.children())


def _move(parameter: Tensor, means: Tensor, factors: Tensor) -> None:
    parameter.copy_((parameter.double() - means) * factors)


def project_after_step(optimizer: torch.optim.Optimizer, model: nn.Module) -> RemovableHandle:
    """`project` the model now and after every step of the optimiser; `remove()` ends it.

    The learning rate is then the effective one: `lr/|w|²` of before, as `effective_lr` tells it
    (for Adam and its kin, whose steps do not depend on the gradient's size, `lr/|w|`). Optimisers
    that wrap another, as Accelerate's and Opacus' do, are taken too.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        cosnorm.optim.project_after_step(optimizer, model)
    """
    inner = _innermost(optimizer)
    updated = {p for group in inner.param_groups for p in group["params"]}
    layers = _projected(model)
    if not layers:
        raise ValueError(
            "the model must have scale-free layers whose weights no other module has; it has none: "
            "convert it first"
        )
    if not any(layer.weight in updated and _is_trained(layer) for layer in layers.values()):
        raise ValueError(
            "the optimiser must update weights of scale-free layers of the model that no other "
            f"module has, with their biases; it updates none of {len(layers)}: make it from this "
            "model's parameters, after conversion"
        )
    project(model)
    return inner.register_step_post_hook(lambda *_: project(model))


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimiser that makes the steps, out of those that wrap it."""
    for name in ("optimizer", "original_optimizer"):
        inside = getattr(optimizer, name, None)
        if isinstance(inside, torch.optim.Optimizer):
            return _innermost(inside)
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer must be a torch.optim.Optimizer; got {kind} {optimizer!r}")
    return optimizer


def _check_in_memory(name: str, layer: Any) -> None:
    for vector in _vectors(layer):
        if vector.is_meta or isinstance(vector, UninitializedParameter):
            raise ValueError(
                f"the weights of model must be in memory; those of {name} are not yet: load them, "
                "or run the model on a batch first"
            )


def _check_model(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__} {model!r}")
    return model


@torch.no_grad()
def effective_lr(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """How far a step turns the weight vectors of every scale-free layer that the optimiser updates,
    mean over its outputs: a number to log.

    `lr/|w|²`, times the gradient at length one; with Adam, AdamW, Adamax, NAdam, RAdam, RMSprop,
    Adagrad and SparseAdam, which divide by the gradient's size, `lr/|w|`.

    Vectors without a direction (zero, for Pearson constant) never turn, and count as 0.

    >>> from cosnorm.nn import PearsonLinear
    >>> model = nn.Sequential(PearsonLinear(8, 4))
    >>> effective_lr(model, torch.optim.SGD(model.parameters(), lr=1.0)).keys()
    dict_keys(['0'])
    """
    inner = _innermost(optimizer)
    groups, power = inner.param_groups, 1 if isinstance(inner, _ADAMS_KIN) else 2
    rates = {p: group["lr"] for group in groups for p in group["params"]}
    layers = scale_free(_check_model(model))
    updated = {name: layer for name, layer in layers.items() if layer.weight in rates}
    for name, layer in updated.items():
        _check_in_memory(name, layer)
    return {
        name: turning(lengths(layer), float(rates[layer.weight]), power)
        for name, layer in updated.items()
    }


def turning(lengths: Tensor, lr: float, power: int = 2) -> float:
    """`lr/|w|²`, mean over vectors of these lengths; those without a direction never turn."""
    return float(torch.where(lengths == 0, 0.0, lr / lengths**power).mean())


@torch.no_grad()
def translated_lr(model: nn.Module, lr: float, *inputs: Any, **options: Any) -> dict[str, float]:
    """The rate of plain SGD at which each similarity layer moves as a dot product does at `lr`.

    A step changes an output of `w·x` by `lr·|x|²` times its gradient, and one of
    `s·cos(x, w)` by about `lr·s²/|w|²` times it, so the rate is `lr·(|x||w|/s)²`.

    model: with the weights that training begins from.
    inputs, options: of a call of the model, such as a batch; it runs once, in evaluation mode.
        Layers that it does not run are left out.

    Returns the rate of each layer by name; the median is a rate for all of them. The dot products
    are those of this model's inputs. Where `convert` dropped a norm in front of a layer, the model
    of before had others: its rate stays if the layer was calibrated.

    >>> from cosnorm.nn import CosineLinear
    >>> model = nn.Sequential(CosineLinear(8, 4), CosineLinear(4, 2))
    >>> translated_lr(model, 0.1, torch.randn(16, 8)).keys()
    dict_keys(['0', '1'])
    """
    is_number = isinstance(lr, int | float) and not isinstance(lr, bool)
    if not (is_number and 0 < lr < math.inf):
        raise ValueError(f"lr must be a number above 0, the rate of dot products; got {lr!r}")
    if not (inputs or options):
        raise TypeError("the rates depend on the sizes of inputs; got none: pass a batch after lr")
    found: dict[str, float] = {}

    def look(name: str) -> Any:
        def looked(layer: Any, arguments: Any, named: Any) -> None:
            x = arguments[0] if arguments else named["input"]
            if not isinstance(x, Tensor):  # the layer will say so
                return
            _check_in_memory(name, layer)
            if not x.numel():
                raise ValueError(
                    f"the batch must have rows; {name} got an input of shape {tuple(x.shape)}: "
                    "pass a batch as the model is trained on"
                )
            x2 = float(x.double().square().mean()) * _entries(layer)
            x2 += len(_vectors(layer)) - 1  # the 1 that meets a bias
            w2 = float(lengths(layer).square().mean())
            scale = getattr(layer, "scale", None)
            s = 1.0 if scale is None else float(torch.as_tensor(scale).double().mean())
            found.setdefault(name, lr * x2 * w2 / s**2 if s else math.inf)

        return looked

    similar = {n: m for n, m in _check_model(model).named_modules() if isinstance(m, _SIMILAR)}
    hooks = [
        layer.register_forward_pre_hook(look(name), with_kwargs=True)
        for name, layer in similar.items()
    ]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()(*inputs, **options)
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
    is_sparse = isinstance(layer, SparseLinear) and layer.mode in ("cosine", "pearson")
    is_joint = (isinstance(layer, _SIMILAR) or is_sparse) and layer.bias is not None
    return [layer.weight, layer.bias] if is_joint else [layer.weight]


@torch.no_grad()
def lengths(layer: Any) -> Tensor:
    """The length of each output's weight vector, in double precision; 0 without a direction."""
    rows = _rows(layer)
    whole = torch.linalg.vector_norm(rows, dim=1)
    if not _is_centered(layer):
        return whole
    centred = torch.linalg.vector_norm(rows - rows.mean(1, keepdim=True), dim=1)
    return torch.where(centred <= _CONSTANT * whole, 0.0, centred)  # what is no number stays one


def _means(layer: Any) -> Tensor:
    """What a layer takes away from each vector: its mean, or nothing."""
    rows = _rows(layer)
    return rows.mean(1) if _is_centered(layer) else rows.new_zeros(len(rows))


def _is_centered(layer: Any) -> bool:
    return getattr(layer, "centered", False) or getattr(layer, "method", None) == "pearson"


def _rows(layer: Any) -> Tensor:
    """The weight vectors as rows, a similarity's bias as their last entry, in double precision."""
    rows = weight_rows(layer).double()
    if len(_vectors(layer)) < 2:
        return rows
    return torch.cat([rows, layer.bias.detach().double().unsqueeze(1)], 1)


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
