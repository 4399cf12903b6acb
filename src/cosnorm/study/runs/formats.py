"""The number of the format in which runs are stored. Loads no torch.

Every file that can be read by itself tells the number: config.json, summary.json, and the sealed
files (checkpoints, parameters, vocabulary) in their state. metrics.jsonl and environment.json are
of the format that the config.json beside them tells. A file without a number is of the first
format. Whatever makes a reader of before misread a file gives this number one more.
"""

from collections.abc import Mapping
from typing import Any

from cosnorm._version import __version__
from cosnorm.study.runs.errors import RunError

FORMAT = 1


class UnknownFormat(RunError):
    """A file that another version of cosnorm wrote in a format unknown here."""


def check_format(place: str, stored: Mapping[str, Any]) -> None:
    """Refuse what `place` holds where its format is not known."""
    told = stored.get("format", FORMAT)
    if type(told) is not int or told != FORMAT:
        raise UnknownFormat(
            f"{place} is stored in format {told!r}; cosnorm {__version__} reads format {FORMAT}: "
            "use the version that wrote it"
        )
