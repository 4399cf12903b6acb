"""The processes that train one network together, behind one small interface.

Every rank has the whole data and takes its share of every batch; it has the whole network too, or
a part of every tensor. They meet where the loop would otherwise go separate ways: the gradients of
a step are averaged, its loss and the counts of an evaluation summed, a stop is decided by all, and
all begin from the state that the first has found. Only the first has a run folder. Loads no torch.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from cosnorm.study.runs.errors import ConfigError, RunError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cosnorm.study.runs.storage import Storage

    Found = tuple[dict[str, Tensor], dict[str, Any]]  # a checkpoint: its tensors and its state

TIMEOUT_S = 600.0  # what torch gives processes on GPUs, too; for a start, never less


class Ranks(Protocol):
    """What the loop asks of the ranks; every rank calls the same methods in the same order."""

    rank: int
    count: int
    is_sharded: bool  # whether a rank has a part of the network only
    is_restarted: bool  # whether torchrun has started this rank before

    @property
    def is_first(self) -> bool:
        """Whether this rank reads and writes the run folder."""
        ...

    def synchronised(self, network: "nn.Module") -> "nn.Module":
        """The network with the statistics of its batch norms taken over all ranks."""
        ...

    def lay_out(self, network: "nn.Module") -> None:
        """Leave of the network's parameters what this rank is to hold."""
        ...

    def together(self, network: "nn.Module") -> "nn.Module":
        """What computes as the network and leaves, after backward, gradients averaged over ranks.

        The network stays what has the parameters.
        """
        ...

    def wait(self) -> None:
        """Return when all ranks are here, however much longer than this one they took."""
        ...

    def total(self, tensor: "Tensor") -> None:
        """Make the tensor its sum over the ranks."""
        ...

    def share(self, tensors: Iterable["Tensor"]) -> None:
        """Make each tensor that of the first rank."""
        ...

    def most(self, numbers: Sequence[int]) -> list[int]:
        """For each place the largest number that a rank has given. The host waits, no device."""
        ...

    def whole(self, network: "nn.Module") -> AbstractContextManager[None]:
        """While its parameters are looked at, the network has all of them."""
        ...

    def gathered(self, tensors: Mapping[str, "Tensor"]) -> "dict[str, Tensor]":
        """The tensors whole, on the first rank."""
        ...

    def shards(self, tensors: Mapping[str, "Tensor"]) -> "dict[str, Tensor]":
        """Those of the tensors of which a rank has a part only."""
        ...

    def save(self, shards: Mapping[str, "Tensor"], storage: "Storage", step: int) -> dict[str, Any]:
        """Write what `shards` has found, for a checkpoint of `step`, and say what it is to tell."""
        ...

    def load(
        self, shards: Mapping[str, "Tensor"], found: "Found | None", storage: "Storage"
    ) -> None:
        """Fill what `shards` has found from the checkpoint that the first rank has found.

        storage: where the checkpoint lies, for every rank.
        """
        ...

    def end(self, code: int) -> None:
        """The run is at an end, with a code for which torchrun would start its processes again."""
        ...

    def refuse(self, say: Callable[[], int]) -> NoReturn:
        """End a run that cannot be made: one rank says why, for all, and every rank is `Ended`.

        say: says it, and returns the code.
        """
        ...


class Ended(Exception):
    """The run has ended on purpose, with `code`, of which all that is to be said was said."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"the run has ended with code {code}")


class Whole:
    """What it takes to hold the whole network: nothing."""

    is_sharded = False

    def lay_out(self, network: "nn.Module") -> None:
        pass

    def whole(self, network: "nn.Module") -> AbstractContextManager[None]:
        return nullcontext()

    def gathered(self, tensors: Mapping[str, "Tensor"]) -> "dict[str, Tensor]":
        return dict(tensors)

    def shards(self, tensors: Mapping[str, "Tensor"]) -> "dict[str, Tensor]":
        return {}

    def save(self, shards: Mapping[str, "Tensor"], storage: "Storage", step: int) -> dict[str, Any]:
        return {}

    def load(
        self, shards: Mapping[str, "Tensor"], found: "Found | None", storage: "Storage"
    ) -> None:
        pass


class Alone(Whole):
    """One process, which has nobody to meet."""

    rank = 0
    count = 1
    is_first = True
    is_restarted = False

    def synchronised(self, network: "nn.Module") -> "nn.Module":
        return network

    def together(self, network: "nn.Module") -> "nn.Module":
        return network

    def wait(self) -> None:
        pass

    def total(self, tensor: "Tensor") -> None:
        pass

    def share(self, tensors: Iterable["Tensor"]) -> None:
        pass

    def most(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def end(self, code: int) -> None:
        pass

    def refuse(self, say: Callable[[], int]) -> NoReturn:
        raise Ended(say())


def is_under_torchrun() -> bool:
    """Whether torchrun has started this process, alone or as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def are_launched() -> bool:
    """Whether torchrun has started this process as one of several."""
    return is_under_torchrun() and os.environ.get("WORLD_SIZE") != "1"


def check_launched(given: Mapping[str, object]) -> None:
    """Refuse the flags that were given and do nothing without torchrun."""
    idle = [flag for flag, value in given.items() if value]
    if idle and not is_under_torchrun():
        raise ConfigError(
            f"{idle[0]} does nothing here, as it is for processes of torchrun: leave it out, or "
            "use torchrun -m cosnorm train …"
        )


@contextmanager
def ranks_here(
    device: str = "cpu", timeout: float | None = None, shard: bool = False
) -> Iterator[Ranks]:
    """The ranks that torchrun has started, by its environment variables; else this process.

    device: "cpu", where they meet by gloo, or "cuda", by nccl: each has the GPU of its place on its
        machine.
    timeout: seconds after which a rank that does not answer while they train is taken for lost;
        None for 600.
    shard: each has a part of the network, which then need not fit on one device.
    """
    if not are_launched():
        yield Alone()
        return
    from cosnorm.study.train.torchrun import joined

    if device == "cuda":
        _take_gpu()
    with joined(device, TIMEOUT_S if timeout is None else timeout, shard) as ranks:
        yield ranks


def _take_gpu() -> None:
    """Make the GPU of this process the one that "cuda" means."""
    import torch

    place, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    known = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if known == 0:
        raise RunError("no CUDA device is available to torch: use the device cpu")
    if here > known:
        raise RunError(
            f"every process needs a GPU of its own; got {here} processes on this machine and "
            f"{known} {'GPU' if known == 1 else 'GPUs'}: use torchrun --nproc-per-node {known}, or "
            "the device cpu"
        )
    torch.cuda.set_device(place)
