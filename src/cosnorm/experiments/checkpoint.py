"""States to go on from: safetensors files that carry their own proof of being whole.

A checkpoint is one safetensors file. Its metadata holds the small part of the state as JSON, and a
SHA-256 over that and every byte of the tensors: truncation, alteration and a wrong file are found
when it is read, whatever the storage promised. Two are kept, so that one is always whole.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cosnorm.experiments.errors import RunError
from cosnorm.experiments.storage import Storage

_FOLDER = "checkpoints/step-"
_KEPT = 2


class DamagedCheckpoint(RunError):
    """A checkpoint that is not what was written."""


def seal(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> bytes:
    """`tensors` and `state` (what JSON can hold) as one safetensors file with a checksum."""
    from safetensors.torch import save

    raw = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), memoryview(raw)[8 + length :]
    told = json.dumps(state, sort_keys=True, allow_nan=False)
    header["__metadata__"] = {"state": told, "sha256": _digest(header, told, data)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, data))


def unseal(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `seal` was given, or `DamagedCheckpoint`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        data = memoryview(content)[8 + length :]
        if _digest(header, metadata["state"], data) != metadata["sha256"]:
            raise DamagedCheckpoint("its checksum does not fit its content")
        return load(content), json.loads(metadata["state"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DamagedCheckpoint("it is cut short or no checkpoint") from error
    except SafetensorError as error:
        raise DamagedCheckpoint(f"its tensors cannot be read ({error})") from error


def _digest(header: Mapping[str, Any], state: str, data: memoryview) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(state.encode())
    digest.update(data)
    return digest.hexdigest()


def save_checkpoint(
    storage: Storage, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Write the state at `step`; then, and only then, remove all but the last two."""
    storage.write(f"{_FOLDER}{step:010d}.safetensors", seal(tensors, {**state, "step": step}))
    for name in storage.names(_FOLDER)[:-_KEPT]:
        storage.delete(name)


def load_checkpoint(
    storage: Storage,
) -> tuple[tuple[dict[str, Tensor], dict[str, Any]] | None, list[str]]:
    """The last whole checkpoint, or None; and a warning for each damaged one passed over."""
    warnings: list[str] = []
    for name in reversed(storage.names(_FOLDER)):
        try:
            return unseal(storage.read(name) or b""), warnings
        except DamagedCheckpoint as error:
            warnings.append(f"{storage.label}/{name} is damaged: {error}; going back before it")
    return None, warnings


def drop_checkpoints(storage: Storage, after: int = -1) -> None:
    """Remove all checkpoints later than step `after`."""
    for name in storage.names(_FOLDER):
        number = name.removeprefix(_FOLDER).removesuffix(".safetensors")
        if not number.isdigit() or int(number) > after:
            storage.delete(name)
