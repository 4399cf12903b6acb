"""The order of the training rows, as a function of seed and step alone."""

import hashlib
from typing import Any

import torch
from torch import Tensor

from cosnorm.study.data import Split, take
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.train.ranks import Alone, Ranks


def seed_of(*parts: object) -> int:
    """A generator's seed from what it is for: unrelated for different parts, always the same."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Batches:
    """The training part on its device, an epoch's order, and the place in it.

    Order and augmentation of a whole epoch are drawn at its beginning by a generator seeded from
    (seed, epoch); the place is a tensor. So a step needs nothing from the host, and a resumed run
    finds every row where an uninterrupted one has it.

    split: rows and classes, on the device. pipeline: stored rows to network input.
    ranks: each takes its part of every batch, in the order of their numbers.
    """

    def __init__(
        self, split: Split, pipeline: Any, batch_size: int, seed: int, ranks: Ranks | None = None
    ) -> None:
        self.split, self.pipeline, self.seed = split, pipeline, seed
        rows, device = len(split), split.y.device
        self.size = min(batch_size, rows)
        self.per_epoch = rows // self.size
        self.order = torch.zeros(rows, dtype=torch.int64, device=device)
        self.draws = self._drawn(0)[1].to(device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        ranks = ranks or Alone()
        self.within = self._share_of(ranks).to(device)
        # The mean over ranks of each one's mean loss, so weighted, is that of the whole batch.
        self.weight = len(self.within) * ranks.count / self.size

    def _share_of(self, ranks: Ranks) -> Tensor:
        """The places of a rank in every batch; no two shares differ by more than one row."""
        if self.size < ranks.count:
            raise ConfigError(
                f"a batch must have a row for every process; got {self.size} rows for "
                f"{ranks.count} processes: use fewer processes, or a larger batch size"
            )
        return torch.arange(self.size).tensor_split(ranks.count)[ranks.rank]

    def begin(self, step: int) -> None:
        """Be ready for `step`, counted from the beginning of the run."""
        epoch, place = divmod(step, self.per_epoch)
        order, draws = self._drawn(epoch)
        self.order.copy_(order)
        self.draws.copy_(draws)
        self.place.fill_(place)

    def _drawn(self, epoch: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed_of("epoch", self.seed, epoch))
        rows = len(self.split)
        return torch.randperm(rows, generator=generator), self.pipeline.draw(rows, generator)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch, or this rank's part of it, as network input and classes."""
        places = self.place * self.size + self.within
        self.place += 1
        rows = self.order.index_select(0, places)
        x = self.pipeline.train(take(self.split.x, rows), self.draws.index_select(0, places))
        return x, self.split.y.index_select(0, rows)
