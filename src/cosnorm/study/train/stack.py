"""Several learners whose steps are one: the same network, data and update, from different seeds.

Every tensor of theirs becomes a row of a larger one, which the stack's step changes. The learners
keep their networks, averages, optimisers and orders as views of it: whatever reads or loads one
learner's state finds it where it always was.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.nn.stacked import stacked
from cosnorm.study.data import take
from cosnorm.study.train.average import Average, copied
from cosnorm.study.train.batches import Batches
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.optimise import Update


class StackedBatches:
    """The batches of several seeds over the same rows, at the same place in an epoch."""

    def __init__(self, parts: Sequence[Batches]) -> None:
        first = parts[0]
        self.parts, self.split, self.pipeline = parts, first.split, first.pipeline
        self.size, self.per_epoch = first.size, first.per_epoch
        self.within, self.place = first.within, first.place
        self.order = torch.stack([part.order for part in parts])
        self.draws = torch.stack([part.draws for part in parts])
        for part, order, draws in zip(parts, self.order, self.draws, strict=True):
            part.order, part.draws, part.place = order, draws, self.place

    def begin(self, step: int) -> None:
        for part in self.parts:
            part.begin(step)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch of every seed, (S, rows, …) and (S, rows)."""
        places = self.place * self.size + self.within
        self.place += 1
        rows = self.order.index_select(1, places)
        draws = self.draws.index_select(1, places)
        every = rows.flatten()
        x = self.pipeline.train(take(self.split.x, every), draws.flatten(0, 1))
        return x.unflatten(0, rows.shape), self.split.y.index_select(0, every).view_as(rows)


class Stack:
    """Learners that differ in their seed alone, as one; `cosnorm.study.train.learner.captured`
    makes a CUDA graph of its step as of theirs.

    learners: on one device, over the same rows, with the same configuration but for the seed, and
        at the same step.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        first = learners[0]
        self.config, self.learners, self.capturable = first.config, learners, first.capturable
        self.batches = StackedBatches([learner.batches for learner in learners])
        networks = [learner.network for learner in learners]
        self.network = stacked(networks)
        self.dtype = next(self.network.parameters()).dtype
        _make_views(networks, self.network)
        self.update = Update(self.network, first.config)
        self._share_updates()
        self.average = self._stacked_average()
        self.loss = torch.stack([learner.loss for learner in learners])
        for learner, loss in zip(learners, self.loss, strict=True):
            learner.loss = loss

    def _share_updates(self) -> None:
        """The optimiser's state of each parameter of the stack is that of the learners' in rows.

        What is one number for all rows, a count of steps, is the same tensor everywhere.
        """
        for name, tensor in self.update.state().items():
            own = [learner.update.state()[name] for learner in self.learners]
            is_shared = tensor.shape == own[0].shape
            tensor.copy_(own[0] if is_shared else torch.stack(own))
            for row, each in enumerate(own):
                each.data = tensor if is_shared else tensor[row]

    def _stacked_average(self) -> Average | None:
        if self.learners[0].average is None:
            return None
        averages = [learner.average for learner in self.learners if learner.average is not None]
        average = Average(
            copied(self.network), self.network, self.config.ema_decay, self.config.ema_statistics
        )
        networks = [each.network for each in averages]
        rows = zip(*map(_tensors, networks), strict=True)
        for whole, own in zip(_tensors(average.network), rows, strict=True):
            whole.data.copy_(torch.stack(own))
        _make_views(networks, average.network)
        average.count.copy_(averages[0].count)
        for each in averages:
            each.count = average.count
        return average

    def step(self) -> None:
        """As `Learner.step`, for every seed: the losses are added, their gradients do not meet."""
        x, y = self.batches.next()
        logits = self.network(x.to(self.dtype)).flatten(0, 1)
        losses = F.cross_entropy(logits, y.flatten(), reduction="none")
        loss = losses.view(y.shape).mean(1)
        self.update.clear()
        loss.sum().backward()
        self.update.apply()
        if self.average is not None:
            self.average.update()
        self.loss += loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step reads and changes, live; the place in the data aside."""
        return {
            f"{row}.{name}": tensor
            for row, learner in enumerate(self.learners)
            for name, tensor in learner.state().items()
        }


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _make_views(networks: Sequence[nn.Module], whole: nn.Module) -> None:
    """Let the tensors of each network be rows of those of the stacked one."""
    for row, network in enumerate(networks):
        for own, stack in zip(_tensors(network), _tensors(whole), strict=True):
            own.data = stack.data[row]
