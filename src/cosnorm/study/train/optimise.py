"""The update of the parameters: plain SGD as in the paper, and the usual optimisers."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cosnorm.nn.sparse import SparseLinear
from cosnorm.nn.stacked import StackedLinear
from cosnorm.study.runs.config import Config


class PlainSGD:
    """`w ← w − lr · (gradient + weight_decay · w)`.

    torch's own would do, but loading it takes as long as the rest of the program.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float) -> None:
        self.parameters, self.lr, self.weight_decay = parameters, lr, weight_decay

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                if self.weight_decay:
                    parameter.mul_(1 - self.lr * self.weight_decay)
                parameter.add_(parameter.grad, alpha=-self.lr)


class Update:
    """An optimiser whose whole state exists from the beginning, by name, in tensors.

    So a step can be captured in a graph before it ever ran, and a checkpoint can be loaded in
    place. With plain SGD, layers that can are updated from the parts of their gradient, unless
    `in_parts` forbids it: parts cannot be averaged over ranks.
    """

    def __init__(self, network: nn.Module, config: Config, in_parts: bool = True) -> None:
        self.lr = config.lr
        self.parameters = list(network.parameters())
        self.optimizer = _optimizer(self.parameters, config)
        plain = config.optimizer == "sgd" and config.weight_decay == 0
        kinds = (SparseLinear, StackedLinear)
        able = [layer for layer in network.modules() if isinstance(layer, kinds)]
        self.layers = able if plain and in_parts else []
        if not isinstance(self.optimizer, PlainSGD):
            self._make_state()
        for layer in self.layers:
            layer.deferred = True

    def _make_state(self) -> None:
        """One step with zero gradients makes torch create the state; then all is put back."""
        before = [p.detach().clone() for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        with warnings.catch_warnings():
            # Said once of an optimiser that is made for a CUDA graph and steps outside it, as here.
            warnings.filterwarnings("ignore", message=".*capturable=True")
            self.optimizer.step()
        self.clear()
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)
            for tensor in self.state().values():
                tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """The optimiser's own tensors, live: `0.exp_avg` belongs to the first parameter."""
        if isinstance(self.optimizer, PlainSGD):
            return {}
        return {
            f"{number}.{key}": value
            for number, parameter in enumerate(self.parameters)
            for key, value in self.optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        }

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def apply(self) -> None:
        self.optimizer.step()
        for layer in self.layers:
            layer.descend(self.lr)


def _optimizer(parameters: list[nn.Parameter], config: Config) -> PlainSGD | torch.optim.Optimizer:
    fused = parameters[0].device.type == "cuda"
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "sgd":
        return PlainSGD(parameters, lr, decay)
    if config.optimizer == "momentum":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=config.momentum, weight_decay=decay, fused=fused
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=lr, weight_decay=decay, fused=fused, capturable=fused)
