"""Work beside other work on a GPU: a second stream within the caller's.

A product leaves processors idle while its last tiles finish, and memory idle throughout; passes
that don't wait for it fit in. The second stream begins where the caller's is and is joined to it
again before anything is returned, so that callers see one stream.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_PAUSE = 4_000  # cycles, some two microseconds: about what a product takes to begin

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

    Memory is handed out in the order of one stream. So whatever the second stream reads or writes
    must be allocated before the block: what the first frees in the block, a product's workspace
    say, may still be in use when the second would get it. What is allocated inside the inner
    context belongs to the second stream and must not be used outside.

    Launch the product first; the second stream gives it the time to begin.
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
