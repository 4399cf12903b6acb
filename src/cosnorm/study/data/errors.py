"""What goes wrong with data, said so that the user can act on it."""

from importlib import import_module
from pathlib import Path
from typing import Any


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says, or a download failed.

    The message names the file, the rule it breaks, what was found and what to do.
    """


def damaged(path: Path | str, found: str, remedy: str = "fetch or copy it again") -> DataError:
    """The error for a file whose content breaks its format: `PATH: FOUND; REMEDY`."""
    return DataError(f"{path}: {found}; {remedy}")


def require(module: str, purpose: str) -> Any:
    """Import an optional dependency, or say which extra brings it.

    Example: `require("PIL.Image", "reading image folders")`.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}); "
            "install it with: pip install 'cosnorm[data]'"
        ) from error
