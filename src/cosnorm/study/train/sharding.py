"""Ranks that hold a part of the network each, for networks that do not fit on one device.

Parameters, their gradients, the optimiser's state and the average are cut along their first
dimension by `fully_shard`; a layer is gathered while it computes. Checkpoints are planned by
torch.distributed.checkpoint and stored as `cosnorm.study.runs.shards` says: its own format keeps
its plan in a pickle, and no pickle is read here.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from cosnorm.study.runs.errors import StorageError
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.shard_plans import ShardReader, ShardWriter
from cosnorm.study.train.torchrun import TorchRanks


class ShardedRanks(TorchRanks):
    """Ranks of a process group that share out the tensors of the network, too."""

    is_sharded = True

    def lay_out(self, network: nn.Module) -> None:
        mesh = init_device_mesh(next(network.parameters()).device.type, (self.count,))
        for layer in network.children():
            if next(layer.parameters(), None) is not None:
                fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)

    def together(self, network: nn.Module) -> nn.Module:
        return network

    @contextmanager
    def whole(self, network: nn.Module) -> Iterator[None]:
        parts = [module for module in network.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One after another; all but the first rank let go of them at once."""
        found = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.is_first:
                found[name] = full.cpu()
        return found

    def shards(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}

    def save(self, shards: Mapping[str, Tensor], storage: Storage, step: int) -> dict[str, Any]:
        writer = ShardWriter(storage, step, self.hosts)
        with _told():
            save(dict(shards), storage_writer=writer, process_group=self.hosts)
        return writer.told

    @torch.no_grad()
    def load(
        self,
        shards: Mapping[str, Tensor],
        found: tuple[dict[str, Tensor], dict[str, Any]] | None,
        storage: Storage,
    ) -> None:
        tensors, state = found or ({}, {})
        told = [json.dumps([bool(tensors), state.get("step"), state.get("shards")])]
        dist.broadcast_object_list(told, src=0, group=self.hosts)
        is_there, step, saved = json.loads(told[0])
        if saved is not None:
            with _told():
                reader = ShardReader(storage, step, saved)
                load(dict(shards), storage_reader=reader, process_group=self.hosts)
        elif is_there:  # a checkpoint in one file
            for name, tensor in shards.items():
                _scatter(tensors.get(name), tensor)


def _scatter(full: Tensor | None, tensor: Tensor) -> None:
    """Give every rank its part of what the first has whole."""
    assert isinstance(tensor, DTensor)
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if full is not None:
        whole.copy_(full)
    tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))


@contextmanager
def _told() -> Iterator[None]:
    """What went wrong on any rank, as the error that it was."""
    try:
        yield
    except CheckpointException as error:
        rank, (fault, _) = min(error.failures.items(), key=lambda each: each[0])
        raise StorageError(f"process {rank} cannot save or read its part: {fault}") from error
