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
        programs, function, kernel_arguments = arguments[:3], arguments[4], arguments[9:]
        told = [("at", a.data_ptr()) if isinstance(a, torch.Tensor) else (type(a), a)
                for a in kernel_arguments]
        LAUNCHES.append((self.hash, programs, function, told))

class Utilities:
    loaded = 0

    def load_binary(self, *arguments):
        Utilities.loaded += 1
        return 1, Utilities.loaded, 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 18}

    def unload_module(self, *arguments):
        pass

class Driver:
    utils, launcher_cls = Utilities(), Launcher

    def get_current_device(self):
        return DEVICE

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

DEVICE = 0
torch.Tensor.get_device = lambda tensor: DEVICE
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
def planned(depth, flag):
    return passes.start_grad(
        18, 18, 9, 1, depth, 9 * depth, 9, 1, 9 * depth, 9, 1, 0, 9,
        CENTERED=flag, BIAS=False, RELU=True, COSINE=False, RAW=False, SCALE=0, DSCALE=False,
        UNITS=False, BP=16, BC=16, WHOLE=True, BW=16, num_warps=2 if flag else 4,
    )

def pass_of(dtype, shift, gain, depth, flag):
    shifts = shift if isinstance(shift, tuple) else (shift, shift)
    x, y = (tensor(2, depth, 3, 3, dtype=dtype, shift=each) for each in shifts)
    rnorm = tensor(2, 1, 3, 3)
    def work():
        launch = planned(depth, flag)
        launch(x, y, rnorm, None, x, rnorm, rnorm, x, None, x, None, rnorm, None, gain)
    return work

works = []
for dtype in (torch.float32, torch.bfloat16):
    for shift in (0, 1, 2, 4, (0, 1), (1, 0)):
        for gain in (1.0, 2.5, 1, 2):
            for depth in (1, 16, 17):
                works.append(pass_of(dtype, shift, gain, depth, depth > 1))
for work in works:
    assert launches(work, True) == launches(work, False) and len(LAUNCHES) == 3

# All at once, so that what is remembered of one launch could be mistaken for another's.
def all_of_them(forgetful):
    for work in works:
        if forgetful:
            passes.forget()
        work()

known = launches(lambda: all_of_them(False), True)
assert known == launches(lambda: all_of_them(True), False) and len(known) == 3 * len(works)
assert len({hash for hash, *_ in known}) > 8

# What is known is known of a device, of dtypes and of alignment; None is none of them.
passes.forget()
launch_of_16 = planned(16, True)
first = pass_of(torch.float32, 0, 1.0, 16, True)
first()
assert len(launch_of_16._known) == 1
here = LAUNCHES[-1]
DEVICE = 1
first()
there = LAUNCHES[-1]
assert len(launch_of_16._known) == 2 and here[:2] == there[:2] and here[2] != there[2]
DEVICE = 0
first()
assert LAUNCHES[-1] == here
x, rnorm = tensor(2, 16, 3, 3), tensor(2, 1, 3, 3)
launch_of_16(x, x, rnorm, rnorm, x, rnorm, rnorm, x, None, x, None, rnorm, None, 1.0)
assert LAUNCHES[-1][0] != here[0] and len(launch_of_16._known) == 3
pass_of(torch.float32, 1, 1.0, 16, True)()
assert LAUNCHES[-1][0] != here[0] and len(launch_of_16._known) == 4

# Layers in real life, argument by argument.
def names(made):
    return [(hash, programs, function, [a for a in told if a[0] != "at"])
            for hash, programs, function, told in made]

for apart in (False, True):
    launch.apart = lambda *_: apart
    x, w = torch.randn(2, 6, 5, 4, requires_grad=True), torch.randn(4, 6, 3, 2, requires_grad=True)
    def layer():
        y = functional.cosine_conv2d(
            x, w, None, (2, 1), (1, 0), centered=True, scale=3.0, activation="relu"
        )
        torch.autograd.grad(y, (x, w), y)
    made = names(launches(layer, True))
    assert made == names(launches(layer, False)) and len(made) >= 12

passes.forget()
assert planned(16, True) is not launch_of_16
print("alike")
"""


def test_known_launches_are_tritons_own():
    assert output_of(PROGRAM) == ["alike"]
