"""The paper's two networks for every method, and a small convolutional one for CPUs.

Every layer is a layer of the method: hidden ones with ReLU and no re-scaling, the last one scaled
before softmax. Which layers those are is decided by `cosnorm.nn.linear` and `cosnorm.nn.conv2d`.
`cosnorm.study.names` has the table of the networks, to which others can add.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from cosnorm.methods import METHODS
from cosnorm.nn.by_name import conv2d, linear
from cosnorm.nn.sparse import SparseLinear
from cosnorm.registry import resolve
from cosnorm.study.names import NETWORKS


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all layers of a network share.

    method: one of `cosnorm.methods`.
    bias: a bias in every layer.
    affine: re-scaling and re-shifting in hidden layers. Those of the similarities and of none are
        the layer's own: a learned scale for each output, and the bias.
    scale: the last layer's, "learned" (one number), "fixed" or "per_class".
    scale_start: the number that it is, or starts at.
    bn_momentum, bn_eps: of batch normalisation.
    """

    method: str
    bias: bool = False
    affine: bool = False
    scale: str = "learned"
    scale_start: float = 1.0
    bn_momentum: float = 0.1
    bn_eps: float = 1e-5

    @property
    def hidden(self) -> dict[str, Any]:
        if self.affine and not METHODS.named(self.method).affine:
            return {"bias": True, "learn_scale": "per_output", "activation": "relu"}
        return {"bias": self.bias, "affine": self.affine, "activation": "relu"}

    @property
    def last(self) -> dict[str, Any]:
        if not METHODS.named(self.method).scaled:
            return {"bias": self.bias}
        learn = {"learned": True, "fixed": False, "per_class": "per_output"}[self.scale]
        return {"bias": self.bias, "scale": self.scale_start, "learn_scale": learn}


def mlp(
    shape: int | Sequence[int],
    classes: int,
    recipe: Recipe,
    *,
    width: int = 1000,
    sparse: bool = False,
) -> nn.Sequential:
    """Two hidden layers: the paper's network for MNIST and 20NEWS.

    shape: of a row, or how many numbers it has.

    >>> mlp(784, 10, Recipe(method="cosine"))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    hidden = recipe.hidden
    inputs = shape if isinstance(shape, int) else math.prod(shape)
    layers = nn.Sequential(
        nn.Identity() if sparse else nn.Flatten(),
        (SparseLinear if sparse else linear)(recipe.method, inputs, width, **hidden),
        linear(recipe.method, width, width, **hidden),
        linear(recipe.method, width, classes, **recipe.last),
    )
    return _prepared(layers, recipe)


def vgg(
    shape: Sequence[int],
    classes: int,
    recipe: Recipe,
    *,
    channels: int = 512,
    width: int = 1000,
    pool: str = "same",
) -> nn.Sequential:
    """Three times three 3×3 convolutions and a pool, then two hidden layers: the paper's network.

    pool: "same" for padded convolutions and pools of stride 2, "valid" for unpadded convolutions
    and pools of stride 1; images of 24×24 come out as 3×3 either way.

    >>> vgg((3, 24, 24), 10, Recipe(method="cosine"), channels=8)(torch.rand(2, 3, 24, 24)).shape
    torch.Size([2, 10])
    """
    padding, stride = {"same": (1, 2), "valid": (0, 1)}[pool]
    layers: list[nn.Module] = []
    before = shape[0]
    for _ in range(3):
        for _ in range(3):
            layers.append(
                conv2d(recipe.method, before, channels, 3, padding=padding, **recipe.hidden)
            )
            before = channels
        layers.append(nn.MaxPool2d(2, stride))
    shrink = (lambda n: n // 8) if pool == "same" else (lambda n: n - 21)
    sides = [shrink(n) for n in shape[1:]]
    if min(sides) < 1:
        least = 8 if pool == "same" else 22
        raise ValueError(
            f"vgg with pool={pool!r} needs images of {least}×{least} or more; got "
            f"{shape[1]}×{shape[2]}: use the network small_conv or mlp"
        )
    layers += _classifier(channels * math.prod(sides), (width, width), classes, recipe)
    return _prepared(nn.Sequential(*layers), recipe)


def small_conv(
    shape: Sequence[int], classes: int, recipe: Recipe, *, channels: int = 32, width: int = 256
) -> nn.Sequential:
    """Two convolutions with a pool each and one hidden layer: seconds an epoch on a CPU.

    >>> small_conv((1, 8, 8), 10, Recipe(method="pearson"))(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers = [
        conv2d(recipe.method, shape[0], channels, 3, padding=1, **recipe.hidden),
        nn.MaxPool2d(2),
        conv2d(recipe.method, channels, 2 * channels, 3, padding=1, **recipe.hidden),
        nn.MaxPool2d(2),
    ]
    sides = [n // 4 for n in shape[1:]]
    if min(sides) < 1:
        raise ValueError(
            f"small_conv needs images of 4×4 or more; got {shape[1]}×{shape[2]}: use mlp"
        )
    layers += _classifier(2 * channels * math.prod(sides), (width,), classes, recipe)
    return _prepared(nn.Sequential(*layers), recipe)


def _classifier(
    inputs: int, widths: Sequence[int], classes: int, recipe: Recipe
) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths:
        layers.append(linear(recipe.method, inputs, width, **recipe.hidden))
        inputs = width
    return [*layers, linear(recipe.method, inputs, classes, **recipe.last)]


def _prepared(network: nn.Sequential, recipe: Recipe) -> nn.Sequential:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum, module.eps = recipe.bn_momentum, recipe.bn_eps
    return network


@torch.no_grad()
def initialise(network: nn.Module, std: float, generator: torch.Generator) -> None:
    """Draw every layer's weight from a normal of deviation `std`, cut off at two deviations.

    Drawn on the CPU and copied, so that a seed gives the same network on every device and for
    every memory layout.
    """
    for module in network.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            drawn = torch.empty(weight.shape, dtype=torch.float32)
            nn.init.trunc_normal_(drawn, 0.0, std, -2 * std, 2 * std, generator=generator)
            weight.copy_(drawn)


def build(
    network: str,
    shape: Sequence[int],
    classes: int,
    recipe: Recipe,
    *,
    width: int = 1000,
    channels: int = 512,
    pool: str = "same",
    sparse: bool = False,
) -> nn.Module:
    """A network of `cosnorm.study.names`, for inputs of `shape` (without the batch).

    It is not yet initialised, and gets of the last four what it takes.
    """
    entry = NETWORKS.named(network)
    if entry.images and len(shape) != 3:
        raise ValueError(
            f"{network} needs images (channels, height, width); got rows of shape {tuple(shape)}: "
            "use the network mlp"
        )
    builder = resolve(entry.builder)
    sizes = {"width": width, "channels": channels, "pool": pool, "sparse": sparse}
    taken = signature(builder).parameters
    return builder(shape, classes, recipe, **{k: v for k, v in sizes.items() if k in taken})
