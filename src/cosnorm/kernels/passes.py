"""The Triton passes as they are launched: without the work that is the same at every launch.

In a layer as small as those of a network for 32×32 images, the host takes longer to work out a
launch than the GPU takes to run it. So what follows from shapes and flags alone is worked out once
and remembered (`plan`), and a launch like one before it goes straight to that one's kernel, where
Triton would look at every argument first.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from cosnorm.kernels import fused

T = TypeVar("T", bound=Callable[..., Any])

_MOST = 4096  # plans of a kind that are remembered: inputs of many sizes must not fill memory
_KEEPS_ARGUMENTS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6)
_plans: list[Any] = []


def plan(make: T) -> T:
    """A function that is called once for the same arguments."""
    remembering: Any = lru_cache(maxsize=_MOST)(make)
    _plans.append(remembering)
    return remembering


def forget() -> None:
    """Plan everything anew."""
    for each in _plans:
        each.cache_clear()


class Launch:
    """A pass with everything but its tensors: how many programs, numbers in order, sizes by name.

    Of tensors, Triton looks at dtypes and at alignment to 16 bytes. Where all are aligned, a kernel
    is known by the device and the dtypes; the rest is left to Triton.
    """

    __slots__ = ("_function", "_known", "_numbers", "_programs", "_sizes")

    def __init__(self, function: Any, programs: int, *numbers: float, **sizes: Any) -> None:
        self._function, self._programs = function, programs
        self._numbers, self._sizes = numbers, sizes
        self._known: dict[tuple, tuple[Callable[..., None], tuple]] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        first = tensors[0]
        assert first is not None
        key, bits = [first.get_device()], 0
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            else:
                key.append(tensor.dtype)
                bits |= tensor.data_ptr()
        known = None if bits & 15 else self._known.get(tuple(key))
        if known is None:
            self._first(key, bits, tensors)
        else:
            run, rest = known
            run(*tensors, *rest)

    def _first(self, key: list, bits: int, tensors: tuple[Tensor | None, ...]) -> None:
        arguments = (*tensors, *self._numbers)
        kernel = self._function[self._programs,](*arguments, **self._sizes)
        if bits & 15 or not (_KEEPS_ARGUMENTS and isinstance(kernel, CompiledKernel)):
            return  # by the interpreter, say
        rest = (self._sizes[name] for name in self._function.arg_names[len(arguments) :])
        self._known[tuple(key)] = kernel[self._programs, 1, 1], (*self._numbers, *rest)


class Pass:
    """A Triton function, of which launches are made."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, programs: int, *numbers: float, **sizes: Any) -> Launch:
        return Launch(self._function, programs, *numbers, **sizes)


prepare = Pass(fused.prepare)
windows = Pass(fused.windows)
finish = Pass(fused.finish)
start_grad = Pass(fused.start_grad)
link_grad = Pass(fused.link_grad)
end_grad = Pass(fused.end_grad)
