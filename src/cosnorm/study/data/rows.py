"""Rows of a stored set, dense or sparse, selected on the device where they live."""

import warnings

import torch
from torch import Tensor


def sparse_csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """`torch.sparse_csr_tensor` without its two once-a-process notices.

    One says that the layout is in beta, the other that its parts are not checked; torch 2.11 gives
    the second even where the argument says so.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        return torch.sparse_csr_tensor(crow, col, values, size=shape, check_invariants=False)


def take(x: Tensor, index: Tensor) -> Tensor:
    """The rows `x[index]` of a dense or a sparse CSR tensor; a sparse one is never densified.

    Args:
        x: (N, …), dense, or (N, F), sparse CSR.
        index: int64 (n,), each in 0…N-1, on the device of `x`; rows may repeat, in any order.

    Returns:
        (n, …) of the same layout and type. On CUDA the sparse case waits for the device once, to
        learn how many values there are; the dense case does not, and can be captured in a graph.

    Example:
        >>> take(torch.eye(3), torch.tensor([2, 0])).shape
        torch.Size([2, 3])
    """
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"index must be a vector of int64 row numbers; received {index.dtype} of shape "
            f"{tuple(index.shape)}; for a mask use mask.nonzero().squeeze(1)"
        )
    if x.layout == torch.sparse_csr:
        return _take_csr(x, index)
    return x.index_select(0, index)


def _take_csr(x: Tensor, index: Tensor) -> Tensor:
    crow, col, values = x.crow_indices(), x.col_indices(), x.values()
    starts = crow[:-1].index_select(0, index)
    counts = crow[1:].index_select(0, index) - starts
    picked_crow = torch.zeros(len(index) + 1, dtype=crow.dtype, device=crow.device)
    torch.cumsum(counts, 0, dtype=crow.dtype, out=picked_crow[1:])
    total = int(picked_crow[-1])
    shift = (starts - picked_crow[:-1]).repeat_interleave(counts, output_size=total)
    source = torch.arange(total, device=crow.device) + shift
    return sparse_csr(
        picked_crow,
        col.index_select(0, source),
        values.index_select(0, source),
        (len(index), x.shape[1]),
    )
