"""Ranks that torchrun has started, meeting through torch.distributed. On CPUs, so far."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """The ranks of torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def average(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= self.count

    def total(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def share(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def most(self, number: int) -> int:
        told = torch.tensor(number)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)
