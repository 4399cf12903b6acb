"""What passes between the steps of a layer, in torch and in Triton alike."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cosnorm.reference import compute_dtype


class Geometry(NamedTuple):
    """A linear layer has no spatial dimensions: rows are fields of one position."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> "Geometry":
        """Of any sequences. Plans of launches are found by it, so it has to be hashable."""
        return cls(tuple(stride), tuple(padding), tuple(dilation), groups)


LINEAR = Geometry((), (), (), 1)


class Weight(NamedTuple):
    """Weights ready for the product, and what remains to be done to the product."""

    weight: Tensor
    bias: Tensor | None
    stats: Tensor  # (2, out): 1/|w| and μw
    total: Tensor | None  # Σw of each unit as multiplied, Pearson only
    rnorm: Tensor | None = None  # 1/|w| where it is still to be applied


class Kept(NamedTuple):
    """What backward needs beside the arguments: y or c, and a few floats a field and a unit."""

    output: Tensor
    cosine: Tensor
    rnorm: Tensor
    mean: Tensor
    weight_stats: Tensor
    unit: Tensor  # v, where `keeps_unit`


def keeps_unit(input: Tensor, weight: Tensor) -> bool:
    """Whether v is kept for backward: a copy in lower precision, as autocast makes them.

    A plain layer keeps its copy of such weights too. Others are normalised again in backward, which
    costs less than what they would hold.
    """
    return weight.dtype.itemsize > compute_dtype(input).itemsize


class Grad(NamedTuple):
    product: Tensor  # g = d·r_x, which the two gradients of the product start from
    field: Tensor  # s = r_x² Σ_k d·c of each field, (N, groups, …)
    unit: Tensor | None  # Σ d·c over the fields, of each unit, where it comes cheap
    scale: Tensor | None


class Place(NamedTuple):
    """A layer in the middle of backward: its arguments, what it kept, and its first step."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    kept: Kept
    prepared: Weight
    step: Grad
    geometry: Geometry
    centered: bool


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


def output_size(input: Sequence[int], kernel: Sequence[int], geometry: Geometry) -> list[int]:
    """Spatial sizes of a layer's output, from those of its input and its kernel."""
    stride, padding, dilation, _ = geometry
    sizes = zip(input, kernel, stride, padding, dilation, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
