"""Writers of small files in the publishers' formats, for the tests of the readers."""

import gzip
import os
import pickle
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest


def real_data() -> Path:
    """The folder of real data, or a visible skip."""
    if not (folder := os.environ.get("COSNORM_DATA")):
        pytest.skip("real data: set COSNORM_DATA to the folder that holds it")
    return Path(folder)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def labels(count: int, classes: int, seed: int = 1) -> np.ndarray:
    """Random labels among which every class occurs."""
    values = np.random.RandomState(seed).randint(0, classes, count)
    values[:classes] = np.arange(min(classes, count))
    return values.astype(np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(root: Path, train: int = 30, test: int = 20, packed: bool = True) -> Path:
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        parts = {
            f"{prefix}-images-idx3-ubyte": pixels(count, 28, 28, seed=count),
            f"{prefix}-labels-idx1-ubyte": labels(count, 10),
        }
        for name, array in parts.items():
            content = idx_bytes(array)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def write_cifar10(root: Path, records: int = 20) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = np.c_[labels(records, 10), pixels(records, 3072, seed=number)]
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("airplane\n")
    return folder


def write_cifar100(root: Path, train: int = 120, test: int = 110) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("test", test)):
        rows = np.c_[labels(count, 20), labels(count, 100), pixels(count, 3072, seed=count)]
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "fine_label_names.txt").write_text("".join(f"fine{i}\n" for i in range(100)))
    (folder / "coarse_label_names.txt").write_text("".join(f"coarse{i}\n" for i in range(20)))
    return folder


def python2_pickle(value: object) -> bytes:
    """What Python 2's cPickle writes, protocol 2, for dicts, lists, str, int and uint8 arrays."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        shape = b"".join(_python2(size) for size in value.shape)
        rebuild = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        return (
            rebuild
            + b"(K\x01("
            + shape
            + b"t"
            + dtype
            + b"\x89"
            + _python2(value.tobytes())
            + b"tb"
        )
    if isinstance(value, dict):
        items = b"".join(_python2(key) + _python2(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(_python2(item) for item in value) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    text = value.encode() if isinstance(value, str) else value
    assert isinstance(text, bytes)
    if len(text) < 256:
        return b"U" + bytes([len(text)]) + text
    return b"T" + struct.pack("<i", len(text)) + text


def cifar10_pickles(paths: Iterable[Path], root: Path, dump=python2_pickle) -> Path:
    """The records of binary files as the Python archive has them."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for path in paths:
        rows = np.fromfile(path, np.uint8).reshape(-1, 3073)
        batch = {
            "batch_label": "a batch",
            "labels": rows[:, 0].tolist(),
            "data": rows[:, 1:].copy(),
            "filenames": [f"{i}.png" for i in range(len(rows))],
        }
        (folder / path.stem).write_bytes(dump(batch))
    return folder


def python3_pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=4)


def mat_element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def mat_matrix(name: str, array: np.ndarray) -> bytes:
    """A uint8 array as an uncompressed MATLAB 5 matrix element."""
    body = mat_element(6, struct.pack("<II", 9, 0))
    body += mat_element(5, struct.pack(f"<{array.ndim}i", *array.shape))
    body += mat_element(1, name.encode())
    body += mat_element(2, array.tobytes(order="F"))
    return struct.pack("<II", 14, len(body)) + body


def mat_file(*elements: bytes, compress: bool = True) -> bytes:
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    for element in elements:
        packed = zlib.compress(element, 1)
        header += struct.pack("<II", 15, len(packed)) + packed if compress else element
    return header


def svhn_arrays(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    digits = np.arange(count, dtype=np.uint8)[:, None] % 10 + 1
    return pixels(32, 32, 3, count, seed=seed), digits


def write_svhn(root: Path, train: int = 12, test: int = 11, extra: int = 14, **options) -> Path:
    folder = root / "svhn"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("test", test), ("extra", extra)):
        images, digits = svhn_arrays(count, seed=count)
        content = mat_file(mat_matrix("X", images), mat_matrix("y", digits), **options)
        (folder / f"{name}_32x32.mat").write_bytes(content)
    return folder


GROUPS = ("alt.atheism", "sci.space", "talk.politics.misc")


def write_news(root: Path, train: int = 24, test: int = 9, words: int = 30) -> Path:
    """The matlab layout of a tiny release with three groups."""
    folder = root / "20news-bydate" / "matlab"
    folder.mkdir(parents=True)
    for part, count, seed in (("train", train, 0), ("test", test, 1)):
        random = np.random.RandomState(seed)
        lines = []
        for document in range(1, count + 1):
            chosen = np.sort(random.choice(words, 8, replace=False)) + 1
            lines += [f"{document} {word} {random.randint(1, 6)}\n" for word in chosen]
        (folder / f"{part}.data").write_text("".join(lines))
        (folder / f"{part}.label").write_text("".join(f"{i % 3 + 1}\n" for i in range(count)))
        (folder / f"{part}.map").write_text("".join(f"{g} {i + 1}\n" for i, g in enumerate(GROUPS)))
    (folder.parent / "vocabulary.txt").write_text("".join(f"word{i}\n" for i in range(words)))
    return folder
