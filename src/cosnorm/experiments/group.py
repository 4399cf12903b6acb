"""Ranks that torchrun has started, meeting through torch.distributed. On CPUs, so far."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from cosnorm.experiments.errors import RunError


class Group:
    """The ranks of torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def average(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.total(tensor)
            tensor /= self.count

    def total(self, tensor: Tensor) -> None:
        with _meeting():
            dist.all_reduce(tensor)

    def share(self, tensors: Iterable[Tensor]) -> None:
        with _meeting():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def most(self, number: int) -> int:
        told = torch.tensor(number)
        with _meeting():
            dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)


@contextmanager
def _meeting() -> Iterator[None]:
    """Where ranks wait for each other: the one that has ended has said why, if it could."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            "another process of the run has ended, so this one stops too; see what that one says, "
            "then give the same command again to go on"
        ) from error
