"""Data: files in, tensors out, batches made on the device where the tensors live.

Names load on first use: the catalogue needs neither torch nor numpy, and only the readers that
are called need scikit-learn or Pillow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cosnorm.study.data.errors import DataError

if TYPE_CHECKING:
    from cosnorm.study.data.catalogue import listing, verify
    from cosnorm.study.data.dataset import Dataset, Split
    from cosnorm.study.data.fetching import fetch
    from cosnorm.study.data.loading import load
    from cosnorm.study.data.pipelines import Pipeline, tf_cifar, unit_range
    from cosnorm.study.data.rows import take
    from cosnorm.study.data.validation import held_out

__all__ = [
    "DataError",
    "Dataset",
    "Pipeline",
    "Split",
    "fetch",
    "held_out",
    "listing",
    "load",
    "take",
    "tf_cifar",
    "unit_range",
    "verify",
]

_HOMES = {
    "Dataset": "dataset",
    "Pipeline": "pipelines",
    "Split": "dataset",
    "fetch": "fetching",
    "held_out": "validation",
    "listing": "catalogue",
    "load": "loading",
    "take": "rows",
    "tf_cifar": "pipelines",
    "unit_range": "pipelines",
    "verify": "catalogue",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cosnorm.study.data' has no attribute {name!r}")
    value = getattr(import_module(f"cosnorm.study.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
