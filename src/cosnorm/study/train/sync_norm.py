"""Batch normalisation over the batches of all ranks together.

    mean = Σx / n,  var = Σ(x − mean)² / n,  sums and n over every rank

torch's SyncBatchNorm does so on GPUs and refuses CPUs, for which the layer here stands in: the same
function, the same state, and parts of any size.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Total(torch.autograd.Function):
    """The sum over ranks. What flows back to each rank's part is the sum over ranks, too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Total.forward(ctx, grads[0])


class CpuSyncBatchNorm(_BatchNorm):
    """`nn.SyncBatchNorm` for CPUs: input (N, C, …), N of any size, also another on every rank."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input must have at least 2 dimensions; got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        x = input if input.dtype == torch.float64 else input.float()
        over, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
        rows = x.new_tensor([x.numel() / x.shape[1]])
        sums = _Total.apply(torch.cat((x.sum(over), rows)))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = x - mean.view(shape)
        var = _Total.apply(centred.square().sum(over)) / count
        self._keep(mean.detach(), var.detach(), count)
        y = centred * (var + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _keep(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Move the running statistics on, as torch does: by momentum, the variance unbiased."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.momentum is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = var * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


def synchronised(network: nn.Module) -> nn.Module:
    """The network, its batch norms replaced by such that count the rows of all ranks, in place."""
    if next(network.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                setattr(module, name, _for_cpu(child))
    return network


def _for_cpu(norm: _BatchNorm) -> CpuSyncBatchNorm:
    made = CpuSyncBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    made.to(next(norm.buffers()))
    made.load_state_dict(norm.state_dict())
    return made
