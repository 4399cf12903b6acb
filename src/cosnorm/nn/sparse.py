"""A linear layer for sparse rows, of every method, at the price of the entries that are there.

The dense layer multiplies by every weight; this one reads the weights of the words that occur. For
that the weight lies input by input in memory (its shape stays `(out, in)`), so that an entry of a
row meets one contiguous run of weights. What remains is weight-sized work of the normalisation:

    grad W = Σ rows that occur  +  shift ⊗ 1  −  (W − mean ⊗ 1) · slope

with one `slope`, `shift` and `mean` per output (zero for all but weight and the similarities).
That form is kept as it is, a `RowGradient`, when the layer is told to: plain SGD then needs one
pass over the weights, or none. Otherwise the gradient is made dense and autograd goes on as usual.

Zero, precision and bound rules are those of the dense layers. A bias of a similarity is one more
entry of the vectors, `[x, 1]` and `[w, b]`, which is never written beside the others.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cosnorm.checks import check_bias
from cosnorm.methods import METHODS, check_affine
from cosnorm.nn.baselines import RootMeanSquare, group_count
from cosnorm.nn.scale import LearnScale, add_scale, reset_scale

# Rows of weights that are read together: few enough to stay in a cache with the sums that they go
# to, and enough to be worth the waking of threads.
_CHUNK = 1024


@dataclass(frozen=True)
class RowGradient:
    """The gradient of a weight (out, in) as its parts.

    rows: (r,) inputs that occurred; values: (r, out) their gradient.
    slope, shift, mean: (out,) or None; every weight w of output k also has
    `shift[k] − (w − mean[k])·slope[k]`.
    """

    rows: Tensor
    values: Tensor
    slope: Tensor | None
    shift: Tensor | None
    mean: Tensor | None

    def dense(self, weight: Tensor) -> Tensor:
        """The whole gradient, of the shape and memory layout of `weight`."""
        table = weight.t()
        if self.slope is None:
            grad = torch.zeros_like(table)
        elif self.shift is None or self.mean is None:
            grad = table * -self.slope
        else:  # the mean first: beside a large one the rest would lose its digits
            grad = (table - self.mean).mul_(-self.slope).add_(self.shift)
        return grad.index_add_(0, self.rows, self.values).t()

    def descend(self, weight: Tensor, lr: float) -> None:
        """`weight ← weight − lr · gradient`, in place, in one pass or none."""
        table = weight.t()
        if self.slope is not None and self.shift is not None and self.mean is not None:
            shift = torch.addcmul(self.shift, self.mean, self.slope)
            torch.addcmul(shift * -lr, table, 1 + lr * self.slope, out=table)
        elif self.slope is not None:
            table.mul_(1 + lr * self.slope)
        table.index_add_(0, self.rows, self.values, alpha=-lr)


class _Statistics(NamedTuple):
    inverse: Tensor  # 1/|v|, zero by the zero rule
    mean: Tensor | None
    near: Tensor | None = None  # the weights without it, where it would cost their product digits
    last: Tensor | None = None  # the bias without it, likewise


def _inverse(centred: Tensor, total: Tensor) -> Tensor:
    """1/√centred; 0 where the vector is zero, or constant as far as rounding can tell."""
    limit = 16 * torch.finfo(centred.dtype).eps ** 2 * total
    some = centred > limit
    return torch.where(some, torch.where(some, centred, 1).rsqrt(), 0)


def _row_statistics(x: Tensor, centered: bool, ones: int) -> tuple[_Statistics, Tensor]:
    """Of each row over all its entries, the zeros and `ones` ones behind them included; and the
    rows' sums.
    """
    crow, values = x.crow_indices(), x.values()
    counts = crow.diff()
    row = torch.arange(len(counts), device=x.device).repeat_interleave(counts)
    last = values.new_full((len(counts),), ones)
    total = last.index_add(0, row, values.square())
    sums = last.index_add(0, row, values)
    if not centered:
        return _Statistics(_inverse(total, total), None), sums
    mean = sums / (x.shape[1] + ones)
    inside = (last * (1 - mean).square()).index_add(0, row, (values - mean[row]).square())
    centred = inside + (x.shape[1] - counts) * mean.square()
    return _Statistics(_inverse(centred, total), mean), sums


def _weight_statistics(weight: Tensor, bias: Tensor | None, centered: bool) -> _Statistics:
    """Of each output's weights and bias, in one pass over the memory, or two.

    The mean is subtracted after squaring where it is small, as it is in training; where it is not,
    that would lose digits, and one more pass subtracts it before.
    """
    last = weight.new_zeros(1) if bias is None else bias
    total = _sum_of_squares(weight) + last.square()
    if not centered:
        return _Statistics(_inverse(total, total), None)
    inputs = weight.shape[1]
    entries = inputs + (bias is not None)
    mean = (weight.mv(weight.new_ones(inputs)) + last) / entries
    centred = total - entries * mean.square()
    if bool((centred < total / 4).any()):
        near = weight - mean[:, None]
        last = last if bias is None else bias - mean
        offset = (near.sum(1) + last) / entries
        near -= offset[:, None]
        last = last if bias is None else last - offset
        centred = _sum_of_squares(near) + last.square()
        return _Statistics(_inverse(centred, total), mean + offset, near, last)
    return _Statistics(_inverse(centred, total), mean)


def _sum_of_squares(weight: Tensor) -> Tensor:
    """Of each output's weights: many short sums, then one of those."""
    chunks = weight.t().split(_CHUNK)
    sums = torch.zeros_like(chunks[0])
    for chunk in chunks:
        sums[: len(chunk)].addcmul_(chunk, chunk)
    return sums.sum(0)


def _product(x: Tensor, table: Tensor) -> Tensor:
    """`x @ table` for sparse CSR rows."""
    return F.embedding_bag(
        x.col_indices(),
        table,
        x.crow_indices()[:-1],
        mode="sum",
        per_sample_weights=x.values(),
    )


def _rows_of_product(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of `xᵀ @ grad` that are not empty: their numbers and their values."""
    crow, col = x.crow_indices(), x.col_indices()
    col, order = col.sort(stable=True)
    rows, counts = torch.unique_consecutive(col, return_counts=True)
    row = torch.arange(len(crow) - 1, device=x.device).repeat_interleave(crow.diff())
    starts = counts.cumsum(0) - counts
    weights = x.values().index_select(0, order)
    source = row.index_select(0, order)
    return rows, F.embedding_bag(source, grad, starts, mode="sum", per_sample_weights=weights)


class _Similarity(torch.autograd.Function):
    """`x·w` of sparse rows, over the lengths that `mode` names.

    bias: an entry of w whose entry of x is 1; of the similarities alone.
    mode: "none" (the product), "weight" (over |w|), "cosine" (over |x||w|), "pearson" (centred).
    sink: a list that takes the weight's gradient as a `RowGradient`; None for a dense gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, mode: str, sink: list | None
    ) -> Tensor:
        x_inverse = w_inverse = mean = near = last = sums = None
        if mode != "none":
            w_inverse, mean, near, last = _weight_statistics(weight, bias, mode == "pearson")
        z = _product(x, (weight if near is None else near).t())
        if bias is not None:
            z += bias if last is None else last
        if w_inverse is not None:
            z *= w_inverse
        if mode in ("cosine", "pearson"):
            rows, sums = _row_statistics(x, mode == "pearson", int(bias is not None))
            x_inverse = rows.inverse
            if near is None and mean is not None and w_inverse is not None:
                z.addcmul_(sums[:, None], mean * w_inverse, value=-1)
            z = z.mul_(x_inverse[:, None]).clamp_(-1, 1)
        ctx.mode, ctx.sink, ctx.x = mode, sink, x
        ctx.save_for_backward(weight, bias, z, x_inverse, w_inverse, mean, sums)
        return z

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[None, Tensor | None, Tensor | None, None, None]:
        weight, bias, z, x_inverse, w_inverse, mean, sums = ctx.saved_tensors
        grad = grads[0]
        slope = shift = None
        if w_inverse is not None:
            slope = w_inverse.square() * (grad * z).sum(0)
            grad = grad * w_inverse
        if x_inverse is not None:
            grad = grad * x_inverse[:, None]
        if mean is not None:
            entries = weight.shape[1] + (bias is not None)
            shift = sums @ grad / -entries
        of_bias = None
        if bias is not None:
            of_bias = grad.sum(0) - (bias if mean is None else bias - mean) * slope
            of_bias = of_bias if shift is None else of_bias + shift
        if not ctx.needs_input_grad[1]:
            return None, None, of_bias, None, None
        gradient = RowGradient(*_rows_of_product(ctx.x, grad), slope, shift, mean)
        if ctx.sink is None:
            return None, gradient.dense(weight), of_bias, None, None
        ctx.sink.append(gradient)
        return None, None, of_bias, None, None


class SparseLinear(nn.Module):
    """A linear layer of a method whose input is sparse CSR, (rows, in_features).

    The same function and the same state as `cosnorm.nn.linear(method, …)`, gradients included; the
    input itself gets no gradient. `weight` has shape (out, in) and the transposed memory layout.
    Statistics and products are float32.

    `deferred`: with True, `backward` leaves `weight.grad` alone and puts the weight's gradient into
    `pending`, for `descend`.

    >>> layer = SparseLinear("cosine", 4, 2, activation="relu")
    >>> layer(torch.eye(4).to_sparse_csr()).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        method: str,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        affine: bool = False,
        scale: float | None = None,
        learn_scale: LearnScale = False,
        activation: Literal["relu"] | None = None,
    ) -> None:
        super().__init__()
        if not METHODS.named(method).sparse:
            known = ", ".join(name for name, entry in METHODS.items() if entry.sparse)
            raise ValueError(
                f"method must be one of {known}; got {method!r}, which has no layer for sparse "
                "rows: use a dense one"
            )
        if activation not in (None, "relu"):
            raise ValueError(f"activation must be None or 'relu'; got {activation!r}")
        check_affine(method, affine)
        check_bias(type(self).__name__, bias)
        self.method, self.activation, self.in_features = method, activation, in_features
        self.mode = method if method in ("pearson", "cosine", "weight") else "none"
        table = torch.empty(in_features, out_features)
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(table.t(), a=5**0.5))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self._add_norm(out_features, affine)
        add_scale(self, out_features, scale, learn_scale)
        reset_scale(self)
        self.deferred = False
        self.pending: list[RowGradient] = []

    def _add_norm(self, outputs: int, affine: bool) -> None:
        self.norm: nn.Module = nn.Identity()
        if self.method == "batch":
            self.norm = nn.BatchNorm1d(outputs, affine=affine)
        elif self.method == "layer":
            self.norm = nn.LayerNorm(outputs, elementwise_affine=affine)
        elif self.method == "group":
            self.norm = nn.GroupNorm(group_count(outputs), outputs, affine=affine)
        elif self.method == "rms":
            self.norm = RootMeanSquare(outputs, affine=affine)
        has_gain = affine and self.method == "weight"
        self.gain = nn.Parameter(torch.ones(outputs)) if has_gain else None
        self.shift = nn.Parameter(torch.zeros(outputs)) if has_gain else None

    def forward(self, input: Tensor) -> Tensor:
        layout = getattr(input, "layout", type(input).__name__)
        if layout != torch.sparse_csr or input.dim() != 2 or input.shape[1] != self.in_features:
            shape = f" of shape {tuple(input.shape)}" if isinstance(input, Tensor) else ""
            raise ValueError(
                f"input must be sparse CSR, rows of {self.in_features} columns; got {layout}"
                f"{shape}: call to_sparse_csr() of a matrix"
            )
        if input.dtype != self.weight.dtype:
            raise TypeError(
                f"input must have the dtype of the weights, {self.weight.dtype}; got "
                f"{input.dtype}: call input.to({self.weight.dtype})"
            )
        with torch.autocast(input.device.type, enabled=False):
            sink = self.pending if self.deferred else None
            inside = self.bias if self.mode in ("cosine", "pearson") else None
            z = _Similarity.apply(input, self.weight, inside, self.mode, sink)
            if self.bias is not None and inside is None:
                z = z + self.bias
            z = self.norm(z)
        if self.gain is not None and self.shift is not None:
            z = z * self.gain + self.shift
        if self.scale is not None:
            z = z * self.scale
        return F.relu(z) if self.activation == "relu" else z

    @torch.no_grad()
    def descend(self, lr: float) -> None:
        """One step of plain SGD on the weight from the gradients that wait, which are then gone."""
        if len(self.pending) == 1:
            self.pending[0].descend(self.weight, lr)
        else:
            # Several backward passes: all their gradients belong to the weight as it is now.
            gradients = [gradient.dense(self.weight) for gradient in self.pending]
            for gradient in gradients:
                self.weight.sub_(gradient, alpha=lr)
        self.pending.clear()
