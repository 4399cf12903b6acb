"""A launch that goes straight to a known kernel is the launch that Triton would have made.

Triton's own launcher is needed for that, and a GPU is not: a driver that compiles for one and notes
what it is told to launch stands in, in a process without the interpreter.
"""

import pytest
from real_triton import output_of

pytest.importorskip("triton", reason="the kernels need triton")

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

LAUNCHES = []

class Launcher:
    def __init__(self, source, metadata):
        self.hash = metadata.hash

    def __call__(self, *arguments):
        programs, kernel_arguments = arguments[:3], arguments[9:]
        told = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in kernel_arguments]
        LAUNCHES.append((self.hash, programs, told))

class Utilities:
    def load_binary(self, *arguments):
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 18}

    def unload_module(self, *arguments):
        pass

class Driver:
    utils, launcher_cls = Utilities(), Launcher

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

driver.set_active(Driver())

from cosnorm import algorithm, functional
from cosnorm.kernels import launch, passes

algorithm.set_backend("triton")

def tensor(*shape, dtype=torch.float32, shift=0):
    size = torch.Size(shape).numel()
    return torch.zeros(size + 8, dtype=dtype)[shift : shift + size].view(shape)

def launches(work, known):
    del LAUNCHES[:]
    passes.forget()
    for _ in range(3):
        if not known:
            passes.forget()
        work()
    return list(LAUNCHES)

@passes.plan
def planned(gain, depth, flag):
    return passes.start_grad(
        18, gain, 18, 9, 1, depth, 9 * depth, 9, 1, 9 * depth, 9, 1, 0, 9,
        CENTERED=flag, BIAS=False, RELU=True, COSINE=False, RAW=False, SCALE=0, DSCALE=False,
        UNITS=False, BP=16, BC=16, WHOLE=True, BW=16, num_warps=2 if flag else 4,
    )

def pass_of(dtype, shift, gain, depth, flag):
    x, y = (tensor(2, depth, 3, 3, dtype=dtype, shift=shift) for _ in range(2))
    rnorm = tensor(2, 1, 3, 3)
    def work():
        launch = planned(gain, depth, flag)
        launch(x, y, rnorm, None, x, rnorm, rnorm, x, None, x, None, rnorm, None)
    return work

works = []
for dtype in (torch.float32, torch.bfloat16):
    for shift in (0, 1):
        for gain in (1.0, 2.5):
            for depth in (1, 16, 17):
                works.append(pass_of(dtype, shift, gain, depth, depth > 1))
for work in works:
    assert launches(work, True) == launches(work, False) and len(LAUNCHES) == 3

# All at once, so that what is remembered of one launch could be mistaken for another's.
def all_of_them():
    for work in works:
        work()

known = launches(all_of_them, True)
assert known == launches(all_of_them, False) and len(known) == 3 * len(works)
assert len({hash for hash, _, _ in known}) > 8

# A layer in real life.
for apart in (False, True):
    launch.apart = lambda *_: apart
    x, w = torch.randn(2, 6, 5, 5, requires_grad=True), torch.randn(4, 6, 3, 3, requires_grad=True)
    def layer():
        y = functional.cosine_conv2d(x, w, padding=1, centered=True, activation="relu")
        torch.autograd.grad(y, (x, w), y)
    shape = lambda made: [(hash, programs, len(told)) for hash, programs, told in made]
    assert shape(launches(layer, True)) == shape(launches(layer, False))

# What is known is known of a launch: aligned tensors of these dtypes, on this device.
passes.forget()
launch, other = planned(1.0, 16, True), pass_of(torch.float32, 1, 1.0, 16, True)
other()
assert not launch._known
pass_of(torch.float32, 0, 1.0, 16, True)()
pass_of(torch.bfloat16, 0, 1.0, 16, True)()
assert len(launch._known) == 2
other()
assert len(launch._known) == 2 and planned(1.0, 16, True) is launch

passes.forget()
assert planned(1.0, 16, True) is not launch
print("alike")
"""


def test_known_launches_are_tritons_own():
    assert output_of(PROGRAM) == ["alike"]
