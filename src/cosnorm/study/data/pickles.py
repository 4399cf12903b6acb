"""Python pickles of plain values, read without calling anything they name.

The CIFAR archives for Python hold pickles that a Python 2 wrote: dicts of byte strings, lists of
integers, and numpy arrays, which a pickle rebuilds by calling numpy's functions. A pickle is a
program for a small stack machine, and this is that machine with nothing in it but plain values:
the names that arrays and bytes need are taken as words, not looked up, and an array is made here
from its bytes. Any other name, and any instruction that plain values do not need, is refused.
"""

import pickletools
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from cosnorm.study.data.errors import DataError, damaged

MOST_VALUES = 1_000_000  # a batch has some 150,000; shared references could unfold without end

RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY, DTYPE = "numpy ndarray", "numpy dtype"
ENCODE = "_codecs encode"  # Python 3 writes bytes so for readers of Python 2: (text, "latin1")
NUMBERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def read_pickle(path: Path) -> Any:
    """The dicts, lists, byte strings, text, integers and arrays of a pickle file.

    Python 2 strings come back as bytes, keys of dicts as text. Anything else in the file is a
    `DataError`.
    """
    try:
        with path.open("rb") as file:
            machine = _Machine()
            for instruction, argument, _ in pickletools.genops(file):
                machine.step(instruction.name, argument)
            return _plain(machine.stack.pop(), count(1))
    except DataError as error:
        raise damaged(path, str(error), "do not trust it, fetch the original again") from error
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except Exception as error:  # a damaged pickle can go wrong in nearly any way
        found = f"not a whole pickle of plain values ({type(error).__name__}: {error})"
        raise damaged(path, found) from error


class _Name(str):
    """`module name` of one of the few that are known, as a word."""


class _Dtype:
    """What `numpy.dtype(code, align, copy)` and its state (version, byte order, …) describe."""

    def __init__(self, code: Any, *_: Any) -> None:
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if code not in NUMBERS:
            raise DataError(f"the pickle holds an array of type {code!r}; only numbers are read")
        self.dtype = np.dtype(f"<{code}")

    def build(self, state: Any) -> None:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|") or any(part is not None for part in state[2:5]):
            raise DataError("the pickle holds an array of a compound type; only numbers are read")
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """An array, filled from its state (version, shape, dtype, order, bytes)."""

    array: np.ndarray | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise DataError("the pickle holds an array whose content is not plain bytes")
        order = "F" if fortran else "C"
        self.array = np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


class _Machine:
    """The stack, the marks in it and the remembered values of a pickle as it runs."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, instruction: str, argument: Any) -> None:
        if instruction in _LITERALS:
            self.stack.append(argument)
        elif instruction in _ACTIONS:
            _ACTIONS[instruction](self, argument)
        else:
            raise DataError(f"the pickle uses {instruction}, which plain values do not need")

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self.stack))

    def _put(self, key: int | None) -> None:
        self._memo[len(self._memo) if key is None else key] = self.stack[-1]

    def _get(self, key: int) -> None:
        self.stack.append(self._memo[key])

    def _bytes(self, text: str) -> None:
        self.stack.append(text.encode("latin-1"))

    def _tuple(self, size: int) -> None:
        taken = [self.stack.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(taken)))

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise DataError("the pickle appends to something that is not a list")
        target.extend(items)

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise DataError("the pickle sets items of something that is not a dict")
        target.update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def _name(self, name: str) -> None:
        if name not in (*RECONSTRUCT, NDARRAY, DTYPE, ENCODE):
            called = name.replace(" ", ".")
            raise DataError(f"the pickle calls {called}; only arrays and plain values are read")
        self.stack.append(_Name(name))

    def _stack_name(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._name(f"{module} {name}")

    def _reduce(self, _: Any) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if isinstance(name, _Name) and name in RECONSTRUCT and arguments[0] == _Name(NDARRAY):
            self.stack.append(_Array())
        elif isinstance(name, _Name) and name == DTYPE:
            self.stack.append(_Dtype(*arguments))
        elif isinstance(name, _Name) and name == ENCODE and arguments[1:] == ("latin1",):
            self._bytes(arguments[0])
        else:
            raise DataError(f"the pickle calls {name!r}; only arrays and plain values are read")

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Dtype):
            raise DataError("the pickle sets the state of something that is not an array")
        self.stack[-1].build(state)


_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}

_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "MARK": _Machine._mark,
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "BINSTRING": _Machine._bytes,
    "SHORT_BINSTRING": _Machine._bytes,
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine._since_mark())),
    "TUPLE1": lambda machine, _: machine._tuple(1),
    "TUPLE2": lambda machine, _: machine._tuple(2),
    "TUPLE3": lambda machine, _: machine._tuple(3),
    "APPEND": lambda machine, _: machine._extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine._extend(machine._since_mark()),
    "SETITEM": lambda machine, _: machine._update([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine._update(machine._since_mark()),
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "MEMOIZE": _Machine._put,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "GLOBAL": _Machine._name,
    "STACK_GLOBAL": _Machine._stack_name,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
}


def _plain(value: Any, counter: Iterator[int]) -> Any:
    if next(counter) > MOST_VALUES:
        raise DataError(f"the pickle unfolds to more than {MOST_VALUES:,} values")
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if type(value) is dict:
        return {key: _plain(item, counter) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item, counter) for item in value]
    if type(value) in (bytes, str, int):
        return value
    kind = type(value).__name__.lstrip("_")
    raise DataError(f"the pickle holds a {kind}; only arrays and plain values are read")


def _key(key: Any) -> str:
    if type(key) not in (bytes, str):
        raise DataError(f"the pickle has a dict key of type {type(key).__name__}; keys are text")
    return key.decode("latin-1") if isinstance(key, bytes) else key
