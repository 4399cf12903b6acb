"""The MATLAB reader: against scipy's writer, in any byte order, damaged, and within its memory."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from data_files import mat_element, mat_file, mat_matrix, pixels, svhn_arrays, write_svhn
from scipy.io import loadmat, savemat

from cosnorm.study.data import DataError, load
from cosnorm.study.data.mat5 import variables
from cosnorm.study.data.published import COUNTS


def test_train_and_extra_are_joined_and_ten_means_zero(tmp_path):
    write_svhn(tmp_path, train=12, test=11, extra=14)
    data = load("svhn", tmp_path)
    assert data.sample_shape == (3, 32, 32) and (len(data.train), len(data.test)) == (26, 11)
    assert data.train.y[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    images = np.concatenate([svhn_arrays(n, seed=n)[0].transpose(3, 2, 0, 1) for n in (12, 14)])
    assert np.array_equal(data.train.x.numpy(), images)
    assert len(load("svhn", tmp_path, extra=False).train) == 12


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("label_type", [np.uint8, np.float64])
def test_files_that_scipy_writes(tmp_path, compress, label_type):
    folder = write_svhn(tmp_path)
    images, digits = svhn_arrays(13, seed=5)
    content = {"note": "text", "y": digits.astype(label_type), "cell": {"a": 1}, "X": images}
    savemat(folder / "train_32x32.mat", content, do_compression=compress)
    data = load("svhn", tmp_path, extra=False)
    assert np.array_equal(data.train.x.numpy(), images.transpose(3, 2, 0, 1))
    assert data.train.y.tolist() == (digits[:, 0] % 10).tolist()


def test_what_the_tests_write_is_what_scipy_reads(tmp_path):
    folder = write_svhn(tmp_path)
    assert np.array_equal(loadmat(folder / "test_32x32.mat")["X"], svhn_arrays(11, seed=11)[0])


def test_big_endian_files(tmp_path):
    def element(kind, content):
        return struct.pack(">II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    values = np.arange(6, dtype=">f8").reshape(2, 3)
    body = element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">2i", 2, 3))
    body += struct.pack(">HH", 1, 1) + b"v\0\0\0" + element(9, values.tobytes(order="F"))
    path = tmp_path / "big.mat"
    path.write_bytes(b"MATLAB".ljust(124) + b"\1\0MI" + struct.pack(">II", 14, len(body)) + body)
    (variable,) = [(v.name, v.shape, np.concatenate(list(v.blocks(4)))) for v in variables(path)]
    assert variable[:2] == ("v", (2, 3))
    assert np.array_equal(variable[2].reshape(2, 3, order="F"), values)


X12, Y12 = svhn_arrays(12)


def _file(images=X12, digits=Y12, **options):
    return mat_file(mat_matrix("X", images), mat_matrix("y", digits), **options)


def _float_labels(wrong):
    digits = Y12.astype(np.float64)
    digits[3] = wrong
    stream = io.BytesIO()
    savemat(stream, {"X": X12, "y": digits})
    return stream.getvalue()


def _lying_shape():
    matrix = mat_matrix("X", X12)
    lie = matrix.replace(struct.pack("<4i", 32, 32, 3, 12), struct.pack("<4i", 32, 32, 3, 99))
    return mat_file(lie, mat_matrix("y", Y12))


def _bomb():
    """A few bytes that promise a terabyte."""
    count = 1 << 19
    body = mat_element(6, struct.pack("<II", 9, 0))
    body += mat_element(5, struct.pack("<4i", 32, 32, 3, count)) + mat_element(1, b"X")
    body += struct.pack("<II", 2, 3072 * count) + b"\0" * 64
    return mat_file(struct.pack("<II", 14, len(body)) + body)


def _broken_sum(name):
    parts = {"X": mat_matrix("X", X12), "y": mat_matrix("y", Y12)}
    elements = {key: bytearray(mat_file(part)[128:]) for key, part in parts.items()}
    elements[name][-1] ^= 1
    return mat_file() + elements["X"] + elements["y"]


DAMAGE = {
    "missing mark": (lambda: b"x" * 200, "not a MATLAB 5 file"),
    "empty": (lambda: b"", "not a MATLAB 5 file"),
    "html": (lambda: b"<html>404</html>", "not a MATLAB 5 file"),
    "cut in the images": (lambda: _file()[:9000], "truncated"),
    "cut, uncompressed": (lambda: _file(compress=False)[:9000], "truncated"),
    "cut between": (lambda: _file() + b"\x0f\0\0", "truncated between two variables"),
    "no variables": (lambda: mat_file(), "no variable 'X'"),
    "no labels": (lambda: mat_file(mat_matrix("X", X12)), "no variable 'y'"),
    "no images": (lambda: mat_file(mat_matrix("y", Y12)), "no variable 'X'"),
    "grey images": (lambda: _file(images=pixels(32, 32, 12)), r"shape \(32, 32, 3, N\)"),
    "no image at all": (lambda: _file(images=pixels(32, 32, 3, 0)), "shape|bytes"),
    "fewer labels": (lambda: _file(digits=Y12[:11]), "11 labels for 12 images"),
    "label 11": (lambda: _file(digits=Y12 + 1), "label 11 of example 9 is out of range 1…10"),
    "label 0": (lambda: _file(digits=Y12 - 1), "label 0 of example 0 is out of range 1…10"),
    "label not a number": (lambda: _float_labels(np.nan), "label nan of example 3"),
    "fraction": (lambda: _float_labels(1.5), "not all whole numbers"),
    "lying shape": (_lying_shape, "does not fit its 36,864 bytes"),
    "bomb": (_bomb, "more than the file holds"),
    "broken sum": (lambda: _broken_sum("X"), "compressed data is broken"),
    "broken sum after padding": (lambda: _broken_sum("y"), "compressed data is broken"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_with_the_file(tmp_path, case):
    make, message = DAMAGE[case]
    path = write_svhn(tmp_path) / "train_32x32.mat"
    path.write_bytes(make())
    with pytest.raises(DataError, match=message) as caught:
        load("svhn", tmp_path, extra=False)
    assert str(path) in str(caught.value)


def test_an_element_whose_stream_stops_early_is_found(tmp_path):
    """The element is whole by its size, but the stream inside it was cut."""
    packed = zlib.compress(mat_matrix("X", X12))[:-500]
    path = write_svhn(tmp_path) / "train_32x32.mat"
    path.write_bytes(mat_file() + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(DataError, match=r"ends too early"):
        load("svhn", tmp_path, extra=False)


def test_a_missing_extra_file_can_be_left_out(tmp_path):
    (write_svhn(tmp_path) / "extra_32x32.mat").unlink()
    with pytest.raises(
        DataError, match=r"extra_32x32.mat \(or do without: --no-svhn-extra.*\) not found"
    ):
        load("svhn", tmp_path)
    assert len(load("svhn", tmp_path, extra=False).train) == 12


def test_one_published_part_beside_a_short_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(COUNTS, "svhn", (12, 10))
    write_svhn(tmp_path, train=12, test=11)
    with pytest.raises(
        DataError, match=r"svhn has 12 training and 10 test examples, here are 12 and 11"
    ):
        load("svhn", tmp_path, extra=False)


MEASURE = """
import re, sys
from cosnorm.study.data import load
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
load("digits")  # what the process needs anyway
before = peak()
data = load("svhn", sys.argv[1])
after = peak()
assert len(data.fingerprint) == 64
print(len(data.train), data.train.x.nbytes + data.test.x.nbytes, before, after, peak())
"""


def _write_large(path, count):
    """`count` images, written and packed a block at a time."""
    block = np.tile(pixels(3072 + 7), 4096).tobytes()  # repeats within deflate's window
    size = 3072 * count
    digits = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
    head = mat_element(6, struct.pack("<II", 9, 0))
    head += mat_element(5, struct.pack("<4i", 32, 32, 3, count)) + mat_element(1, b"X")
    head += struct.pack("<II", 2, size)
    packer = zlib.compressobj(1)
    with path.open("wb") as file:
        file.write(mat_file() + struct.pack("<II", 15, 0))
        file.write(packer.compress(struct.pack("<II", 14, len(head) + size) + head))
        for start in range(0, size, len(block)):
            file.write(packer.compress(block[: size - start]))
        file.write(packer.flush())
        end = file.tell()
        file.seek(128)
        file.write(struct.pack("<II", 15, end - 136))
        file.seek(end)
        file.write(mat_file(mat_matrix("y", digits))[128:])


def _measure(folder):
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    return [int(number) for number in result.stdout.split()]


def test_memory_holds_the_images_and_little_more(tmp_path):
    write_svhn(tmp_path, train=2000, test=500, extra=1)
    _write_large(tmp_path / "svhn" / "extra_32x32.mat", 20_000)
    images, held, before, after, final = _measure(tmp_path)
    assert images == 22_000
    assert after - before < held + (64 << 20), (held, before, after)
    assert final - after < 16 << 20


@pytest.mark.slow
def test_all_604_388_images_fit_in_three_gigabytes(tmp_path):
    write_svhn(tmp_path, train=1, test=1, extra=1)
    for name, count in (("train", 73_257), ("extra", 531_131), ("test", 26_032)):
        _write_large(tmp_path / "svhn" / f"{name}_32x32.mat", count)
    images, _, _, _, final = _measure(tmp_path)
    assert images == 604_388
    assert final < 3e9
