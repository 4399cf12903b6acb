"""Modules of others that add to the tables of names before a command begins.

COSNORM_EXTENSIONS holds their names, with commas between them. Each is imported once, so that what
it adds can be used on the command line, and in every process that inherits the variable.
"""

import os
from importlib import import_module

VARIABLE = "COSNORM_EXTENSIONS"


class ExtensionError(Exception):
    """An extension that cannot be loaded; the message says which, and why."""


def load_extensions() -> None:
    """Import every module that COSNORM_EXTENSIONS names."""
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        try:
            import_module(name)
        except Exception as error:
            raise ExtensionError(
                f"{VARIABLE} names {name}, which cannot be loaded "
                f"({type(error).__name__}: {error}): mend it, or leave it out"
            ) from error
