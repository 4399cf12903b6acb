"""The CIFAR readers: binary, pickled by Python 2 or 3, damaged, and malicious."""

import codecs
import pickle
import time

import numpy as np
import pytest
import torch
from data_files import (
    cifar10_pickles,
    labels,
    pixels,
    python2_pickle,
    python3_pickle,
    real_data,
    write_cifar10,
    write_cifar100,
)

from cosnorm.study.data import DataError, load
from cosnorm.study.data.cifar import read_pickled, read_records
from cosnorm.study.data.pickles import read_pickle


def test_binary_cifar10(tmp_path):
    write_cifar10(tmp_path, records=20)
    data = load("cifar10", tmp_path)
    assert data.sample_shape == (3, 32, 32) and len(data.train) == 100 and len(data.test) == 20
    assert data.train.x.is_contiguous() and data.classes[:2] == ("airplane", "automobile")
    third = pixels(20, 3072, seed=2).reshape(20, 3, 32, 32)
    assert np.array_equal(data.train.x[40:60].numpy(), third)
    assert np.array_equal(data.test.y.numpy(), labels(20, 10))


@pytest.mark.parametrize("which, classes", [("fine", 100), ("coarse", 20)])
def test_binary_cifar100(tmp_path, which, classes):
    write_cifar100(tmp_path)
    data = load("cifar100", tmp_path, labels=which)
    assert np.array_equal(data.train.y.numpy(), labels(120, classes))
    assert np.array_equal(data.test.x.numpy().reshape(110, -1), pixels(110, 3072, seed=110))
    assert data.classes[3] == f"{which}3" and len(data.classes) == classes


def python3_for_2(value):
    """Bytes become a call of `_codecs.encode`, and that is how they have to be read."""
    return pickle.dumps(value, protocol=2)


def test_only_bytes_are_encoded(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(python3_for_2(_Calls(codecs.encode, "x", "rot13")))
    with pytest.raises(DataError, match="the pickle calls"):
        read_pickle(path)


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle, python3_for_2])
def test_pickled_cifar10_equals_the_binary(tmp_path, dump):
    binary = write_cifar10(tmp_path / "a")
    cifar10_pickles(binary.glob("*.bin"), tmp_path / "b", dump)
    assert (
        load("cifar10", tmp_path / "b").fingerprint == load("cifar10", tmp_path / "a").fingerprint
    )


@pytest.mark.parametrize("which", ["fine", "coarse"])
def test_pickled_cifar100_equals_the_binary(tmp_path, which):
    binary = write_cifar100(tmp_path / "a")
    folder = tmp_path / "b" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        rows = np.fromfile(binary / f"{name}.bin", np.uint8).reshape(-1, 3074)
        batch = {
            "coarse_labels": rows[:, 0].tolist(),
            "fine_labels": rows[:, 1].tolist(),
            "data": rows[:, 2:].copy(),
        }
        (folder / name).write_bytes(python2_pickle(batch))
    names = {f"{which}_label_names": [f"{which}{i}" for i in range(100 if which == "fine" else 20)]}
    (folder / "meta").write_bytes(python2_pickle(names))
    pickled, expected = (load("cifar100", tmp_path / side, labels=which) for side in "ba")
    assert pickled.fingerprint == expected.fingerprint and pickled.classes == expected.classes


BINARY_DAMAGE = {
    "cut": (lambda c: c[:-1], "61,459 bytes are not a whole number of records of 3,073 bytes"),
    "empty": (lambda c: b"", "not a whole number"),
    "a record short": (lambda c: c[:-3073], r"data_batch_3\.bin: 19 images, where .* have 20"),
    "label 10": (lambda c: b"\x0a" + c[1:], "label 10 of example 0 is out of range 0…9"),
}


@pytest.mark.parametrize("case", BINARY_DAMAGE)
def test_binary_damage(tmp_path, case):
    change, message = BINARY_DAMAGE[case]
    path = write_cifar10(tmp_path) / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", tmp_path)
    assert "data_batch_3" in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"cifar-10-batches-bin/.*cosnorm data fetch cifar10"):
        load("cifar10", tmp_path)
    (write_cifar10(tmp_path) / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin .*not found"):
        load("cifar10", tmp_path)


def test_cifar100_label_damage_and_options(tmp_path):
    path = write_cifar100(tmp_path) / "train.bin"
    with pytest.raises(DataError, match=r"labels must be 'fine' or 'coarse', received 'all'"):
        load("cifar100", tmp_path, labels="all")
    content = bytearray(path.read_bytes())
    content[3074 + 1] = 100
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"label 100 of example 1 is out of range 0…99"):
        load("cifar100", tmp_path)
    (path.parent / "fine_label_names.txt").write_text("apple\n")
    with pytest.raises(DataError, match=r"1 class names where there are 100"):
        load("cifar100", tmp_path)


class _Calls:
    """Pickled, this is an instruction to call a function."""

    def __init__(self, function, *arguments):
        self._call = (function, arguments)

    def __reduce__(self):
        return self._call


def _malicious(marker):
    import builtins
    import os

    touch = f"open({str(marker)!r}, 'w')"
    return {
        "os.system": pickle.dumps(_Calls(os.system, f"touch {marker}")),
        "eval, protocol 0": pickle.dumps(_Calls(builtins.eval, touch), protocol=0),
        "getattr": pickle.dumps(_Calls(getattr, "x", "upper")),
        "inside a batch": pickle.dumps({"data": _Calls(builtins.exec, touch), "labels": []}),
        "numpy function": pickle.dumps(_Calls(np.lib.format.open_memmap, str(marker))),
        "stacked global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        "inst": b"(S'touch " + str(marker).encode() + b"'\nios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pname\n.",
    }


@pytest.mark.parametrize("case", _malicious("x"))
def test_a_pickle_that_calls_a_function_is_refused_and_nothing_runs(tmp_path, case):
    marker = tmp_path / "marker"
    binary = write_cifar10(tmp_path / "a")
    folder = cifar10_pickles(binary.glob("*.bin"), tmp_path / "b")
    (folder / "data_batch_1").write_bytes(_malicious(marker)[case])
    with pytest.raises(DataError, match=r"data_batch_1: .*(pickle|trust)") as caught:
        load("cifar10", tmp_path / "b")
    if case in ("os.system", "stacked global"):
        assert "the pickle calls posix.system" in str(caught.value)
    assert not marker.exists()


UNWANTED = {
    "object array": python3_pickle(np.array([{}, []], dtype=object)),
    "structured array": python3_pickle(np.zeros(2, dtype=[("a", "u1"), ("b", "i4")])),
    "text array": python3_pickle(np.array(["a"])),
    "float": pickle.dumps(1.5),
    "None": pickle.dumps(None),
    "tuple": pickle.dumps((1, 2)),
    "set": pickle.dumps({1, 2}),
    "number as key": pickle.dumps({1: 2}),
    "array never filled": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "huge array asked for": b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ft\x85R.",
    "shared lists": b"\x80\x02]" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60)) + b".",
    "a list inside itself": b"\x80\x02]q\x01h\x01a.",
    "state for a function": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}b.",
    "array of other bytes": python2_pickle(pixels(4, 4)).replace(b"U\x10", b"U\x0f", 1),
}


@pytest.mark.parametrize("case", UNWANTED)
def test_only_arrays_bytes_numbers_lists_and_dicts_are_read(tmp_path, case):
    path = tmp_path / "value"
    path.write_bytes(UNWANTED[case])
    with pytest.raises(DataError, match=str(path)):
        read_pickle(path)


def test_a_value_remembered_under_a_huge_number_takes_no_memory(tmp_path):
    (tmp_path / "value").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    assert read_pickle(tmp_path / "value") == []


@pytest.mark.parametrize("dtype", ["u1", "i8", ">i4", "<f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_number_arrays_of_any_order_come_back_exactly(tmp_path, dtype, order):
    array = np.asarray(np.arange(24).reshape(4, 6), dtype=dtype, order=order)
    (tmp_path / "a").write_bytes(python3_pickle({"a": array}))
    found = read_pickle(tmp_path / "a")["a"]
    assert np.array_equal(found, array) and found.dtype == array.dtype


def _batch(**changes):
    return {"data": pixels(4, 3072), "labels": [0, 1, 2, 3], **changes}


PICKLE_DAMAGE = {
    "cut": (python2_pickle(_batch())[:-200], "not a whole pickle"),
    "not a pickle": (b"hello", "not a whole pickle|pickle"),
    "a list": (python2_pickle([1, 2]), "a dict with 'data' and 'labels'"),
    "no labels": (python2_pickle({"data": pixels(4, 3072)}), "a dict with 'data' and 'labels'"),
    "fewer labels": (python2_pickle(_batch(labels=[0, 1, 2])), "3 labels for 4 images"),
    "label 10": (python2_pickle(_batch(labels=[0, 1, 2, 10])), "label 10 of example 3"),
    "label -1": (python2_pickle(_batch(labels=[0, 1, 2, -1])), "label -1 of example 3"),
    "text label": (python2_pickle(_batch(labels=[0, 1, 2, "x"])), "a list of integers"),
    "narrow rows": (python2_pickle(_batch(data=pixels(4, 3000))), "rows of 3,072 pixels"),
    "data is text": (python2_pickle(_batch(data="x")), "must be a uint8 array"),
}


@pytest.mark.parametrize("case", PICKLE_DAMAGE)
def test_pickle_damage(tmp_path, case):
    content, message = PICKLE_DAMAGE[case]
    folder = cifar10_pickles(write_cifar10(tmp_path / "a").glob("*.bin"), tmp_path / "b")
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", tmp_path / "b")
    assert str(folder / "test_batch") in str(caught.value)


@pytest.mark.parametrize("name, classes", [("cifar10", 10), ("cifar100", 100)])
def test_the_real_files(name, classes):
    root = real_data()
    start = time.process_time()
    data = load(name, root)
    assert time.process_time() - start < 8  # under 1 s, however busy the machine is with others
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert torch.equal(torch.bincount(data.train.y), torch.full((classes,), 50_000 // classes))
    assert torch.equal(torch.bincount(data.test.y), torch.full((classes,), 10_000 // classes))


def test_a_real_batch_as_a_pickle(tmp_path):
    path = real_data() / "cifar-10-batches-bin" / "test_batch.bin"
    cifar10_pickles([path], tmp_path)
    pickled = read_pickled(tmp_path / "cifar-10-batches-py" / "test_batch", "labels", 10)
    for found, expected in zip(pickled, read_records(path, 1, 0, 10), strict=True):
        assert np.array_equal(found, expected)
