"""The Triton passes as they are launched: without the work that is the same at every launch.

Triton looks at every argument of a launch to find the kernel compiled for such arguments. In a
layer as small as those of a network for 32×32 images that takes the host longer than the kernel
takes the GPU. Here a launch that is like one before it goes straight to that one's kernel.
"""

from typing import Any

import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from cosnorm.kernels import fused

_MOST = 4096  # launches that are remembered by a pass: inputs of many sizes must not fill memory
_KEEPS_ARGUMENTS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6)


class Pass:
    """A Triton function, called with its programs, its arguments in order, and its sizes by name.

    Two launches are alike if they are on the same device, agree in every number and flag, and
    their tensors agree in dtype and in alignment to 16 bytes: all that Triton looks at.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: dict[tuple, tuple[CompiledKernel, tuple]] = {}

    def __call__(self, programs: int, *arguments: Any, **sizes: Any) -> None:
        key = [arguments[0].get_device(), *sizes.items()]
        for argument in arguments:
            if isinstance(argument, Tensor):
                key += argument.dtype, argument.data_ptr() & 15
            else:
                key.append(argument)
        known = self._known.get(found := tuple(key))
        if known is None:
            self._first(found, programs, arguments, sizes)
        else:
            kernel, rest = known
            kernel[programs, 1, 1](*arguments, *rest)

    def _first(self, key: tuple, programs: int, arguments: tuple, sizes: dict[str, Any]) -> None:
        kernel = self._function[programs,](*arguments, **sizes)
        if not (_KEEPS_ARGUMENTS and isinstance(kernel, CompiledKernel)):
            return  # by the interpreter, say
        if len(self._known) >= _MOST:
            self._known.clear()
        rest = self._function.arg_names[len(arguments) :]
        self._known[key] = kernel, tuple(sizes[name] for name in rest)


prepare = Pass(fused.prepare)
windows = Pass(fused.windows)
finish = Pass(fused.finish)
start_grad = Pass(fused.start_grad)
link_grad = Pass(fused.link_grad)
end_grad = Pass(fused.end_grad)
