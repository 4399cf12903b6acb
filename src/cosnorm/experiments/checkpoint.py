"""States to go on from: safetensors files that carry their own proof of being whole.

A checkpoint is one safetensors file. Its metadata holds the small part of the state as JSON, and a
SHA-256 over that and every byte of the tensors: truncation, alteration and a wrong file are found
when it is read, whatever the storage promised. Two are kept, so that one is always whole.

The state holds the settings of the run too: a checkpoint that was copied in from another run is
passed over, even where its tensors would fit.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cosnorm.experiments.config import Config
from cosnorm.experiments.errors import ConfigError, RunError
from cosnorm.experiments.record import differences
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
    storage: Storage,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    config: Config,
) -> None:
    """Write the state of `config`'s run at `step`; then, and only then, all but the last two go."""
    told = {**state, "step": step, "config": config.to_dict()}
    storage.write(f"{_FOLDER}{step:010d}.safetensors", seal(tensors, told))
    for name in storage.names(_FOLDER)[:-_KEPT]:
        storage.delete(name)


def load_checkpoint(
    storage: Storage, config: Config
) -> tuple[tuple[dict[str, Tensor], dict[str, Any]] | None, list[str]]:
    """The last whole checkpoint of `config`'s run, or None; and what there is to warn of.

    One that is damaged, or of other settings, is passed over. One that does not say its settings,
    as earlier versions wrote it, is taken: the folder is that of `config`.
    """
    warnings: list[str] = []
    for name in reversed(storage.names(_FOLDER)):
        place = f"{storage.label}/{name}"
        try:
            tensors, state = unseal(storage.read(name) or b"")
        except DamagedCheckpoint as error:
            warnings.append(f"{place} is damaged: {error}; going back before it")
            continue
        if "config" not in state:
            warnings.append(
                f"{place} does not say of which settings it is, as earlier versions wrote it; it "
                "is taken for this run's"
            )
        elif other := other_settings(state["config"], config):
            warnings.append(
                f"{place} is of a run with other settings ({other}): it is not used, and removed "
                "from here; going back before it"
            )
            continue
        return (tensors, state), warnings
    return None, warnings


def other_settings(stored: Any, config: Config) -> str:
    """In what stored settings differ from `config`; nothing where they do not."""
    if not isinstance(stored, dict):
        return "they cannot be read"
    try:
        return differences(Config.from_dict(stored), config)
    except ConfigError as error:
        return str(error)


def drop_checkpoints(storage: Storage, after: int = -1) -> None:
    """Remove all checkpoints later than step `after`."""
    for name in storage.names(_FOLDER):
        number = name.removeprefix(_FOLDER).removesuffix(".safetensors")
        if not number.isdigit() or int(number) > after:
            storage.delete(name)
