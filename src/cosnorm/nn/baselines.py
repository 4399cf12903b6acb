"""The methods to compare with, as layers with the face of `CosineLinear` and its kin.

A block computes `y = act(scale · normalised(z))`, z the pre-activation of torch's own layer; what
each makes of it stands in a table in docs/layers.md.

The constructor is torch's, then `affine, scale, learn_scale, activation`, keyword-only. By default
there is no bias and no affine, as in the paper's networks. `bias=True` adds torch's bias (zero at
the start) to z, before batch and layer normalisation see it; batch normalisation then cancels it.
`affine=True` follows the normalisation with a learned gain (1 at the start) and shift (0 at the
start) for each output; root mean squares have the gain alone.

State: `weight`, `bias` and, where learned, `scale`. Batch, layer and group normalisation are
torch's own layers, held as `norm` (`norm.weight`, `norm.bias`, `norm.running_mean`, …), so that
`SyncBatchNorm.convert_sync_batchnorm` and `update_bn` find them; the affine of weight normalisation
is `gain` and `shift`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.nn.base import Block, ConvBlock, LinearBlock
from cosnorm.ops.direct import transforming
from cosnorm.ops.reference import stats_dtype, unit_weight


class RootMeanSquare(nn.Module):
    """Rows (N, outputs, …) by the root mean square of each: torch's `RMSNorm` of whole samples.

    affine: with a learned gain for each output.
    """

    def __init__(self, outputs: int, *, affine: bool, eps: float = 1e-5, **place) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(outputs, **place)) if affine else None

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        wide = input.to(stats_dtype(input.dtype))
        y = F.rms_norm(wide, wide.shape[1:], eps=self.eps).to(input.dtype)
        if self.weight is None:
            return y
        return y * self.weight.to(y.dtype).view(-1, *[1] * (y.dim() - 2))


def group_count(outputs: int) -> int:
    """Groups that group normalisation makes of so many outputs: the most that divide them, up to
    32, with 16 outputs or more in each; 1 where there are no such.

    >>> [group_count(outputs) for outputs in (512, 1000, 64, 10)]
    [32, 25, 4, 1]
    """
    fitting = (n for n in range(32, 1, -1) if outputs % n == 0 and outputs // n >= 16)
    return next(fitting, 1)


class _Normed(Block):
    """The methods whose normalisation is a module of its own, which then holds their state."""

    norm: (
        nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.LayerNorm | nn.GroupNorm
        | RootMeanSquare
    )  # fmt: skip

    def _reset_norm(self) -> None:
        self.norm.reset_parameters()

    def _normalised(self, input: Tensor) -> Tensor:
        z = self._product(input, self.weight)
        return self.norm(self._as_batch(z)).reshape(z.shape).to(z.dtype)


class _Batch(_Normed):
    def _add_norm(self, affine: bool) -> None:
        kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[self.dimensions]
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.norm = kind(len(self.weight), affine=affine, **place)


class _Layer(_Normed):
    def _add_norm(self, affine: bool) -> None:
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        if self.dimensions:  # one group: the statistics of all channels and positions together
            self.norm = nn.GroupNorm(1, len(self.weight), affine=affine, **place)
        else:
            self.norm = nn.LayerNorm(len(self.weight), elementwise_affine=affine, **place)


class _Group(_Normed):
    def _add_norm(self, affine: bool) -> None:
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        outputs = len(self.weight)
        self.norm = nn.GroupNorm(group_count(outputs), outputs, affine=affine, **place)


class _Root(_Normed):
    def _add_norm(self, affine: bool) -> None:
        place = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.norm = RootMeanSquare(len(self.weight), affine=affine, **place)


def _unit(weight: Tensor) -> Tensor:
    return unit_weight(weight, None, False, weight.dtype).weight


class _Unit(torch.autograd.Function):
    """`_unit` with its gradient r_w (dv - v⟨dv, v⟩) in a few passes; a zero vector's is zero."""

    @staticmethod
    def forward(ctx, weight: Tensor) -> Tensor:
        wide = weight.to(stats_dtype(weight.dtype))
        norm = torch.linalg.vector_norm(wide, dim=_entries(weight), keepdim=True)
        rnorm = norm.reciprocal().masked_fill_(norm == 0, 0)
        unit = (wide * rnorm).to(weight.dtype)
        ctx.save_for_backward(weight, unit, rnorm)
        return unit

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, unit, rnorm = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return torch.func.vjp(_unit, weight)[1](grad)[0]
        v, dv = unit.to(rnorm.dtype), grad.to(rnorm.dtype)
        dot = (dv * v).sum(_entries(weight), keepdim=True)
        return torch.addcmul(dv, v, dot, value=-1).mul_(rnorm).to(weight.dtype)


def _entries(weight: Tensor) -> tuple[int, ...]:
    return tuple(range(1, weight.dim()))


class _Weight(Block):
    def _add_norm(self, affine: bool) -> None:
        outputs = len(self.weight)
        self.gain = nn.Parameter(self.weight.new_ones(outputs)) if affine else None
        self.shift = nn.Parameter(self.weight.new_zeros(outputs)) if affine else None

    def _reset_norm(self) -> None:
        if self.gain is not None and self.shift is not None:
            nn.init.ones_(self.gain)
            nn.init.zeros_(self.shift)

    def _normalised(self, input: Tensor) -> Tensor:
        plain = torch.compiler.is_compiling() or transforming()  # what a compiler fuses itself
        z = self._product(input, _unit(self.weight) if plain else _Unit.apply(self.weight))
        if self.gain is None or self.shift is None:
            return z
        return z * self._per_output(self.gain, z) + self._per_output(self.shift, z)


class _Plain(Block):
    def _add_norm(self, affine: bool) -> None:
        if affine:
            raise ValueError(
                "affine follows a normalisation and a plain layer has none; got affine=True: "
                "use bias=True, learn_scale='per_output' or both"
            )

    def _reset_norm(self) -> None:
        pass

    def _normalised(self, input: Tensor) -> Tensor:
        return self._product(input, self.weight)


class BatchNormLinear(_Batch, LinearBlock, nn.Linear):
    """`nn.Linear` with batch normalisation of its output."""


class BatchNormConv1d(_Batch, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with batch normalisation of its output."""

    dimensions = 1


class BatchNormConv2d(_Batch, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with batch normalisation of its output."""

    dimensions = 2


class BatchNormConv3d(_Batch, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with batch normalisation of its output."""

    dimensions = 3


class WeightNormLinear(_Weight, LinearBlock, nn.Linear):
    """`nn.Linear` with weight vectors of length one."""


class WeightNormConv1d(_Weight, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with weight vectors of length one."""

    dimensions = 1


class WeightNormConv2d(_Weight, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with weight vectors of length one."""

    dimensions = 2


class WeightNormConv3d(_Weight, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with weight vectors of length one."""

    dimensions = 3


class LayerNormLinear(_Layer, LinearBlock, nn.Linear):
    """`nn.Linear` with layer normalisation of its output."""


class LayerNormConv1d(_Layer, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with layer normalisation of its output."""

    dimensions = 1


class LayerNormConv2d(_Layer, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with layer normalisation of its output."""

    dimensions = 2


class LayerNormConv3d(_Layer, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with layer normalisation of its output."""

    dimensions = 3


class GroupNormLinear(_Group, LinearBlock, nn.Linear):
    """`nn.Linear` with group normalisation of its output."""


class GroupNormConv1d(_Group, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with group normalisation of its output."""

    dimensions = 1


class GroupNormConv2d(_Group, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with group normalisation of its output."""

    dimensions = 2


class GroupNormConv3d(_Group, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with group normalisation of its output."""

    dimensions = 3


class RMSNormLinear(_Root, LinearBlock, nn.Linear):
    """`nn.Linear` with its output by its root mean square."""


class RMSNormConv1d(_Root, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with its output by its root mean square."""

    dimensions = 1


class RMSNormConv2d(_Root, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with its output by its root mean square."""

    dimensions = 2


class RMSNormConv3d(_Root, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with its output by its root mean square."""

    dimensions = 3


class PlainLinear(_Plain, LinearBlock, nn.Linear):
    """`nn.Linear` with no normalisation."""


class PlainConv1d(_Plain, ConvBlock, nn.Conv1d):
    """`nn.Conv1d` with no normalisation."""

    dimensions = 1


class PlainConv2d(_Plain, ConvBlock, nn.Conv2d):
    """`nn.Conv2d` with no normalisation."""

    dimensions = 2


class PlainConv3d(_Plain, ConvBlock, nn.Conv3d):
    """`nn.Conv3d` with no normalisation."""

    dimensions = 3
