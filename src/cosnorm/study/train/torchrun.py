"""Ranks that torchrun has started, meeting through torch.distributed."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from inspect import signature
from typing import Any, NoReturn
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from cosnorm.study.runs.errors import RunError
from cosnorm.study.train.ranks import TIMEOUT_S, Ended, Whole
from cosnorm.study.train.sync_norm import synchronised

_ENDED = "ended"
_PAUSE_S = 0.02  # between two looks at what the others have stored


class TorchRanks(Whole):
    """The ranks of a process group: by gloo on CPUs, by nccl on GPUs.

    The hosts meet by gloo in either case, once a step: there a rank that hangs is found when its
    time is up, whatever the devices wait for.

    store: what torchrun keeps for its processes, from one start of them to the next.
    name: that of these processes in the store.
    is_restarted: whether this rank was there at a start of before.
    hosts: the group in which hosts meet, where it is not the one of all.
    """

    def __init__(self, store: Any, name: str, is_restarted: bool, hosts: Any = None) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.store, self.name, self.hosts = store, name, hosts
        self.is_restarted = is_restarted
        self.waits = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def synchronised(self, network: nn.Module) -> nn.Module:
        return synchronised(network)

    def together(self, network: nn.Module) -> nn.Module:
        """Buffers stay each rank's own: those of the first count, and are shared to evaluate."""
        known = signature(DistributedDataParallel).parameters
        new, old = "forward_sync_buffers", "broadcast_buffers"  # the word until torch 2.12
        buffers: dict[str, Any] = {new if new in known else old: False}
        return DistributedDataParallel(network, **buffers)

    def wait(self) -> None:
        self.waits += 1
        here = f"{self.name}/here"
        self.store.add(here, 1)

        def is_over() -> bool:
            if self.store.add(self._refusals, 0):  # who refuses the run does not come
                raise self._told_end()
            return self.store.add(here, 0) >= self.count * self.waits

        _until(is_over)

    def total(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def share(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def most(self, numbers: Sequence[int]) -> list[int]:
        told = torch.tensor(numbers)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.hosts)
        return told.tolist()

    def end(self, code: int) -> None:
        if self.is_first:
            self.store.set(_ENDED, str(code))

    def refuse(self, say: Callable[[], int]) -> NoReturn:
        if self.store.add(self._refusals, 1) == 1:
            self.store.set(_ENDED, str(say()))
        raise self._told_end()

    @property
    def _refusals(self) -> str:
        return f"{self.name}/refusals"

    def _told_end(self) -> Ended:
        """The end of a run that is refused: where one leaves, torchrun ends who still speaks."""
        _until(lambda: bool(_stored(self.store, _ENDED)))
        return Ended(int(_stored(self.store, _ENDED)))


@contextmanager
def joined(device: str, timeout: float, shard: bool = False) -> Iterator[TorchRanks]:
    """The ranks of torchrun's processes, in a group that lasts as long as the context."""
    limit, on_gpus = timedelta(seconds=timeout), device == "cuda"
    store: Any = None
    try:
        store, rank, count = next(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT_S)))
        if code := _stored(store, _ENDED):
            raise Ended(int(code))
        is_restarted = store.check([f"name/{rank}"])
        name = _agreed_name(store, rank, count)
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            store=dist.PrefixStore(name, store),  # pyright: ignore[reportPrivateImportUsage]
            rank=rank,
            world_size=count,
            timeout=limit,
        )
        hosts = dist.new_group(backend="gloo", timeout=limit) if on_gpus else None
        ranks = _kind(shard)(store, name, is_restarted, hosts)
        yield ranks
        ranks.wait()  # nobody leaves while another may still have to say or to write something
    except RuntimeError as error:
        if not _is_of_meeting(error):
            raise
        with suppress(RuntimeError):  # of a store that is gone too
            if store is not None and (code := _stored(store, _ENDED)):  # by a rank that refuses
                raise Ended(int(code)) from error
        raise RunError(
            f"another process of the run has ended, or has not answered for {timeout:g} s, so this "
            "one stops too: see what that one says; torchrun --max-restarts N starts all again by "
            "itself, else give the same command again"
        ) from error
    finally:
        gc.collect()  # what is left of networks holds on to the group, whose threads must end here
        if dist.is_initialized():
            dist.destroy_process_group()


def _kind(shard: bool) -> type[TorchRanks]:
    if not shard:
        return TorchRanks
    from cosnorm.study.train.sharding import ShardedRanks

    return ShardedRanks


def _agreed_name(store: Any, rank: int, count: int) -> str:
    """A name for what these processes store to find each other, which none before them has had.

    The store outlives them: after a restart by torchrun it still has the addresses of processes
    that are gone, and what counts restarts is not the same on all machines. So every process brings
    a name, the first offers its own to all whose names it has read, and a process that finds its
    name in the offer knows that the offer is not one of before.
    """
    mine, others = uuid4().hex, range(1, count)
    store.set(f"name/{rank}", mine)
    if rank == 0:

        def is_taken() -> bool:
            known = [_stored(store, f"name/{other}") for other in others]
            store.set("offer", " ".join((mine, *known)))
            return store.check([f"{mine}/{other}" for other in others])

        _until(is_taken)
        return mine
    _until(lambda: mine in _stored(store, "offer").split())
    name = _stored(store, "offer").split()[0]
    store.set(f"{name}/{rank}", "taken")
    return name


def _until(holds: Callable[[], bool]) -> None:
    """Wait for something that other processes store, at most as long as a start may take."""
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError("Timed out waiting for the other processes")
        time.sleep(_PAUSE_S)


def _stored(store: Any, key: str) -> str:
    """What is stored, or nothing."""
    return store.get(key).decode() if store.check([key]) else ""


def _is_of_meeting(error: RuntimeError) -> bool:
    """Whether an error is of the group and not of what a rank computes by itself."""
    return isinstance(error, dist.DistError) or any(
        word in str(error) for word in ("gloo", "NCCL", "Connection ", "Timed out waiting")
    )
