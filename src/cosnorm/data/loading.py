"""One door to every data set."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from cosnorm.data.arrays import npz
from cosnorm.data.cifar import cifar10, cifar100
from cosnorm.data.dataset import Dataset
from cosnorm.data.digits import digits
from cosnorm.data.errors import DataError
from cosnorm.data.idx import mnist
from cosnorm.data.images import image_folders
from cosnorm.data.news import news
from cosnorm.data.places import data_root
from cosnorm.data.svhn import svhn

PUBLISHED: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "20news": news,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
}


def load(dataset: str | Path, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Read a data set into tensors on the CPU.

    Args:
        dataset: digits, mnist, 20news, cifar10, cifar100, svhn, or the path of an .npz file or of
            a folder of class folders with images.
        data_dir: where the published sets lie; else $COSNORM_DATA, else the user's cache folder.
        options: 20news: tfidf="raw" | "l2", min_df=5, source="auto" | "matlab" | "raw";
            cifar100: labels="fine" | "coarse"; svhn: extra=True; image folders: size=None.

    Example:
        >>> load("digits").sample_shape
        (1, 8, 8)
    """
    name = str(dataset)
    if name == "digits":
        _check_options(name, digits, options)
        return digits()
    if name in PUBLISHED:
        _check_options(name, PUBLISHED[name], options)
        return PUBLISHED[name](data_root(data_dir), **options)
    path = Path(dataset).expanduser()
    if path.is_dir():
        _check_options(name, image_folders, options)
        return image_folders(path, **options)
    if path.is_file() and path.suffix.lower() == ".npz":
        _check_options(name, npz, options)
        return npz(path)
    known = ", ".join(["digits", *PUBLISHED])
    found = "a file, but not an .npz" if path.exists() else "no file or folder of that name"
    raise DataError(
        f"{name}: not a known data set ({known}) and {found}; give one of the names, an .npz file, "
        "or a folder of class folders with images"
    )


def _check_options(name: str, reader: Callable[..., Dataset], options: dict[str, Any]) -> None:
    known = [key for key in signature(reader).parameters if key not in ("root", "path")]
    if unknown := sorted(set(options) - set(known)):
        raise DataError(
            f"{name} has no option {unknown[0]!r}; it has {', '.join(known) if known else 'none'}"
        )
