"""The moving average of a network's parameters, with which it is evaluated."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class Average:
    """`average ← d·average + (1-d)·network` after each step t, d = min(decay, (1+t)/(10+t)).

    The early averages forget fast, so that the initialisation does not linger. Running statistics
    of batch normalisation belong to the weights that produced them: with `statistics="averaged"`
    they are averaged like the weights, with "raw" they are those of the last step.
    """

    def __init__(self, network: nn.Module, decay: float, statistics: str) -> None:
        self.network = deepcopy(network).requires_grad_(False)
        self.decay = decay
        self.count = torch.zeros((), device=next(network.parameters()).device)
        pairs = zip(_tensors(self.network, statistics), _tensors(network, statistics), strict=True)
        self.averaged = list(pairs)
        kept = _copied(self.network, statistics), _copied(network, statistics)
        self.copied = list(zip(*kept, strict=True))

    @torch.no_grad()
    def update(self) -> None:
        share = 1 - ((1 + self.count) / (10 + self.count)).clamp(max=self.decay)
        for average, current in self.averaged:
            average.lerp_(current, share)
        for copy, current in self.copied:
            copy.copy_(current)
        self.count += 1


def _tensors(network: nn.Module, statistics: str) -> list[Tensor]:
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    return [*network.parameters(), *(buffers if statistics == "averaged" else [])]


def _copied(network: nn.Module, statistics: str) -> list[Tensor]:
    return [b for b in network.buffers() if statistics == "raw" or not b.is_floating_point()]
