"""What a layer computes, apart from its tensors: one value that every room below is given.

y = act(gain · scale · c),    c = x·w / (|x| |w|), centred for Pearson
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosnorm.ops.activations import ACTIVATIONS, Activation

SIMILARITIES = ("cosine", "pearson")


class Geometry(NamedTuple):
    """Where the fields of a convolution lie; one number for each dimension of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()  # of a transposed convolution, which alone has one

    @property
    def transposed(self) -> bool:
        return len(self.output_padding) > 0

    def output_size(self, input: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """Spatial sizes of the output, from those of the input and of the kernel."""
        sizes = zip(input, kernel, self.stride, self.padding, self.dilation, strict=True)
        if self.transposed:
            return [
                (n - 1) * s - 2 * p + d * (k - 1) + o + 1
                for (n, k, s, p, d), o in zip(sizes, self.output_padding, strict=True)
            ]
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]


class Spec(NamedTuple):
    """A similarity, what follows it, and the geometry; without one, a linear layer."""

    similarity: str
    activation: str | None = None
    gain: float = 1.0
    geometry: Geometry | None = None

    @property
    def centered(self) -> bool:
        return self.similarity == "pearson"

    @property
    def act(self) -> Activation:
        return ACTIVATIONS[self.activation]

    @property
    def groups(self) -> int:
        return 1 if self.geometry is None else self.geometry.groups

    @property
    def transposed(self) -> bool:
        return self.geometry is not None and self.geometry.transposed

    @property
    def name(self) -> str:
        """Of the op, and of the function, that compute it."""
        if self.geometry is None:
            return "cosine_linear"
        kind = "conv_transpose" if self.transposed else "conv"
        return f"cosine_{kind}{len(self.geometry.stride)}d"

    @property
    def statics(self) -> tuple:
        """The arguments of the op after its tensors; `of` takes them back."""
        sizes = () if self.geometry is None else self.geometry[: 5 if self.transposed else 4]
        return (*sizes, self.similarity, self.activation, self.gain)

    @classmethod
    def of(cls, *statics: Any) -> "Spec":
        *sizes, similarity, activation, gain = statics
        if not sizes:
            return cls(similarity, activation, gain)
        stride, padding, dilation, groups, *extra = sizes
        steps = (tuple(stride), tuple(padding), tuple(dilation))
        geometry = Geometry(*steps, groups, tuple(extra[0]) if extra else ())
        return cls(similarity, activation, gain, geometry)

    def units(self, weight: Tensor) -> int:
        """How many outputs the weights have."""
        return weight.shape[1] * self.groups if self.transposed else weight.shape[0]


def keeps_unit(dtype: torch.dtype, weight: Tensor) -> bool:
    """Whether v is kept for backward: a copy in lower precision, as autocast makes them.

    A plain layer keeps its copy of such weights too. Others are normalised again in backward, which
    costs less than what they would hold. dtype: of the product.
    """
    return weight.dtype.itemsize > dtype.itemsize


EARLY = (torch.bfloat16,)  # tests add float16, the dtype of two bytes that CPUs can show kernels in


def is_early(spec: Spec, weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether a layer normalises its rows before the product, which is then the output.

    So it is for linear layers in bfloat16 with no fewer outputs than inputs: a pass over rows of x
    is cheaper there than one over those of y. What rounds a similarity to over 1 is taken care of
    where rows and weights are rounded. dtype: of the product.

    Rows and weights are rounded once more for it, which counts where most of a product cancels, as
    with a large direction that all inputs share. A plain layer rounds wider weights too; where it
    rounds nothing, x stays as it is. So it does in float16: the gradient of a row of length 1 may
    lie below its range where that of x does not.
    """
    return (
        keeps_unit(dtype, weight)
        and spec.geometry is None
        and spec.activation is None
        and spec.gain == 1
        and scale is None
        and dtype in EARLY
        and weight.shape[0] >= weight.shape[1]
        and weight.shape[1] % 8 == 0  # else products are slow
    )


def memory_format(*tensors: Tensor) -> torch.memory_format:
    """Channels last if any of them is, as torch's convolutions choose."""
    known = {4: torch.channels_last, 5: torch.channels_last_3d}
    for x in tensors:
        last = known.get(x.dim())
        if last is None or not x.is_contiguous(memory_format=last):
            continue
        # One channel lies both ways at once; then its stride tells what was meant.
        if not x.is_contiguous() or (x.shape[1] == 1 and x.stride(1) == 1 < x.stride(0)):
            return last
    return torch.contiguous_format


def laid(grad: Tensor | None, *like: Tensor) -> Tensor | None:
    """A gradient in the layout of a tensor; that of an input in that of the layer's output."""
    return None if grad is None else grad.contiguous(memory_format=memory_format(*like))
