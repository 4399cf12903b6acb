"""Work beside other work on a GPU: a second stream within the caller's.

A product leaves processors idle while its last tiles finish, and memory idle throughout; passes
that don't wait for it fit in. The second stream begins where the caller's is and is joined to it
again before anything is returned, so that callers see one stream.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_companions: dict[tuple[int, int], torch.cuda.Stream] = {}


def _companion(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    key = (stream.device_index, stream.cuda_stream)
    if key not in _companions:
        _companions[key] = torch.cuda.Stream(stream.device)
    return _companions[key]


@contextmanager
def beside(device: torch.device) -> Iterator[AbstractContextManager]:
    """Yields a context whose launches run beside those outside of it, until the block ends.

    Memory that is allocated inside that context belongs to the second stream: nothing of it may be
    used outside, or be reused before the use is over.
    """
    if device.type != "cuda":
        yield nullcontext()
        return
    stream = torch.cuda.current_stream(device)
    companion = _companion(stream)
    companion.wait_stream(stream)
    try:
        yield torch.cuda.stream(companion)
    finally:
        stream.wait_stream(companion)
