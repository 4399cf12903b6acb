"""What kind of normalisation layer a module is: what else it does, and what it does to a row."""

import copy
import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

_TORCH_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_OVER_FEATURES = re.compile(r".*(layer|rms)_?norm", re.IGNORECASE)

Effect = Literal["scales", "scales and shifts"]


def is_norm(module: nn.Module) -> bool:
    """A normalisation layer of torch, or a norm over features that another library defines."""
    return isinstance(module, _TORCH_NORMS) or width(module) is not None


def width(module: nn.Module) -> int | None:
    """The number of features of a norm over the last dimension alone; None for anything else."""
    named = _OVER_FEATURES.fullmatch(type(module).__name__) and not any(module.children())
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm) and not named:
        return None
    weight = module._parameters.get("weight")
    shape = getattr(module, "normalized_shape", () if weight is None else weight.shape)
    return shape[0] if isinstance(shape, tuple) and len(shape) == 1 else None


def is_even(norm: nn.Module) -> bool:
    """Whether gain and shift, where there are any, are the same for all features."""
    tensors = [*norm._parameters.values(), *norm._buffers.values()]
    return all(_is_constant(tensor) for tensor in tensors if tensor is not None)


def _is_constant(tensor: Tensor) -> bool:
    return not tensor.is_meta and bool((tensor == tensor.flatten()[:1]).all())


@torch.no_grad()
def effect(norm: nn.Module) -> Effect | None:
    """What a norm makes of a row x: a·x with a > 0, a·x + c·1, or something else.

    It is tried on rows of different lengths and means: the classes of other libraries are known by
    what they do.
    """
    features = width(norm)
    if features is None or features < 3 or not is_even(norm):  # two points always lie on a line
        return None
    x = _random(2, 3, features)
    y = _tried(_alone(norm), x)
    if y is None or y.shape != x.shape:
        return None
    middle, y = x.mean(-1, keepdim=True), y.double()
    centred = x - middle
    gain = (centred * y).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    shift = y.mean(-1, keepdim=True) - gain * middle
    tolerance = 1e-4 * y.abs().amax(-1, keepdim=True)
    if not ((gain > 0).all() and ((y - gain * x - shift).abs() <= tolerance).all()):
        return None
    return "scales" if (shift.abs() <= tolerance).all() else "scales and shifts"


@torch.no_grad()
def is_plain(norm: nn.Module) -> bool:
    """Whether a norm computes what its torch class computes, then its children in their order.

    So do the classes of other libraries that hold an activation. One over channels may also take
    them as the second dimension.
    """
    kind = next((kind for kind in _TORCH_NORMS if isinstance(norm, kind)), None)
    if kind is None:
        return effect(norm) is not None
    if type(norm).forward is kind.forward and not any(norm.children()):
        return True
    features = next(p.numel() for p in [*norm.parameters(), *norm.buffers(), torch.ones(1)])
    alone = _alone(norm)
    same = []
    for shape in ((4, features), (4, features, 5), (4, features, 3, 3), (4, 5, features)):
        x = _random(*shape)
        y = _tried(alone, x)
        if y is not None:
            same.append(any(_equal(y, known) for known in _as_torch(alone, kind, x)))
    return bool(same) and all(same)


def _as_torch(norm: nn.Module, kind: type[nn.Module], x: Tensor) -> list[Tensor]:
    """What torch's class and then the children make of x, as it lies or with the channels last."""
    found = []
    for there, back in ((1, 1), (1, -1)):
        y = _tried(lambda x: kind.forward(norm, x), x.movedim(there, back))
        for child in norm.children():
            y = None if y is None else _tried(child, y)
        if y is not None:
            found.append(y.movedim(back, there))
    return found


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def _random(*shape: int) -> Tensor:
    """Rows of several lengths and means."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(*shape[:-1], 1, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) * rows + rows


def _alone(norm: nn.Module) -> nn.Module:
    return copy.deepcopy(norm).to("cpu", torch.float32).eval()


def _tried(function: Callable[[Tensor], Any], x: Tensor) -> Tensor | None:
    try:
        y = function(x.clone())
    except Exception:  # whatever it is, it does not take such a tensor
        return None
    return y if isinstance(y, Tensor) else None


def vanish(norm: nn.Module) -> None:
    """Make a normalisation layer an identity, or what else it held; the same object still."""
    norm.__class__ = nn.Sequential if norm._modules else nn.Identity
    norm._parameters.clear()
    norm._buffers.clear()
