"""Work beside other work on a GPU: a second stream within the caller's.

A product leaves processors idle while its last tiles finish, and memory idle throughout; passes
that don't wait for it fit in. The second stream begins where the caller's is and is joined to it
again before anything is returned, so that callers see one stream.

Only passes of ours run beside a product, never a second product: kernels of the libraries may wait
for one another's blocks, and two of them at once have been seen to wait for ever.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_PAUSE = 8000  # cycles, a few microseconds: the time that a product takes to begin

_companions: dict[tuple[int, int], torch.cuda.Stream] = {}


def _companion(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    key = (stream.device_index, stream.cuda_stream)
    if key not in _companions:
        _companions[key] = torch.cuda.Stream(stream.device)
    return _companions[key]


@contextmanager
def _second(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_PAUSE)  # or our small programs would be first, and the product wait
        yield


@contextmanager
def beside(device: torch.device) -> Iterator[AbstractContextManager]:
    """Yields a context whose launches run beside those outside of it, until the block ends.

    Launch the product first. Allocate nothing inside that context: the memory would belong to the
    second stream, which does not wait for what the first does with it.
    """
    if device.type != "cuda":
        yield nullcontext()
        return
    stream = torch.cuda.current_stream(device)
    companion = _companion(stream)
    companion.wait_stream(stream)
    try:
        yield _second(companion)
    finally:
        stream.wait_stream(companion)
