"""Scales from a batch of data: a converted network whose activations keep the size they had.

    scale = ± rms(z) / rms(c)      of every output over the batch; z before conversion, c after it

A norm behind the layer that goes may have turned an output round; then the scale is negative. A
similarity has forgotten the lengths |x| and |w|; the scale puts their mean back, so a cosine layer
whose inputs are all of one length computes what it did before. Layers are calibrated in the order
in which they run, each on what the ones before it, already calibrated, give it.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.weak import WeakTensorKeyDictionary

from cosnorm.conversion.layers import graft
from cosnorm.conversion.norm_kinds import vanish
from cosnorm.conversion.trial import (
    Example,
    arguments_of,
    check_in_memory,
    copy_of,
    leave_fast_path,
)
from cosnorm.nn import CosineLinear

Moments = tuple[Tensor, Tensor]


class Calibration(NamedTuple):
    """What a batch says, for the modules of the model that was not run: nothing is changed yet."""

    scales: dict[nn.Module, Tensor]
    statistics: dict[nn.Module, Moments]  # running mean and variance of batch norms


class _Rehearsal:
    """A copy of a model, on which the conversion is tried out."""

    def __init__(self, model: nn.Module, batch: Example) -> None:
        self.arguments, self.options = arguments_of(batch, "calibrate")
        check_in_memory(model, "calibrate")
        self.copy = copy_of(model, copy.deepcopy, "calibrate").eval()
        pairs = zip(model.modules(), self.copy.modules(), strict=True)
        self.of = dict(pairs)  # the copy of each module
        for module in self.copy.modules():
            leave_fast_path(module)
            if _keeps_statistics(module):
                # By the batch, before as after: of a new model the running ones say nothing. What
                # the norm then has is what the batch has.
                module.training, module.momentum = True, 1.0  # pyright: ignore

    def run(
        self,
        hooks: Mapping[nn.Module, Callable[..., Any]],
        before: Mapping[nn.Module, Callable[..., Any]] | None = None,
    ) -> None:
        """Call the copy, with a hook on some of its modules: (module, arguments, options, y).

        before: hooks that come before a module: (module, arguments, options).
        """
        handles = [
            module.register_forward_hook(hook, with_kwargs=True) for module, hook in hooks.items()
        ]
        handles += [
            module.register_forward_pre_hook(hook, with_kwargs=True)
            for module, hook in (before or {}).items()
        ]
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                self.copy(*self.arguments, **self.options)
        except Exception as error:
            raise ValueError(
                "calibrate must be a batch that the model takes, of several rows where it has "
                f"batch norms; it raised {type(error).__name__}: {error}; pass the input, a tuple "
                "of arguments or a dict of keyword arguments"
            ) from error
        finally:
            for handle in handles:
                handle.remove()


@torch.no_grad()
def calibrated(model: nn.Module, plan: Any, batch: Example) -> Calibration:
    """The scales of the layers that `plan` converts, and the statistics of batch norms after it.

    plan: a `cosnorm.conversion.planning.Plan`. Layers that the batch does not run, or runs on zeros
    alone, have no scale, nor have those that are initialised anew.

    Raises ValueError for a batch that the model does not take or that gives no finite numbers, and
    for one that runs none of the layers, or all of them on zeros.
    """
    if not plan.patterns:
        raise ValueError(
            "calibrate is for layers that are converted; the model has none: leave calibrate out, "
            "or print the account to see why each was left"
        )
    rehearsal = _Rehearsal(model, batch)
    wanted = _sizes_before(rehearsal, plan)
    _convert(rehearsal, plan)
    scales: dict[nn.Module, Tensor] = {}
    hooks = {
        rehearsal.of[layer]: _scaling(layer, size, layer in plan.heads, scales)
        for layer, size in wanted.items()
    }
    rehearsal.run(hooks)
    for layer, scale in scales.items():
        dtype = plan.patterns[layer].weight.dtype
        if not bool(scale.to(dtype).isfinite().all()):
            name = next(name for name, module in plan.names.items() if module is layer)
            raise ValueError(
                f"calibrate must give scales that {dtype} holds; that of {name} goes up to "
                f"{float(scale.abs().max()):.3g}: convert the model in a wider dtype, or leave "
                "calibrate out"
            )
    if wanted and not scales:
        raise ValueError(
            f"calibrate must give layers that are converted more than zeros; all of {len(wanted)} "
            "have similarities of zero on it, as of rows of zeros, of one number or out of range: "
            "pass a batch as the model is trained on"
        )
    kept = (module for module in model.modules() if module not in plan.dropped)
    norms = [norm for norm in kept if _keeps_statistics(norm)]
    statistics = {norm: _statistics(rehearsal.of[norm]) for norm in norms}
    return Calibration(scales, statistics)


def _sizes_before(rehearsal: _Rehearsal, plan: Any) -> dict[nn.Module, Tensor]:
    """The root mean square of each output of the layers to be converted.

    Where a norm that goes has followed a layer, it is that of the norm's, and negative where the
    norm has turned the output round.
    """
    sizes: dict[nn.Module, Tensor] = {}
    makers = WeakTensorKeyDictionary()  # the layer of each output

    def noted(original: nn.Module) -> Callable[..., None]:
        def hook(layer: nn.Module, _: Any, __: Any, output: Tensor) -> None:
            makers[output] = original
            if (size := _rms(output, layer)) is not None:
                sizes.setdefault(original, size)

        return hook

    def first(inputs: tuple, options: dict[str, Any]) -> Tensor:
        return next(iter((*inputs, *options.values())))

    def normalised(given: Tensor, output: Tensor) -> None:
        maker = makers.get(given)
        layer = None if maker is None else rehearsal.of[maker]
        if maker is not None and layer is not None and (size := _rms(output, layer)) is not None:
            sizes[maker] = torch.where(_turned(given, output, layer), -size, size)

    def replaced(norm: nn.Module, inputs: tuple, options: dict[str, Any], output: Tensor) -> None:
        normalised(first(inputs, options), output)

    given: dict[nn.Module, Tensor] = {}  # to a norm that goes on with an activation of its own

    def entered(norm: nn.Module, inputs: tuple, options: dict[str, Any]) -> None:
        given[norm] = first(inputs, options)

    def going_on(norm: nn.Module) -> Callable[..., None]:
        return lambda _, inputs, options: normalised(given.pop(norm), first(inputs, options))

    hooks = {rehearsal.of[layer]: noted(layer) for layer in plan.patterns}
    before: dict[nn.Module, Callable[..., None]] = {}
    for norm in (rehearsal.of[norm] for norm in plan.dropped):
        inside = next(norm.children(), None)
        if inside is None:
            hooks[norm] = replaced
        else:
            before |= {norm: entered, inside: going_on(norm)}
    rehearsal.run(hooks, before)
    if not sizes:
        raise ValueError(
            f"calibrate must run layers that are converted; it ran none of {len(plan.patterns)} "
            "on any rows: pass a batch that the whole model takes, or leave calibrate out"
        )
    for layer, size in sizes.items():
        if not bool(size.isfinite().all()):
            name = next(name for name, module in plan.names.items() if module is layer)
            raise ValueError(
                f"calibrate must give finite activations; the outputs of {name} have no finite "
                "size: pass a batch as the model is trained on, with rows, of finite numbers, in a "
                "dtype that holds them"
            )
    # What is initialised anew has no size of its own.
    return {layer: size for layer, size in sizes.items() if layer not in plan.fresh}


def _convert(rehearsal: _Rehearsal, plan: Any) -> None:
    for layer, pattern in plan.patterns.items():
        graft(rehearsal.of[layer], copy.deepcopy(pattern))
        rehearsal.of[layer].scale = None  # pyright: ignore[reportArgumentType]
        rehearsal.of[layer].activation = None  # pyright: ignore[reportArgumentType]  # behind it
    for layer in plan.fresh:
        rehearsal.of[layer].reset_parameters()  # pyright: ignore[reportCallIssue]
    for norm in plan.dropped:
        vanish(rehearsal.of[norm])


def _scaling(
    original: nn.Module, wanted: Tensor, is_head: bool, scales: dict[nn.Module, Tensor]
) -> Callable[..., Tensor]:
    """A hook that finds a layer's scale when it first runs, and gives the scaled output."""

    def hook(layer: nn.Module, _: Any, __: Any, output: Tensor) -> Tensor:
        if original not in scales:
            found = _rms(output, layer)
            if found is None or not bool(found.any()):  # no rows, or zeros: that says nothing
                return output
            scales[original] = _scale(wanted, found, is_head)
        scale = scales[original].to(output.dtype)
        return output * scale.view(-1, *[1] * _dims(layer))

    return hook


def _scale(wanted: Tensor, found: Tensor, is_head: bool) -> Tensor:
    """One number for a head, whose outputs are compared with each other; else one each.

    What was zero, as behind a norm whose gain is zero, stays zero; the scale learns all the same.
    """
    total = wanted.square().mean().sqrt() / found.square().mean().sqrt().clamp_min(1e-12)
    if is_head:
        return total.reshape(1)
    return torch.where(found > 0, wanted / torch.where(found > 0, found, 1.0), total)


def _turned(before: Tensor, after: Tensor, layer: nn.Module) -> Tensor:
    """Whether each output falls where it rose before."""
    first, second = (_each(t, layer) for t in (before, after))
    return ((first - first.mean(1, keepdim=True)) * second).sum(1) < 0


def _rms(output: Tensor, layer: nn.Module) -> Tensor | None:
    """Of each output; None where there are no rows, as of an expert that no row is sent to."""
    values = _each(output, layer)
    return values.square().mean(1).sqrt() if values.shape[1] else None


def _each(output: Tensor, layer: nn.Module) -> Tensor:
    """Of each output the values at all rows and positions, in double precision."""
    return output.detach().double().movedim(-1 - _dims(layer), 0).unsqueeze(-1).flatten(1)


def _dims(layer: nn.Module) -> int:
    """Of space, which come after the outputs."""
    is_linear = isinstance(layer, nn.Linear | CosineLinear) or not hasattr(layer, "kernel_size")
    return 0 if is_linear else len(layer.kernel_size)  # pyright: ignore[reportArgumentType]


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None


def _statistics(norm: Any) -> Moments:
    return norm.running_mean, norm.running_var
