"""Where data is looked for."""

import os
from collections.abc import Iterable
from pathlib import Path

from cosnorm.study.data.errors import DataError


def data_root(data_dir: str | Path | None = None) -> Path:
    """`data_dir`, else $COSNORM_DATA, else the user's cache folder (XDG_CACHE_HOME/cosnorm)."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get("COSNORM_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "cosnorm"


def first_existing(candidates: Iterable[Path]) -> Path | None:
    """The first of the paths that is there."""
    return next((path for path in candidates if path.exists()), None)


def not_found(dataset: str, root: Path, wanted: str) -> DataError:
    """The error for a set, or a file of it, that is not under `root`."""
    return DataError(
        f"{dataset}: {wanted} not found under {root}; fetch it with `cosnorm data fetch "
        f"{dataset}`, or name the folder that holds it with --data-dir or $COSNORM_DATA"
    )
