"""What a layer costs the host, for which a GPU may have to wait: the calls that it makes.

Counted in a process of its own, where torch is as it comes, with kernels that do nothing. A count
of calls, of Python's functions and C's, does not depend on the machine, as a time does.
"""

import pytest
from real_triton import output_of

pytest.importorskip("triton", reason="the kernels need triton")

PROGRAM = """
import sys
import torch
import cosnorm
from cosnorm import nn
from cosnorm.ops import triton
from cosnorm.ops.triton import plan

def ready(launch, tensors, factors):  # as a launch is once its kernel is compiled
    launch._head, launch._rest = (0, 0, None, None, None), launch._numbers
    launch._run = lambda *arguments: None

plan.Launch._by_triton = ready
triton._works = lambda device: True
cosnorm.set_backend("triton")

def calls(layer, size):
    x = torch.randn(size, requires_grad=True)
    count = 0
    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    def step():
        layer(x).sum().backward()
    step(), step()
    sys.setprofile(seen)
    step()
    sys.setprofile(None)
    return count

def compared(plain, layer, size):
    print(calls(layer, size) - calls(plain, size))

rows, images = (2, 3, 8), (2, 4, 5, 5)
for similarity in ("Cosine", "Pearson"):
    linear, conv = (getattr(nn, similarity + kind) for kind in ("Linear", "Conv2d"))
    compared(torch.nn.Linear(8, 6, bias=False), linear(8, 6), rows)
    compared(torch.nn.Linear(8, 6), linear(8, 6, bias=True), rows)
    compared(torch.nn.Conv2d(4, 6, 3, bias=False), conv(4, 6, 3, activation="relu"), images)
    depthwise = conv(4, 4, 3, groups=4, activation="relu")
    compared(torch.nn.Conv2d(4, 4, 3, groups=4, bias=False), depthwise, images)
"""


def test_a_layer_makes_few_calls():
    """More than those of the plain layer by no more than this: twice as many were too slow."""
    counts = list(map(int, output_of(PROGRAM)))
    most = [94, 114, 105, 112] * 2
    assert all(count <= limit for count, limit in zip(counts, most, strict=True)), counts
