"""What a run folder on an object store consists of, as one object that is replaced as a whole.

`.run/manifest.json` tells the files of the run, each as one or more parts with their checksums, and
who owns it. Parts lie under keys that are used once, `.run/EPOCH-TOKEN/NUMBER/NAME`: a file counts
from the moment that a manifest names it, and no longer. Loads no torch.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cosnorm.study.runs.errors import StorageError
from cosnorm.study.runs.formats import FORMAT, check_format

FOLDER = ".run"
MANIFEST = f"{FOLDER}/manifest.json"


@dataclass(frozen=True)
class Part:
    """A piece of a file: the key from the run folder on, and what lies there."""

    key: str
    size: int
    sha256: str

    @classmethod
    def of(cls, key: str, content: bytes) -> "Part":
        return cls(key, len(content), hashlib.sha256(content).hexdigest())

    def fits(self, content: bytes) -> bool:
        """Whether this is what was written."""
        return hashlib.sha256(content).hexdigest() == self.sha256


@dataclass(frozen=True)
class Owner:
    """Who writes to the run, and for how many seconds its word holds."""

    token: str
    host: str
    process: int
    lease: float

    @property
    def told(self) -> str:
        return f"process {self.process} on {self.host}"


@dataclass(frozen=True)
class Manifest:
    """epoch: how often the run was claimed. number: how often this object was replaced, so that no
    two are alike. files: the parts of each, in order."""

    epoch: int = 0
    number: int = 0
    owner: Owner | None = None
    files: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        told = {
            "format": FORMAT,
            "epoch": self.epoch,
            "number": self.number,
            "owner": self.owner and asdict(self.owner),
            "files": {name: list(map(asdict, parts)) for name, parts in self.files.items()},
        }
        return f"{json.dumps(told, indent=1)}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes, place: str) -> "Manifest":
        try:
            told: dict[str, Any] = json.loads(content)
            check_format(place, told)
            owner = told["owner"] and Owner(**told["owner"])
            files = {
                name: tuple(Part(**part) for part in parts) for name, parts in told["files"].items()
            }
            return cls(int(told["epoch"]), int(told["number"]), owner, files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(
                f"{place} is damaged ({type(error).__name__}): restore it from a version of "
                "before, or choose another place"
            ) from error

    @property
    def keys(self) -> set[str]:
        """Of all parts that count."""
        return {part.key for parts in self.files.values() for part in parts}


def part_key(epoch: int, token: str, number: int, name: str) -> str:
    """The key of a part, from the run folder on."""
    return f"{FOLDER}/{epoch:06d}-{token}/{number:06d}/{name}"


def epoch_of(key: str) -> int | None:
    """The epoch in which a part was put under a key; None for other keys.

    >>> epoch_of(part_key(3, "1f2e3d", 7, "config.json"))
    3
    """
    found = re.match(rf"{re.escape(FOLDER)}/(\d+)-", key)
    return None if found is None else int(found[1])
