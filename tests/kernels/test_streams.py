"""What runs beside a product touches no memory that was handed out meanwhile.

Torch hands memory out in the order of one stream: what is freed while a product runs, its workspace
say, goes to whoever asks next, and only the first stream knows to wait. So everything that the
second stream reads or writes must have been allocated before the block, or by itself.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cosnorm import algorithm, chain_op
from cosnorm.kernels.steps import LINEAR, Geometry

pytest.importorskip("triton", reason="the kernels need triton")
from cosnorm.kernels import launch, passes, streams

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU the kernels are compiled for it"
)


class Watch(TorchDispatchMode):
    """Notes in which phase each tensor was allocated, and what the second stream touches."""

    def __init__(self):
        super().__init__()
        self.phase, self.born, self.faults, self.passes = "before", {}, [], 0

    def check(self, name, tensors):
        if self.phase != "beside":
            return
        self.passes += 1
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and self.born.get(self._key(tensor)) == "meanwhile":
                self.faults.append(f"{name} touches {tuple(tensor.shape)}")

    def _key(self, tensor):
        return tensor.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.check(str(func), [a for a in args if isinstance(a, torch.Tensor)])
        given = {self._key(a) for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple | list) else [result]:
            if isinstance(out, torch.Tensor) and self._key(out) not in (0, *given):
                self.born[self._key(out)] = self.phase
        return result

    @contextmanager
    def beside(self, device, what):
        self.born.clear()  # the second stream has been joined, and waits for the first now
        self.phase = "meanwhile"
        yield self._side()
        self.phase = "before"

    @contextmanager
    def _side(self):
        self.phase = "beside"
        yield
        self.phase = "meanwhile"


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    before = algorithm.set_backend("triton")
    monkeypatch.setattr(launch, "apart", lambda *_: True)
    monkeypatch.setattr(launch, "beside", watch.beside)
    launched = passes.Launch.__call__

    def look(self, *tensors):
        watch.check("a pass", tensors)
        launched(self, *tensors)

    monkeypatch.setattr(passes.Launch, "__call__", look)
    yield watch
    algorithm.set_backend(before)


CONVOLUTION = ((2, 3, 5, 4), (4, 3, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1))
ROWS = ((6, 10), (5, 10), LINEAR)


@pytest.mark.parametrize("dtypes", ["float32", "float16", "bfloat16 float32"])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("size, kernel, geometry", [CONVOLUTION, ROWS], ids=["conv", "linear"])
@pytest.mark.parametrize("awkward", [False, True])
def test_a_layer(size, kernel, geometry, centered, dtypes, awkward, watch):
    of_input, *of_weight = (getattr(torch, name) for name in dtypes.split())
    x = torch.randn(size).to(of_input)
    w = torch.randn(kernel).to(*of_weight or [of_input])
    if awkward:  # copies have to be made, which is when memory is handed out
        x, w = x.mT.contiguous().mT, w.mT.contiguous().mT
    bias = torch.randn(kernel[0]).to(w.dtype)
    with watch:
        kept = algorithm.forward(x, w, bias, None, geometry, 1.0, centered, True)
        arguments = (x, w, bias, None, kept, geometry, 1.0, centered, True)
        algorithm.backward(kept.output, *arguments, (True, True, True, False))
    assert watch.passes > 3 and not watch.faults


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("centered", [False, True])
def test_a_chain(centered, dtype, watch):
    x = torch.randn(2, 3, 5, 4).to(dtype)
    weights = [torch.randn(4, 3, 3, 3).to(dtype), torch.randn(2, 4, 2, 2).to(dtype)]
    sizes = ([1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1])
    with watch:
        kept = chain_op._run(x, weights, [], *sizes, centered, True)
        grad = torch.ones_like(kept[-chain_op.KEPT])
        chain_op._run_backward(grad, x, weights, [], kept, *sizes, centered, True, [True] * 3)
    assert watch.passes > 6 and not watch.faults


def test_the_watch_sees_what_was_allocated_too_late(watch, monkeypatch):
    """The mistake that once made a GPU stand still."""
    early = launch.fields_beside

    def late(input, weight, found, geometry, centered, known):
        watch.phase = "meanwhile"
        found = found._replace(square=torch.empty_like(found.square))
        watch.phase = "beside"
        early(input, weight, found, geometry, centered, known)

    monkeypatch.setattr(launch, "fields_beside", late)
    size, kernel, geometry = CONVOLUTION
    with watch:
        x, w = torch.randn(size), torch.randn(kernel)
        algorithm.forward(x, w, None, None, geometry, 1.0, False, True)
    assert watch.faults


class Told:
    """Streams and events that only note what they are told."""

    def __init__(self, monkeypatch):
        self.notes, self.current = [], "first"
        made = iter(["second", "third"])

        class Stream:
            def __init__(stream, name):
                stream.name, stream.device = name, "cuda:0"

            def wait_event(stream, event):
                self.notes.append(f"{stream.name} waits for {event.at}")

        class Event:
            def record(event, stream):
                event.at = f"{stream.name} {len(self.notes)}"
                self.notes.append(f"mark {event.at}")

        def set_stream(stream):
            self.current = stream.name

        cuda = torch.cuda
        monkeypatch.setattr(cuda, "Stream", lambda device: Stream(next(made)))
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "set_stream", set_stream)
        monkeypatch.setattr(cuda, "current_stream", lambda device: Stream(self.current))
        monkeypatch.setattr(cuda, "_sleep", lambda cycles: self.launch("pause"))
        number = lambda index: (self.current, index)  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", number, raising=False)
        monkeypatch.setattr(streams, "_streams", {})

    def launch(self, what):
        self.notes.append(f"{what} on {self.current}")


@pytest.fixture
def told(monkeypatch):
    return Told(monkeypatch)


DEVICE = torch.device("cuda", 0)


def test_the_second_stream_begins_and_ends_within_the_first(told):
    for _ in range(2):  # events are used again
        told.notes.clear()
        with streams.beside(DEVICE, "fields") as side:
            told.launch("product")
            with side:
                told.launch("statistics")
            told.launch("more")
        told.launch("the rest")
        assert told.notes == [
            "mark first 0",
            "second waits for first 0",
            "product on first",
            "pause on second",
            "statistics on second",
            "more on first",
            "mark second 6",
            "first waits for second 6",
            "the rest on first",
        ]


@pytest.mark.parametrize("when", ["in the pause", "on the side", "in the block"])
def test_a_failure_leaves_the_caller_where_it_was(when, told, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    if when == "in the pause":
        monkeypatch.setattr(torch.cuda, "_sleep", fail)
    with pytest.raises(KeyboardInterrupt), streams.beside(DEVICE, "weights") as side:
        with side:
            if when == "on the side":
                fail()
        fail()
    assert told.current == "first" and told.notes[-1].startswith("first waits for second")


def test_each_stream_has_a_companion_of_its_own(told):
    blocks = {}
    for current in ("first", "other", "first"):
        told.current = current
        blocks.setdefault(current, []).append(streams.beside(DEVICE, "fields"))
    assert blocks["first"][0] is blocks["first"][1] is not blocks["other"][0]
    assert streams.beside(DEVICE, "weights") is not blocks["first"][0]


class OnGpu:
    """A tensor's face, as far as it is looked at."""

    device = DEVICE

    def __init__(self, *shape):
        self.shape = torch.Size(shape)

    def numel(self):
        return self.shape.numel()


def test_which_layers_are_large():
    weight, few, many = OnGpu(512, 512, 3, 3), OnGpu(128, 512, 12, 12), OnGpu(128, 512, 24, 24)
    assert not launch.apart(torch.zeros(128, 8, 24, 24), torch.zeros(8, 8, 3, 3))  # on a CPU
    assert launch.apart(few, weight) and launch.apart(many, weight)
    assert launch.apart(many, weight, windows_only=True)
    assert not launch.apart(few, weight, windows_only=True)
    assert not launch.apart(OnGpu(128, 784), OnGpu(1000, 784))
    assert launch.apart(OnGpu(128, 3, 24, 24), OnGpu(512, 3, 3, 3))  # few products, much to write
