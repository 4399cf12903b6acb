"""The Triton passes as they are launched: without the work that is the same at every launch.

In a layer as small as those of a network for 32×32 images, the host takes longer to work out a
launch than the GPU takes to run it. So what follows from shapes and flags alone is worked out once
and remembered (`plan`), and a launch like one before it goes straight to that one's kernel, where
Triton would look at every argument first.
"""

from collections.abc import Callable
from functools import lru_cache, partial
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
    """A pass with all but its tensors and the gain: programs, numbers in order, sizes by name.

    Of what is given at the call, Triton looks at dtypes and at alignment to 16 bytes. So a kernel
    is known by those, and by the device.
    """

    __slots__ = ("_function", "_known", "_numbers", "_programs", "_sizes")

    def __init__(self, function: Any, programs: int, *numbers: int, **sizes: Any) -> None:
        self._function, self._programs = function, programs
        self._numbers, self._sizes = numbers, sizes
        self._known: dict[tuple, tuple[Callable[..., None], tuple]] = {}

    def __call__(self, *given: Tensor | float | None) -> None:
        first = given[0]
        assert isinstance(first, Tensor)
        key: list[Any] = [first.get_device()]
        bits = 0
        for value in given:
            if isinstance(value, Tensor):
                key.append(value.dtype)
                bits |= value.data_ptr()
            else:
                key.append(float if isinstance(value, float) else value)
        if bits & 15:
            key += [isinstance(v, Tensor) and v.data_ptr() & 15 > 0 for v in given]
        known = self._known.get(found := tuple(key))
        if known is None:
            self._by_triton(found, given)
        else:
            run, rest = known
            run(*given, *rest)

    def _by_triton(self, key: tuple, given: tuple[Tensor | float | None, ...]) -> None:
        arguments = (*given, *self._numbers)
        kernel = self._function[self._programs,](*arguments, **self._sizes)
        if _KEEPS_ARGUMENTS and isinstance(kernel, CompiledKernel):  # not by the interpreter, say
            rest = (self._sizes[name] for name in self._function.arg_names[len(arguments) :])
            self._known[key] = kernel[self._programs, 1, 1], (*self._numbers, *rest)


prepare = partial(Launch, fused.prepare)
windows = partial(Launch, fused.windows)
finish = partial(Launch, fused.finish)
start_grad = partial(Launch, fused.start_grad)
link_grad = partial(Launch, fused.link_grad)
end_grad = partial(Launch, fused.end_grad)
