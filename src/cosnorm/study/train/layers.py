"""What every layer of a network is like while it trains: its weights' length, scale and rate.

A layer whose output does not change with the length of its weights turns them by `lr/|w|²` a
gradient of unit length: weights that grow make the effective learning rate fall.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cosnorm.optim import lengths, turning


@torch.no_grad()
def layer_figures(network: nn.Module, lr: float) -> dict[str, dict[str, float | None]]:
    """Each layer with weights, by its number from the input on, with three figures.

    weight_norm: the length |w| of an output's weights, for Pearson without their mean; the mean
        over outputs.
    effective_lr: `lr/|w|²`, mean over outputs.
    scale: what multiplies the normalised values, mean over outputs; None where nothing does.

    >>> layer_figures(nn.Linear(4, 2), lr=1.0)["1"].keys()
    dict_keys(['weight_norm', 'effective_lr', 'scale'])
    """
    layers = [m for m in network.modules() if _has_weights(m)]
    return {str(number): _figures(layer, lr) for number, layer in enumerate(layers, start=1)}


def _has_weights(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1


def _figures(layer: Any, lr: float) -> dict[str, float | None]:
    found = lengths(layer)
    return {
        "weight_norm": float(found.mean()),
        "effective_lr": turning(found, lr),
        "scale": _scale(layer),
    }


def _scale(layer: Any) -> float | None:
    """Of the layer's own scale or, in its place, of the gain that follows its normalisation."""
    gain = getattr(layer, "gain", None)
    after = getattr(getattr(layer, "norm", None), "weight", None)
    choices = (getattr(layer, "scale", None), gain, after)
    found = next((choice for choice in choices if choice is not None), None)
    return float(found.double().mean()) if isinstance(found, Tensor) else found
