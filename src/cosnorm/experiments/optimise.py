"""The update of the parameters: plain SGD as in the paper, and the usual optimisers."""

import torch
from torch import Tensor, nn

from cosnorm.experiments.config import Config
from cosnorm.nn.sparse import SparseLinear


class Update:
    """An optimiser whose whole state exists from the beginning, by name, in tensors.

    So a step can be captured in a graph before it ever ran, and a checkpoint can be loaded in
    place. With plain SGD a sparse first layer is updated from the parts of its gradient.
    """

    def __init__(self, network: nn.Module, config: Config) -> None:
        self.lr = config.lr
        self.optimizer = _optimizer(list(network.parameters()), config)
        plain = config.optimizer == "sgd" and config.weight_decay == 0
        sparse = [layer for layer in network.modules() if isinstance(layer, SparseLinear)]
        self.layers = sparse if plain else []
        self._make_state()
        for layer in self.layers:
            layer.deferred = True

    def _make_state(self) -> None:
        """One step with zero gradients makes torch create the state; then all is put back."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.clear()
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
            for tensor in self.state().values():
                tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """The optimiser's own tensors, live: `0.exp_avg` belongs to the first parameter."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {
            f"{number}.{key}": value
            for number, parameter in enumerate(parameters)
            for key, value in self.optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        }

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self) -> None:
        self.optimizer.step()
        for layer in self.layers:
            layer.descend(self.lr)


def _optimizer(parameters: list[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    on_cuda = parameters[0].device.type == "cuda"
    lr, decay = config.lr, config.weight_decay
    if config.optimizer in ("sgd", "momentum"):
        momentum = config.momentum if config.optimizer == "momentum" else 0.0
        return torch.optim.SGD(
            parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=on_cuda
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=lr, weight_decay=decay, fused=on_cuda, capturable=on_cuda)
