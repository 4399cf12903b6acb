"""Links from the page to what lies around it: files of the report, figures, run folders."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class Links:
    """Where the page goes and what is written beside it; without `out`, it links to nothing.

    files: of all data sets together. figures: those of each data set.
    """

    out: str | None = None
    files: Sequence[str] = ()
    figures: Sequence[Sequence[str]] = ()

    def to_folder(self, folder: str) -> str | None:
        """The address of a folder, seen from the page: relative, so that both can move together.

        None where the page lies nowhere, or the folder is in no file system.
        """
        if self.out is None or "://" in folder or "://" in self.out:
            return None
        try:
            way = os.path.relpath(folder, self.out)
        except ValueError:  # another drive
            return Path(folder).resolve().as_uri() + "/"
        return address(Path(way).as_posix()) + "/"


def address(path: str) -> str:
    """A path as a relative address, whatever its bytes are.

    >>> address("a b/c:d#1")
    'a%20b/c%3Ad%231'
    """
    return quote(os.fsencode(path))
