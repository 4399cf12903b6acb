"""Work beside other work on a GPU: a second stream within the caller's.

A product leaves processors idle while its last tiles finish, and memory idle throughout; passes
that don't wait for it fit in. The second stream begins where the caller's is and is joined to it
again before anything is returned, so that callers see one stream.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

# Cycles by which a product is ahead of what runs beside it, as measured on an H200: it takes some
# 4,000 to begin, and a pass in the middle of it does more harm than one at its beginning. A second
# product must not come first.
_LEAD = {"fields": 4_000, "weights": 16_000}

_companions: dict[tuple[int, int], torch.cuda.Stream] = {}


def _companion(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    key = (stream.device_index, stream.cuda_stream)
    if key not in _companions:
        _companions[key] = torch.cuda.Stream(stream.device)
    return _companions[key]


@contextmanager
def _second(stream: torch.cuda.Stream, companion: torch.cuda.Stream, lead: int) -> Iterator[None]:
    torch.cuda.set_stream(companion)  # `with torch.cuda.stream` takes the host three times as long
    try:
        torch.cuda._sleep(lead)
        yield
    finally:
        torch.cuda.set_stream(stream)


@contextmanager
def beside(device: torch.device, what: str) -> Iterator[AbstractContextManager]:
    """Yields a context whose launches run beside those outside of it, until the block ends.

    what: statistics of the "fields", or gradients of the "weights".

    Memory is handed out in the order of one stream. So whatever the second stream reads or writes
    must be allocated before the block: what the first frees in the block, a product's workspace
    say, may still be in use when the second would get it. What is allocated inside the inner
    context belongs to the second stream and must not be used outside.

    Launch the product first; the second stream gives it a lead.
    """
    if device.type != "cuda":
        yield nullcontext()
        return
    stream = torch.cuda.current_stream(device)
    companion = _companion(stream)
    companion.wait_stream(stream)
    try:
        yield _second(stream, companion, _LEAD[what])
    finally:
        stream.wait_stream(companion)
