"""One door to every data set."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from cosnorm.registry import resolve
from cosnorm.study.data.dataset import Dataset
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.paths import data_root
from cosnorm.study.names import DATASETS, OWN, own_kind


def load(dataset: str | Path, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Read a data set into tensors on the CPU.

    Args:
        dataset: digits, mnist, 20news, cifar10, cifar100, svhn, or the path of an .npz or .csv
            file, or of a folder of class folders with images or texts (.txt).
        data_dir: where the published sets lie; else $COSNORM_DATA, else the user's cache folder.
        options: 20news: tfidf="raw" | "l2", min_df=5, source="auto" | "matlab" | "raw";
            cifar100: labels="fine" | "coarse"; svhn: extra=True; image folders: size=None; text
            folders: tfidf, min_df.

    Example:
        >>> load("digits").sample_shape
        (1, 8, 8)
    """
    name = str(dataset)
    if name in DATASETS:
        reader = resolve(DATASETS[name].reader)
        _check_options(name, reader, options)
        return reader(data_root(data_dir), **options)
    path = Path(dataset).expanduser()
    kind = own_kind(path)
    if path.is_dir() if kind in ("images", "texts") else path.is_file():
        reader = resolve(OWN[kind].reader)
        _check_options(name, reader, options)
        return reader(path, **options)
    known = ", ".join(DATASETS)
    found = "a file of no known kind" if path.exists() else "no file or folder of that name"
    raise DataError(
        f"{name}: not a known data set ({known}) and {found}; give one of the names, an .npz or "
        ".csv file, or a folder of class folders with images or texts (.txt)"
    )


def _check_options(name: str, reader: Callable[..., Dataset], options: dict[str, Any]) -> None:
    known = [key for key in signature(reader).parameters if key not in ("root", "path")]
    if unknown := sorted(set(options) - set(known)):
        raise DataError(
            f"{name} has no option {unknown[0]!r}; it has {', '.join(known) if known else 'none'}"
        )
