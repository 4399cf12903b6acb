"""The tensors of a checkpoint that no process holds whole, in files beside it.

The checkpoint says which: `shards` in its state names the save and, for every tensor, its size, its
dtype, and its chunks: where each begins, how large it is and in which file it lies. A file is
sealed like any other and names its save. So a checkpoint with a file that is missing, altered or of
another save is a damaged one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cosnorm.study.runs.errors import DamagedFile
from cosnorm.study.runs.sealing import DamagedCheckpoint, seal, unseal
from cosnorm.study.runs.storage import Storage

_START = "checkpoints/shard-"


def shard_name(step: int, save: str, number: int) -> str:
    """The file in which process `number` has its chunks."""
    return f"{_START}{step:010d}-{save}-{number}.safetensors"


def chunk_name(tensor: str, offsets: Sequence[int]) -> str:
    """A chunk's name in its file: `network.1.weight@8,0`."""
    return f"{tensor}@{','.join(map(str, offsets))}"


def sealed_shard(chunks: Mapping[str, Tensor], save: str) -> bytes:
    return seal(chunks, {"save": save})


def read_shard(storage: Storage, step: int, save: str, number: int) -> dict[str, Tensor]:
    """The chunks in a file; `DamagedCheckpoint` where it is not what was saved."""
    name = shard_name(step, save, number)
    try:
        chunks, state = unseal(storage.read(name) or b"", f"{storage.label}/{name}")
    except (DamagedCheckpoint, DamagedFile) as error:
        raise DamagedCheckpoint(f"of its part {name}, {error}") from error
    if state.get("save") != save:
        raise DamagedCheckpoint(f"its part {name} is of another save")
    return chunks


def assembled(storage: Storage, step: int, shards: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor whole."""
    tensors, filled = {}, {}
    for name, told in shards["tensors"].items():
        tensors[name] = torch.zeros(told["size"], dtype=getattr(torch, told["dtype"]))
        filled[name] = 0
    for number in files_of(shards):
        chunks = read_shard(storage, step, shards["save"], number)
        for name, told in shards["tensors"].items():
            for offsets, sizes, file in told["chunks"]:
                if file == number:
                    place = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
                    tensors[name][place] = chunks[chunk_name(name, offsets)]
                    filled[name] += tensors[name][place].numel()
    if partial := [name for name, tensor in tensors.items() if tensor.numel() != filled[name]]:
        raise DamagedCheckpoint(f"it has not all of {', '.join(partial)}")
    return tensors


def check_shards(storage: Storage, step: int, shards: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of which a part is not what was saved."""
    for number in files_of(shards):
        read_shard(storage, step, shards["save"], number)


def files_of(shards: Mapping[str, Any]) -> list[int]:
    told = shards["tensors"].values()
    return sorted({file for each in told for _, _, file in each["chunks"]})


def drop_shards(storage: Storage, kept: Mapping[int, str | None]) -> None:
    """Remove all files of steps that are not kept, or of another save of a step than the kept one.

    kept: by step, the save; None for whichever is there.
    """
    for name in storage.names(_START):
        step, _, save = name.removeprefix(_START).partition("-")
        wanted = kept.get(int(step), "") if step.isdigit() else ""
        if wanted is not None and save.partition("-")[0] != wanted:
            storage.delete(name)
