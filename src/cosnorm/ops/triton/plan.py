"""What does not change from call to call of a layer, worked out once.

A plan belongs to a spec and to the shapes, strides, dtypes and device of its tensors. It knows the
memory of the small statistics and the launches of the four passes: grids, integers, tiles, and once
a pass has run, its compiled kernel. A layer that was called before costs one look-up, two or three
allocations, the product, and two launches each way.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

from cosnorm.ops.reference.numerics import compute_dtype, lift, product_dtype
from cosnorm.ops.spec import Spec, is_early, keeps_unit, memory_format
from cosnorm.ops.triton import kernels, tuning

Shape = Sequence[int]


def _stream_of(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of)


class Side(NamedTuple):
    """What a pass goes over: positions, those of one sample, channels, and channels of a group."""

    positions: int
    space: int
    channels: int
    width: int


INPUT, OUTPUT, ROWS, COLUMNS = range(4)  # ROWS: of the input, by columns of the output; and back


class Launch:
    """A pass with all but its tensors: programs, numbers in order, constants by name.

    The first call goes through Triton, which compiles. Later ones go to the compiled kernel by the
    addresses of their tensors, which lie as those of the first did: dtypes are the plan's, and
    every address is a multiple of 16.
    """

    __slots__ = (
        "_constants", "_function", "_head", "_kernel", "_numbers", "_programs", "_rest", "_run",
    )  # fmt: skip

    def __init__(self, function: Any, programs: int, numbers: Shape, **constants: Any) -> None:
        self._function, self._programs = function, programs
        self._numbers, self._constants = tuple(numbers), constants
        self._run: Any = None
        self._head: tuple = ()
        self._rest: tuple = ()

    def __call__(self, stream: int, addresses: tuple, tensors: tuple, *factors: float) -> None:
        """tensors: those of the kernel in order, or None; addresses: theirs."""
        if self._run is None:
            self._by_triton(tensors, factors)
            return
        self._run(
            self._programs, 1, 1, stream, *self._head, *addresses, *factors, *self._rest
        )  # fmt: skip

    def _by_triton(self, tensors: tuple, factors: tuple) -> None:
        arguments = (*tensors, *factors, *self._numbers)
        kernel = self._function[self._programs,](
            *arguments, **self._constants, num_warps=tuning.WARPS, enable_fp_fusion=True
        )
        if isinstance(kernel, CompiledKernel) and hasattr(kernel, "packed_metadata"):
            names = self._function.arg_names[len(arguments) :]
            self._rest = (*self._numbers, *(self._constants[name] for name in names))
            self._head = (kernel.function, kernel.packed_metadata, None, None, None)
            self._run, self._kernel = kernel.run, kernel  # which unloads itself when nobody has it


class Launches(dict[tuple, Launch]):
    """The launches of a plan, by their pass and the flags that differ from call to call."""

    def __init__(self, plan: "Plan") -> None:
        super().__init__()
        self._plan = plan

    def __missing__(self, key: tuple) -> Launch:
        name, *flags = key
        self[key] = launch = getattr(self._plan, f"_{name}")(*flags)
        return launch


class Plan:
    """A layer of one spec between tensors of one kind."""

    def __init__(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        spec: Spec,
        folded: bool,
    ) -> None:
        self.spec, self.gain, self.bias, self.folded = spec, spec.gain, bias is not None, folded
        self.dtype = compute_dtype(input) if folded else product_dtype(input)
        self.early = not folded and is_early(spec, weight, scale, self.dtype)
        is_lifted = not (folded or self.early)
        self.lift = lift(self.dtype, weight, self.bias) if is_lifted else 1.0
        self.scale = 0 if scale is None else 1 if scale.numel() == 1 else 2
        same = weight.dtype == self.dtype != torch.float16
        self.raw = same and not folded and not spec.centered
        self.keeps_unit = keeps_unit(self.dtype, weight)
        self.convolution = None
        if spec.geometry is not None:
            stride, padding, dilation, groups, _ = spec.geometry
            none = (0,) * len(stride)
            self.convolution = (stride, padding, dilation, False, none, groups)
        self.unit = not (self.raw or folded)  # whether unit weights are written
        self.flat = all(t is None or t.is_contiguous() for t in (bias, scale))
        self._place(input, weight)
        self._count(input, weight)
        name, side = ("renormalise", INPUT) if self.early else ("start_grad", OUTPUT)
        (positions, _, _), walk, _ = self._over(name, side)
        self.blocks = -(-positions // walk["BP"])  # of positions, each with its shares
        self.launches = Launches(self)

    def _place(self, input: Tensor, weight: Tensor) -> None:
        """In which order the tensors of the layer lie."""
        geometry = self.spec.geometry
        self.format = torch.contiguous_format if geometry is None else memory_format(input, weight)
        self.last = geometry is None or self.format is not torch.contiguous_format
        self.lies = input.is_contiguous(memory_format=self.format)
        self.dense_rows = has_dense_rows(weight.shape, weight.stride())
        self.weight_stride = weight.stride() if self.dense_rows else dense(weight.shape)
        self._counting = [i for i, n in enumerate(weight.shape) if n > 1]
        self.device, self.index, self.on_cuda = input.device, input.get_device(), input.is_cuda
        self.kind = input.device.type
        self.several = self.on_cuda and torch.cuda.device_count() > 1

    def lies_as_weight(self, tensor: Tensor) -> bool:
        """Whether weights, or their gradient, lie as planned; sizes of one may have any stride."""
        stride = tensor.stride()
        return all(stride[i] == self.weight_stride[i] for i in self._counting)

    def _count(self, input: Tensor, weight: Tensor) -> None:
        spec, groups = self.spec, self.spec.groups
        self.units, self.size = weight.shape[0], math.prod(weight.shape[1:])
        channels = input.shape[-1 if spec.geometry is None else 1]
        self.depth, self.width = channels // groups, self.units // groups
        geometry, self.kernel = spec.geometry, tuple(weight.shape[2:])
        self.inner_size = self.outer_size = ()
        batch = input.shape[0]
        if geometry is None:
            batch = input.numel() // channels
            self.rows = (batch, channels)
            # The shape of y where rows in several dimensions are multiplied as those of a matrix.
            self.shaped = None if input.dim() == 2 else (*input.shape[:-1], self.units)
        else:
            self.inner_size = tuple(input.shape[2:])
            self.outer_size = tuple(geometry.output_size(self.inner_size, self.kernel))
        inner, outer = _three(self.inner_size, 1), _three(self.outer_size, 1)
        self._sides = tuple(
            Side(batch * math.prod(size), math.prod(size), channels, width)
            for size, channels, width in (
                (inner, channels, self.depth),
                (outer, self.units, self.width),
                ([*inner[:2], outer[2]], groups, 1),
                ([*outer[:2], inner[2]], groups, 1),
            )
        )
        self.maps = self._sides[OUTPUT].positions * groups
        self.point = geometry is None or (
            math.prod(self.kernel) == 1
            and not any(geometry.padding)
            and set(geometry.stride) == {1}
        )
        self.pitch = channels + 8 * self.bias  # of x̂ and v, EARLY: a row, and the bias's entry
        self.lean = self.point and spec.activation is None and self.scale == 0
        self.keeps_output = spec.act.keeps_output or self.lean
        self.lanes = self.last and groups > 1 and min(self.depth, self.width) < tuning.FEW
        self.thin = self.depth == 1 and not self.point
        taps = math.prod(self.kernel[:-1] if self.thin else self.kernel)
        self.taps = 0 if self.lanes or self.width == 1 else tuning.power(taps)
        many = 2 if spec.centered else 1
        self.inner = self._sides[ROWS if self.thin else INPUT].positions * groups
        self.shift = many * self.maps + 2 * self.units
        scratch = self.units if self.point or self.thin else self.units + many * self.inner
        self.arena = self.shift + max(scratch, self.maps)
        self.spread = self._sides[COLUMNS].positions * groups
        # What THIN has in both directions; not in the arena, which is held from one to the other.
        self.sums = many * max(self.inner, self.spread) if self.thin else 0

    def _over(self, name: str, side: int) -> tuple[tuple[int, ...], dict[str, Any], int]:
        """Positions, space and stride of a pass over one of the sides; how it walks; and how many
        programs that takes."""
        groups, (positions, space, channels, width) = self.spec.groups, self._sides[side]
        block = tuning.tile(name, self.last, self.lanes, groups, width)
        if name in ("start_grad", "renormalise") and (self.bias or self.scale):
            block = tuning.sharing(block)
        begins = (channels, groups if self.lanes else width) if self.last else (space,)
        align = 8 if all(n % 8 == 0 for n in begins) else 1
        walk = {
            "LAST": self.last, "LANES": self.lanes, "SINGLE": self.lanes and width == 1,
            "ALIGN": align, **block._asdict(),
        }  # fmt: skip
        many = -(-groups // block.BC) if self.lanes else groups
        return (positions, space, channels), walk, -(-positions // block.BP) * many

    def _taps(self, walk: dict[str, Any]) -> int:
        """The window as a dimension of a tile, where that is small enough; 0 for a loop."""
        return self.taps if self.taps * walk["BP"] <= tuning.WINDOW else 0

    def _window(self) -> tuple[list[int], list[int], list[int]]:
        """Sizes of the input, of the output, and the window, in three dimensions."""
        geometry = self.spec.geometry
        if geometry is None:
            return [1] * 3, [1] * 3, [1] * 6 + [0] * 3 + [1] * 3
        steps = (_three(geometry.stride, 1), _three(geometry.padding, 0))
        window = [*_three(self.kernel, 1), *steps[0], *steps[1], *_three(geometry.dilation, 1)]
        return _three(self.inner_size, 1), _three(self.outer_size, 1), window

    def _line(self) -> list[int]:
        """Width of the input, of the output, and the window along them."""
        inner, outer, window = self._window()
        return [inner[2], outer[2], *window[2::3]]

    def _normalise(self, rows: bool, known: bool, need_bias: bool) -> Launch:
        name = "renormalise" if known else "normalise"
        (positions, _, depth), walk, programs = self._over(name, INPUT)
        pitch = self.pitch if not known else depth
        numbers = (positions, depth, pitch, self.units, self.shift)
        count = programs + (0 if known else self.units)
        return Launch(
            kernels.normalise, count, numbers, CENTERED=self.spec.centered, BIAS=self.bias,
            ROWS=rows, KNOWN=known, DBIAS=need_bias, EXACT=depth % walk["BC"] == 0,
            BP=walk["BP"], BC=walk["BC"], BW=tuning.ROW,
        )  # fmt: skip

    def _end_early(self, fields: bool, units: bool) -> Launch:
        (positions, _, depth), walk, programs = self._over("end_early", INPUT)
        count = (programs if fields else 0) + (self.units if units else 0)
        return Launch(
            kernels.end_early, count, (positions, depth, self.units, self.shift, self.blocks),
            CENTERED=self.spec.centered, BIAS=self.bias, FIELDS=fields, UNITS=units,
            BP=walk["BP"], BC=walk["BC"], BW=tuning.ROW,
        )  # fmt: skip

    def _prepare(self) -> Launch:
        sizes, walk, programs = self._over("prepare", ROWS if self.thin else INPUT)
        units = 0 if self.folded else self.units
        numbers = (
            *sizes[:2], self.spec.groups, self.depth, sizes[2], self.units, self.size,
            self.maps, self.inner, self.shift, *self._line(),
        )  # fmt: skip
        exact = self.lanes or self.depth % walk["BC"] == 0
        return Launch(
            kernels.prepare, programs + units, numbers, CENTERED=self.spec.centered, BIAS=self.bias,
            UNITS=units > 0, RAW=self.raw, POINT=self.point, THIN=self.thin,
            EXACT=exact or not self.spec.centered, BW=tuning.ROW, **walk,
        )  # fmt: skip

    def _finish(self, keep: bool) -> Launch:
        sizes, walk, programs = self._over("finish", OUTPUT)
        inner, outer, window = self._window()
        act, entries = self.spec.act, self.depth
        if self.thin:
            entries, inner, window = self.kernel[-1], [*inner[:2], outer[2]], _narrow(window)
        numbers = (
            *sizes[:2], self.spec.groups, entries, self.width, sizes[2], self.units,
            self.maps, self.inner, self.shift, *inner, *outer[1:], *window,
        )  # fmt: skip
        return Launch(
            kernels.finish, programs, numbers, CENTERED=self.spec.centered, BIAS=self.bias,
            ACT=act.code, KEEP=keep and not self.keeps_output, STORE=keep, SCALE=self.scale,
            RAW=self.raw, POINT=self.point, THIN=self.thin, TAPS=self._taps(walk),
            FOLDED=self.folded, **walk,
        )  # fmt: skip

    def _start_grad(self, need_bias: bool, need_scale: bool) -> Launch:
        sizes, walk, programs = self._over("start_grad", OUTPUT)
        units = 0 if self.raw or self.keeps_unit else self.units
        act = self.spec.act
        numbers = (
            *sizes[:2], self.spec.groups, self.width, sizes[2], self.units, self.size,
            self.maps, self.shift, self.blocks,
        )  # fmt: skip
        return Launch(
            kernels.start_grad, programs + units, numbers, CENTERED=self.spec.centered,
            BIAS=self.bias, ACT=act.code, VALUE=act.keeps_output, SCALE=self.scale,
            DBIAS=need_bias, DSCALE=need_scale, UNITS=units > 0, RAW=self.raw, LEAN=self.lean,
            BW=tuning.ROW, **walk,
        )  # fmt: skip

    def _spread(self) -> Launch:
        (positions, space, _), walk, programs = self._over("spread", COLUMNS)
        numbers = (
            positions, space, self.spec.groups, self.maps, self.spread, self.shift, *self._line()
        )  # fmt: skip
        del walk["SINGLE"]
        return Launch(kernels.spread, programs, numbers, CENTERED=self.spec.centered, **walk)

    def _end_grad(self, fields: bool, units: bool) -> Launch:
        sizes, walk, programs = self._over("end_lean" if self.lean else "end_grad", INPUT)
        inner, outer, window = self._window()
        if self.thin:
            outer, window = [*outer[:2], inner[2]], _narrow(window)
        numbers = (
            *sizes[:2], self.spec.groups, self.depth, sizes[2], self.units, self.size,
            self.maps, self.spread, self.shift, self.blocks, *inner[1:], *outer, *window,
        )  # fmt: skip
        count = (programs if fields else 0) + (self.units if units else 0)
        return Launch(
            kernels.end_grad, count, numbers, CENTERED=self.spec.centered, BIAS=self.bias,
            FIELDS=fields, UNITS=units, RAW=self.raw, LEAN=self.lean, POINT=self.point,
            THIN=self.thin, TAPS=self._taps(walk), BW=tuning.ROW, **walk,
        )  # fmt: skip


def _narrow(window: list[int]) -> list[int]:
    """A window that is one column wide: kernel, stride, padding, dilation of three dimensions."""
    return [*window[:2], 1, *window[3:5], 1, *window[6:8], 0, *window[9:11], 1]


def _three(values: Shape, fill: int) -> list[int]:
    return [fill] * (3 - len(values)) + list(values)


def has_dense_rows(shape: Shape, strides: Shape) -> bool:
    """Whether the rows of a weight are dense one after another, in whatever order inside a row."""
    expected = 1
    for stride, length in sorted(
        (s, n) for s, n in zip(strides[1:], shape[1:], strict=True) if n > 1
    ):
        if stride != expected:
            return False
        expected *= length
    return strides[0] == expected or shape[0] == 1


def dense(shape: Shape) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


_plans: dict[tuple, Plan] = {}
_MOST = 4096  # plans that are remembered: inputs of many sizes must not fill memory


def plan_for(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    spec: Spec,
    folded: bool = False,
) -> Plan:
    key = (
        spec, input.shape, input.stride(), input.dtype, weight.shape, weight.stride(), weight.dtype,
        input.get_device(), None if bias is None else (bias.stride(), bias.dtype),
        None if scale is None else (scale.shape, scale.stride(), scale.dtype), folded,
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = Plan(input, weight, bias, scale, spec, folded)
    return plan


def forget() -> None:
    """Plan everything anew."""
    _plans.clear()
