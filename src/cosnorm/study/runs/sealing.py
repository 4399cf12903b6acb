"""Safetensors files that carry their own proof of being whole.

The metadata of a sealed file holds the small part of the state as JSON, and a SHA-256 over that and
every byte of the tensors: truncation, alteration and a wrong file are found when it is read,
whatever the storage promised.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.formats import FORMAT, check_format


class DamagedCheckpoint(RunError):
    """A checkpoint that is not what was written."""


def seal(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> bytes:
    """`tensors` and `state` (what JSON can hold) as one safetensors file with a checksum.

    The number of the format goes into the state.
    """
    from safetensors.torch import save

    raw = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), memoryview(raw)[8 + length :]
    told = json.dumps({"format": FORMAT, **state}, sort_keys=True, allow_nan=False)
    header["__metadata__"] = {"state": told, "sha256": _digest(header, told, data)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, data))


def unseal(content: bytes, place: str = "the file") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `seal` was given; `DamagedCheckpoint`, or `UnknownFormat`, which names the place."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        data = memoryview(content)[8 + length :]
        if _digest(header, metadata["state"], data) != metadata["sha256"]:
            raise DamagedCheckpoint("its checksum does not fit its content")
        state = dict(json.loads(metadata["state"]))
        check_format(place, state)
        return load(content), state
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(RecursionError, OverflowError, struct.error),
    ) as error:
        raise DamagedCheckpoint("it is cut short or no checkpoint") from error
    except SafetensorError as error:
        raise DamagedCheckpoint(f"its tensors cannot be read ({error})") from error


def _digest(header: Mapping[str, Any], state: str, data: memoryview) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(state.encode())
    digest.update(data)
    return digest.hexdigest()
