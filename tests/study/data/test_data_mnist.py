"""The idx reader, on files as published and on every way they can be wrong."""

import gzip
import struct
import time

import numpy as np
import pytest
import torch
from data_files import idx_bytes, labels, pixels, real_data, write_mnist

from cosnorm.study.data import DataError, Dataset, Split, load
from cosnorm.study.data.published import COUNTS


@pytest.mark.parametrize("packed", [True, False])
def test_images_and_labels_come_back_as_written(tmp_path, packed):
    write_mnist(tmp_path, train=30, test=20, packed=packed)
    data = load("mnist", tmp_path)
    assert data.kind == "image" and data.sample_shape == (1, 28, 28)
    assert data.train.x.dtype == torch.uint8 and data.train.y.dtype == torch.int64
    assert np.array_equal(data.train.x.numpy()[:, 0], pixels(30, 28, 28, seed=30))
    assert np.array_equal(data.test.x.numpy()[:, 0], pixels(20, 28, 28, seed=20))
    assert np.array_equal(data.test.y.numpy(), labels(20, 10))
    assert data.classes == tuple("0123456789")


def test_files_may_lie_in_the_data_folder_itself(tmp_path):
    folder = write_mnist(tmp_path)
    assert load("mnist", folder).fingerprint == load("mnist", tmp_path).fingerprint


def test_the_data_folder_comes_from_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("COSNORM_DATA", str(tmp_path))
    assert len(load("mnist").train) == 30
    monkeypatch.delenv("COSNORM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"not found under .*cache/cosnorm"):
        load("mnist")


def test_the_fingerprint_follows_the_content(tmp_path):
    folder = write_mnist(tmp_path)
    before = load("mnist", tmp_path).fingerprint
    assert before == load("mnist", tmp_path).fingerprint and len(before) == 64
    images = pixels(20, 28, 28, seed=20)
    images[7, 3, 3] ^= 1
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
    assert load("mnist", tmp_path).fingerprint != before


def test_the_fingerprint_tells_shapes_and_types_apart():
    y = torch.zeros(6, dtype=torch.int64)
    tensors = [
        torch.zeros(6, 1, 4, 2, dtype=torch.uint8),
        torch.zeros(6, 1, 2, 4, dtype=torch.uint8),
        torch.zeros(6, 2, dtype=torch.float32),
        torch.zeros(6, 2, dtype=torch.int32),
    ]
    prints = {Dataset("a", Split(x, y), Split(x, y), ("0",), "image").fingerprint for x in tensors}
    assert len(prints) == 4


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def _regzip(change):
    return lambda content: gzip.compress(change(gzip.decompress(content)))


DAMAGE = {
    "cut gzip": (IMAGES, lambda c: c[: len(c) // 2], "truncated|not a whole gzip"),
    "not gzip": (IMAGES, lambda c: b"<html>not here</html>", "not a whole gzip"),
    "flipped byte": (IMAGES, lambda c: c[:5000] + bytes([c[5000] ^ 1]) + c[5001:], "gzip|values"),
    "empty": (IMAGES, lambda c: b"", "it is empty"),
    "wrong magic": (IMAGES, _regzip(lambda c: b"\0\0\x0d\x03" + c[4:]), "starts with 00000803"),
    "labels for images": (IMAGES, _regzip(lambda c: idx_bytes(labels(30, 10))), "starts with"),
    "cut header": (IMAGES, _regzip(lambda c: c[:9]), "truncated inside its header"),
    "cut values": (IMAGES, _regzip(lambda c: c[:-1]), "truncated: 23,519 bytes after"),
    "too long": (IMAGES, _regzip(lambda c: c + b"\0"), "too long: more bytes after a header"),
    "false count": (
        IMAGES,
        _regzip(lambda c: c[:4] + struct.pack(">I", 0xFFFFFFFF) + c[8:]),
        "more than it can hold",
    ),
    "fewer labels": (LABELS, _regzip(lambda c: idx_bytes(labels(29, 10))), "29 labels for the 30"),
    "label 10": (LABELS, _regzip(lambda c: c[:-1] + b"\x0a"), "label 10 of example 29 is out of"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_with_the_file_and_a_remedy(tmp_path, case):
    name, change, message = DAMAGE[case]
    path = write_mnist(tmp_path) / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", tmp_path)
    assert str(path) in str(caught.value) and "fetch or copy it again" in str(caught.value)


def test_a_missing_file_is_named_with_the_command_that_brings_it(tmp_path):
    (write_mnist(tmp_path) / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels.*cosnorm data fetch mnist"):
        load("mnist", tmp_path)


def test_a_folder_in_place_of_a_file_is_an_error_not_a_traceback(tmp_path):
    path = write_mnist(tmp_path) / IMAGES
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"cannot be read"):
        load("mnist", tmp_path)


def test_parts_of_different_image_sizes_are_refused(tmp_path):
    path = write_mnist(tmp_path) / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(pixels(20, 14, 14))))
    with pytest.raises(DataError, match=r"use the four files of one publisher"):
        load("mnist", tmp_path)


def test_the_published_training_part_with_a_short_test_part_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(COUNTS, "mnist", (30, 21))
    write_mnist(tmp_path, train=30, test=20)
    with pytest.raises(DataError, match=r"30 training and 21 test examples, here are 30 and 20"):
        load("mnist", tmp_path)


def test_the_real_files():
    root = real_data()
    start = time.perf_counter()
    data = load("mnist", root)
    assert time.perf_counter() - start < 5  # 0.3 s on an idle core
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert abs(data.train.x.float().mean().item() / 255 - 0.1307) < 1e-4
