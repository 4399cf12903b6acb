"""The moving average of a network's parameters, with which it is evaluated."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


def copied(network: nn.Module) -> nn.Module:
    """A copy that is not trained."""
    return deepcopy(network).requires_grad_(False)


class Average:
    """`average ← d·average + (1-d)·network` after each step t, d = min(decay, (1+t)/(10+t)).

    The early averages forget fast, so that the initialisation does not linger. Running statistics
    of batch normalisation belong to the weights that produced them: with `statistics="averaged"`
    they are averaged like the weights, with "raw" they are those of the last step.

    average: a copy of the network, as `copied` makes it.
    """

    def __init__(
        self, average: nn.Module, network: nn.Module, decay: float, statistics: str
    ) -> None:
        self.network, self.decay = average, decay
        first = next(network.parameters())
        self.count = torch.zeros((), dtype=first.dtype, device=first.device)
        pairs = zip(_tensors(self.network, statistics), _tensors(network, statistics), strict=True)
        self.averaged = list(pairs)
        kept = _copied(self.network, statistics), _copied(network, statistics)
        self.copied = list(zip(*kept, strict=True))

    @torch.no_grad()
    def update(self) -> None:
        share = 1 - ((1 + self.count) / (10 + self.count)).clamp(max=self.decay)
        for average, current in self.averaged:
            _held(average).lerp_(_held(current), share)
        for copy, current in self.copied:
            copy.copy_(current)
        self.count += 1


def _held(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: all, unless it is spread over several."""
    held: Any = tensor
    return held.to_local() if hasattr(tensor, "to_local") else tensor


def _tensors(network: nn.Module, statistics: str) -> list[Tensor]:
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    return [*network.parameters(), *(buffers if statistics == "averaged" else [])]


def _copied(network: nn.Module, statistics: str) -> list[Tensor]:
    return [b for b in network.buffers() if statistics == "raw" or not b.is_floating_point()]
