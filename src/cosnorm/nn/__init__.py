"""Layers that stand in for torch.nn's: parameters, and one call into cosnorm.functional."""

from cosnorm.nn.conv import (
    CosineConv1d,
    CosineConv2d,
    CosineConv3d,
    CosineConvTranspose1d,
    CosineConvTranspose2d,
    CosineConvTranspose3d,
    PearsonConv1d,
    PearsonConv2d,
    PearsonConv3d,
    PearsonConvTranspose1d,
    PearsonConvTranspose2d,
    PearsonConvTranspose3d,
)
from cosnorm.nn.linear import CosineLinear, PearsonLinear

__all__ = [
    "CosineConv1d",
    "CosineConv2d",
    "CosineConv3d",
    "CosineConvTranspose1d",
    "CosineConvTranspose2d",
    "CosineConvTranspose3d",
    "CosineLinear",
    "PearsonConv1d",
    "PearsonConv2d",
    "PearsonConv3d",
    "PearsonConvTranspose1d",
    "PearsonConvTranspose2d",
    "PearsonConvTranspose3d",
    "PearsonLinear",
]
