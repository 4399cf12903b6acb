"""Work beside other work on a GPU: a second stream within the caller's.

A product leaves processors idle while its last tiles finish, and memory idle throughout; passes
that don't wait for it fit in. The second stream begins where the caller's is and is joined to it
again before anything is returned, so that callers see one stream.
"""

from contextlib import AbstractContextManager, nullcontext

import torch

# Cycles by which a product is ahead of what runs beside it, as measured on an H200: it takes some
# 4,000 to begin, and a pass in the middle of it does more harm than one at its beginning. A second
# product must not come first.
_LEAD = {"fields": 4_000, "weights": 16_000}

_streams: dict[tuple[int, ...], "_Streams"] = {}


class _Streams:
    """A stream, its companion, and the events by which they wait for each other.

    Events are recorded again and again: a stream waits for what an event stood for when it was
    told to.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.first, self.second = stream, torch.cuda.Stream(stream.device)
        self.forked, self.joined = torch.cuda.Event(), torch.cuda.Event()
        self.blocks = {what: _Beside(self, lead) for what, lead in _LEAD.items()}


class _Side:
    """Launches on the companion, after a pause."""

    def __init__(self, streams: _Streams, lead: int) -> None:
        self._streams, self._lead = streams, lead

    def __enter__(self) -> None:
        # `with torch.cuda.stream` takes the host three times as long.
        torch.cuda.set_stream(self._streams.second)
        try:
            torch.cuda._sleep(self._lead)
        except BaseException:
            torch.cuda.set_stream(self._streams.first)
            raise

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._streams.first)


class _Beside:
    """A block in which the companion has work: it waits for the stream, and then the stream for it.

    Neither this nor `_Side` holds anything of a use, so that all uses can share them.
    """

    def __init__(self, streams: _Streams, lead: int) -> None:
        self._streams, self._side = streams, _Side(streams, lead)

    def __enter__(self) -> _Side:
        streams = self._streams
        streams.forked.record(streams.first)
        streams.second.wait_event(streams.forked)
        return self._side

    def __exit__(self, *_: object) -> None:
        streams = self._streams
        streams.joined.record(streams.second)
        streams.first.wait_event(streams.joined)


def beside(
    device: torch.device, what: str
) -> AbstractContextManager[AbstractContextManager[object]]:
    """A block, and as its value a context whose launches run beside those outside of it, until the
    block ends.

    what: statistics of the "fields", or gradients of the "weights".

    Memory is handed out in the order of one stream. So whatever the second stream reads or writes
    must be allocated before the block: what the first frees in the block, a product's workspace
    say, may still be in use when the second would get it. What is allocated inside the inner
    context belongs to the second stream and must not be used outside.

    Launch the product first; the second stream gives it a lead.
    """
    if device.type != "cuda":
        return nullcontext(nullcontext())
    current = torch._C._cuda_getCurrentStream(device.index)  # its numbers alone: no object is made
    if current not in _streams:
        _streams[current] = _Streams(torch.cuda.current_stream(device))
    return _streams[current].blocks[what]
