"""`convert`: an existing model in, a cosine model out."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn

from cosnorm.conversion.account import Account
from cosnorm.conversion.calibrating import Moments, calibrated
from cosnorm.conversion.fusing import give_way
from cosnorm.conversion.heads import Head
from cosnorm.conversion.layers import check_adapters, graft, set_scale
from cosnorm.conversion.norm_kinds import vanish
from cosnorm.conversion.planning import make_plan
from cosnorm.conversion.restoring import Saved, State, check_state
from cosnorm.conversion.selection import Skip
from cosnorm.conversion.trial import Example, check_in_memory, leave_fast_path, try_out

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


@torch.inference_mode(False)  # else what is made here could never be trained
def convert(
    model: nn.Module,
    similarity: Literal["pearson", "cosine"] = "pearson",
    *,
    skip: Skip | Iterable[Skip] = (),
    head: Head = "auto",
    drop_norms: bool = False,
    fuse_activations: bool = False,
    depthwise: bool | None = None,
    example: Example | None = None,
    calibrate: Example | None = None,
    state: State | None = None,
) -> Account:
    """Make the linear and convolution layers of a model cosine layers, in place.

    `Linear`, `Conv1d/2d/3d`, `ConvTranspose1d/2d/3d` and transformers' `Conv1D` change their class
    and remain the same objects: parameters, tied weights, hooks, dtype, device, mode and the keys
    of the state_dict stay. A bias becomes the extra entry of the weight vectors. Weights without a
    direction (all zero, for Pearson constant), which would never learn, are initialised anew.

    Args:
        similarity: `"pearson"` (centred) or `"cosine"`.
        skip: names, patterns such as `"encoder.*.proj"`, module types or predicates
            `(name, module) -> bool`, one or several. Everything below a skipped module is skipped.
        head: the layers whose outputs are logits. They get one learned scale each, a parameter
            `scale` that starts at `HEAD_SCALE`, or higher for many classes. `"auto"` finds them
            by name and order, where that is sure; None for no scale; else a name, several, or a
            mapping from names to starts.
        drop_norms: replace by `nn.Identity` every normalisation layer that is sure to follow a
            converted layer directly, or to make no difference to the converted layers into which
            alone it goes; a zero bias of theirs goes with it.
        fuse_activations: let converted layers take over the activation modules behind them (ReLU,
            GELU, SiLU, Hardswish) where nothing else sees what lies between; `nn.Identity` takes
            their place. The model computes the same, with fewer passes over the output.
        depthwise: whether depthwise convolutions are converted; None for those with at least
            `FEWEST_DEPTHWISE` (49) entries, as 7×7. With few entries flat patches are blown up to
            full size, and a network errs far more.
        example: what to try a copy of the model on: the input, a tuple of arguments, or a dict of
            keyword arguments. Layers that do not run then stay, since other code may read their
            weights.
        calibrate: a batch of data, as `example`, from which every converted layer gets a learned
            scale, one for each output (one for all of a head), so that activations keep the size
            they had; the running statistics of batch norms become those of the batch. For a
            trained model that is to be trained further.
        state: the state_dict of such a model that was converted before, with the same similarity,
            skip, depthwise, drop_norms and example. The model becomes what that one was, scales,
            biases and norms included, and gets its weights: how a converted model is loaded.

    Returns:
        An `Account` with an entry for every layer. Print it.

    Raises:
        ValueError, TypeError: for an unknown similarity, a skip or head name that matches nothing,
            an example or a batch that the model does not take, a state of another model, or a model
            that is not a module or already wrapped for parallel training or by PEFT. The model is
            then as it was.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> [entry.now for entry in convert(model)]
        ['PearsonLinear', 'PearsonLinear']
    """
    model = _checked(model, similarity)
    for name, value in (("drop_norms", drop_norms), ("fuse_activations", fuse_activations)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {value!r}")
    if not isinstance(depthwise, bool | None):
        raise TypeError(f"depthwise must be True, False or None; got {depthwise!r}")
    if state is not None:
        _check_alone(head, calibrate)
        check_in_memory(model, "state")
    trial = None if example is None else try_out(model, example)
    plan = make_plan(
        model, similarity, skip, head, drop_norms, depthwise, trial, state, fuse_activations
    )
    statistics: dict[Any, Moments] = {}
    if state is not None:
        saved = Saved(state, model, plan.names)
        check_state(saved, plan.patterns, plan.dropped, plan.scales)
        state = saved.state
    if calibrate is not None:
        _check_one_start(head)
        plan.scales, statistics = calibrated(model, plan, calibrate)
    account = Account(plan.entries(), plan.notes())
    for module, scale in plan.scales.items():
        set_scale(plan.patterns[module], scale)
    for module, pattern in plan.patterns.items():
        graft(module, pattern)
        if isinstance(module.scale, nn.Parameter):  # what is frozen stays so
            module.scale.requires_grad_(module.weight.requires_grad)  # pyright: ignore
    for norm in plan.dropped:
        vanish(norm)
    for activation in plan.taken_over:
        give_way(activation)
    for module in plan.fast_paths:
        leave_fast_path(module)
    _fill(model, plan.fresh, statistics, state)
    return account


def _fill(
    model: nn.Module, fresh: Iterable[Any], statistics: Mapping[Any, Moments], state: State | None
) -> None:
    with torch.inference_mode():  # tensors of both kinds may be written to; nothing is made
        for module in fresh:  # a cosine layer now
            module.reset_parameters()
        for norm, moments in statistics.items():
            for buffer, value in zip((norm.running_mean, norm.running_var), moments, strict=True):
                buffer.copy_(value)
    if state is None:
        return
    # What a model's own hooks make while it loads is to be trained with, where that can be.
    held = (*model.parameters(), *model.buffers())
    with torch.inference_mode(any(tensor.is_inference() for tensor in held)):
        model.load_state_dict(state, strict=False)  # tied tensors may be there by one name


def _checked(model: nn.Module, similarity: str) -> nn.Module:
    """The model, out of a torch.compile wrapper; raises for what can't be converted."""
    if similarity not in ("pearson", "cosine"):
        raise ValueError(f"similarity must be 'pearson' or 'cosine'; got {similarity!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    for module in model.modules():
        if type(module).__name__ in _WRAPPERS:
            raise ValueError(
                f"model must be converted before it is wrapped; got a {type(module).__name__}: "
                "convert the module inside, then wrap it"
            )
    check_adapters(
        model, "converted before it gets adapters",
        "convert the model without them, then call get_peft_model with target_parameters",
    )  # fmt: skip
    return getattr(model, "_orig_mod", model)


def _check_alone(head: Head, calibrate: Example | None) -> None:
    if calibrate is not None or head != "auto":
        name = "head" if calibrate is None else "calibrate"
        raise ValueError(f"a state has its scales; got {name} besides: leave {name} out")


def _check_one_start(head: Head) -> None:
    starts = head if isinstance(head, Mapping) else {}
    for name, start in starts.items():
        if start is not None:
            raise ValueError(
                "a head's scale starts where calibrate finds it, or where head says; got both for "
                f"{name!r}, {start!r}: pass head={list(starts)!r}, or leave calibrate out"
            )
