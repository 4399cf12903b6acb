"""Where torch.distributed.checkpoint puts what it has planned: into the files of `runs.shards`.

A rank's chunks are one sealed file. The first rank writes them all, one at a time, since it alone
has claimed the folder; every rank reads those that it needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from cosnorm.study.runs.errors import StorageError
from cosnorm.study.runs.shards import chunk_name, read_shard, sealed_shard, shard_name
from cosnorm.study.runs.storage import Storage


class ShardWriter(StorageWriter):
    """Seals each rank's chunks in a file, which the first rank writes: it alone has the folder."""

    def __init__(self, storage: Storage, step: int, group: Any) -> None:
        self.storage, self.step, self.group = storage, step, group
        self.told: dict[str, Any] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        save = uuid4().hex[:12]
        return [SavePlan(plan.items, save, plan.planner_data) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        chunks = {
            chunk_name(item.index.fqn, _offsets(item.index.offset)): planner.resolve_data(item)
            for item in plan.items
        }
        content = sealed_shard(cast(Mapping[str, Tensor], chunks), plan.storage_data)
        fault = None
        for number, each in enumerate(self._in_turn(content)):
            try:
                if fault is None:
                    self.storage.write(shard_name(self.step, plan.storage_data, number), each)
            except StorageError as error:  # after the others have sent what they wait to send
                fault = error
        if fault is not None:
            raise fault
        rank = dist.get_rank(self.group)
        told = [WriteResult(i.index, 0, (plan.storage_data, rank)) for i in plan.items]
        return _done(told)

    def _in_turn(self, mine: bytes) -> Iterator[bytes]:
        """On the first rank the content of each, one at a time; the others send and have none."""
        if dist.get_rank(self.group) > 0:
            content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
            dist.send(torch.tensor(len(content)), 0, self.group)
            dist.send(content, 0, self.group)
            return
        yield mine
        for rank in range(1, dist.get_world_size(self.group)):
            size = torch.tensor(0)
            dist.recv(size, rank, self.group)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(content, rank, self.group)
            yield content.numpy().tobytes()

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """What the checkpoint tells of its shards."""
        saves, files = set(), {}
        for result in (each for some in results for each in some):
            save, files[result.index.fqn, _offsets(result.index.offset)] = result.storage_data
            saves.add(save)
        (save,) = saves
        tensors = {}
        for name, known in metadata.state_dict_metadata.items():
            assert isinstance(known, TensorStorageMetadata)
            tensors[name] = {
                "size": list(known.size),
                "dtype": str(known.properties.dtype).removeprefix("torch."),
                "chunks": [
                    [list(c.offsets), list(c.sizes), files[name, tuple(c.offsets)]]
                    for c in known.chunks
                ],
            }
        self.told = {"save": save, "tensors": tensors}


class ShardReader(StorageReader):
    """Reads of each file the chunks that a rank needs."""

    def __init__(self, storage: Storage, step: int, shards: Mapping[str, Any]) -> None:
        self.storage, self.step, self.shards = storage, step, shards

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        known: dict[str, Any] = {}
        for name, told in self.shards["tensors"].items():
            properties = TensorProperties(dtype=getattr(torch, told["dtype"]))
            chunks = [
                ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                for offsets, sizes, _ in told["chunks"]
            ]
            known[name] = TensorStorageMetadata(properties, torch.Size(told["size"]), chunks)
        return Metadata(known)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files = {
            (name, tuple(offsets)): file
            for name, told in self.shards["tensors"].items()
            for offsets, _, file in told["chunks"]
        }
        wanted: dict[int, list[Any]] = {}
        for item in plan.items:
            place = item.storage_index.fqn, _offsets(item.storage_index.offset)
            wanted.setdefault(files[place], []).append(item)
        for number, items in wanted.items():
            chunks = read_shard(self.storage, self.step, self.shards["save"], number)
            for item in items:
                index = item.storage_index
                chunk = chunks[chunk_name(index.fqn, _offsets(index.offset))]
                for axis, (start, size) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    chunk = chunk.narrow(axis, start, size)
                target = planner.resolve_tensor(item).detach()
                target.copy_(chunk)
                planner.commit_tensor(item, target)
        return _done(None)


def _offsets(offset: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(offset or ())


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
