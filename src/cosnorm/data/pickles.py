"""Python pickles of plain values, read without running anything they name.

The CIFAR archives for Python hold pickles that a Python 2 wrote: dicts of byte strings, lists of
integers, and numpy arrays, which a pickle rebuilds by calling numpy's functions. Here none of
numpy's own functions is called either: stand-ins take the same arguments, check them, and make an
array from the bytes. Any other name in the pickle is refused before it is even looked up.
"""

import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cosnorm.data.errors import DataError, damaged

_DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def read_pickle(path: Path) -> Any:
    """The dicts, lists, byte strings, text, integers and arrays of a pickle file.

    Python 2 strings come back as bytes. Anything else in the file is a `DataError`.
    """
    try:
        with path.open("rb") as file:
            value = _PlainUnpickler(file, encoding="bytes").load()
            return _plain(value)
    except DataError as error:
        raise damaged(path, str(error), "do not trust it, fetch the original again") from error
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise damaged(path, f"not a whole pickle ({type(error).__name__}: {error})") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise DataError(
                f"the pickle calls {module}.{name}; only arrays and plain values are read"
            )
        return stand_in

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError("the pickle refers to objects outside itself; only plain values are read")


class _Dtype:
    """Stands for `numpy.dtype(code, align, copy)` and its state (version, byte order, …)."""

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if code not in _DTYPES:
            raise DataError(f"the pickle holds an array of type {code!r}; only numbers are read")
        self.dtype = np.dtype(f"<{code}")

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|") or any(part is not None for part in state[2:5]):
            raise DataError("the pickle holds an array of a compound type; only numbers are read")
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands for `numpy.ndarray`; filled from its state (version, shape, dtype, order, bytes)."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise DataError("the pickle holds an array whose content is not plain bytes")
        if math.prod(shape) * dtype.dtype.itemsize != len(content):
            raise DataError(f"the pickle's array of shape {shape} has {len(content):,} bytes")
        order = "F" if fortran else "C"
        self.array = np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


def _reconstruct(subtype: Any, shape: Any, code: Any) -> _Array:
    if subtype is not _Array:
        raise DataError("the pickle rebuilds something that is not an array")
    return _Array()


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


def _plain(value: Any) -> Any:
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if type(value) is dict:
        return {_key(key): _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) in (bytes, str, int):
        return value
    raise DataError(
        f"the pickle holds a {type(value).__name__}; only arrays and plain values are read"
    )


def _key(key: Any) -> str:
    if type(key) not in (bytes, str):
        raise DataError(f"the pickle has a dict key of type {type(key).__name__}; keys are text")
    return key.decode("latin-1") if isinstance(key, bytes) else key
