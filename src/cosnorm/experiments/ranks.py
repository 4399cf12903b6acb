"""The processes that train one network together, behind one small interface.

Every rank holds the whole network and the whole data, and takes its share of every batch. They
meet where the loop would otherwise go separate ways: the gradients and the loss of a step are
averaged, the counts of an evaluation summed, a stop is decided by all, and all begin from the state
that the first has read. Only the first has a run folder. Loads no torch.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Ranks(Protocol):
    """What the loop asks of the ranks; every rank calls the same methods in the same order."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether this rank reads and writes the run folder."""
        ...

    def average(self, tensors: Iterable["Tensor"]) -> None:
        """Make each tensor its mean over the ranks. Part of a step: must not wait for a device."""
        ...

    def total(self, tensor: "Tensor") -> None:
        """Make the tensor its sum over the ranks."""
        ...

    def share(self, tensors: Iterable["Tensor"]) -> None:
        """Make each tensor that of the first rank."""
        ...

    def most(self, number: int) -> int:
        """The largest number that a rank has given."""
        ...


class Alone:
    """One process, which has nobody to meet."""

    rank = 0
    count = 1
    is_first = True

    def average(self, tensors: Iterable["Tensor"]) -> None:
        pass

    def total(self, tensor: "Tensor") -> None:
        pass

    def share(self, tensors: Iterable["Tensor"]) -> None:
        pass

    def most(self, number: int) -> int:
        return number


def are_launched() -> bool:
    """Whether torchrun has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1"


@contextmanager
def ranks_here() -> Iterator[Ranks]:
    """The ranks that torchrun has started, by its environment variables; else this process."""
    if not are_launched():
        yield Alone()
        return
    import torch.distributed as dist

    from cosnorm.experiments.group import Group

    dist.init_process_group("gloo")
    try:
        yield Group()
    finally:
        dist.destroy_process_group()
