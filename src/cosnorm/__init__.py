"""Cosine and Pearson layers for PyTorch: normalisation inside the dot product.

Names load on first use, so that `cosnorm --help` and the reports never wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cosnorm._version import __version__

if TYPE_CHECKING:
    from cosnorm import functional, nn, optim
    from cosnorm.conversion import convert, fold
    from cosnorm.ops.backend import set_backend

__all__ = ["__version__", "convert", "fold", "functional", "nn", "optim", "set_backend"]

_HOMES = {
    "convert": "cosnorm.conversion",
    "fold": "cosnorm.conversion",
    "set_backend": "cosnorm.ops.backend",
}
_ROOMS = {"functional", "nn", "ops", "conversion", "optim"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"cosnorm.{name}")
    raise AttributeError(f"module 'cosnorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
