"""Memory is asked for before it is taken, and about as much as is taken."""

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from cosnorm.study.data import DataError, images, load, memory, npy, tables
from cosnorm.study.data.memory import ask_memory, memory_here
from cosnorm.study.data.splits import divided, stratified_test_rows


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files in place of those in which Linux says how much memory there is."""
    for name in ("_FREE", "_LIMIT", "_TAKEN"):
        monkeypatch.setattr(memory, name, tmp_path / name)
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    return tmp_path


def test_what_others_have_taken_is_not_there(system):
    assert memory_here() == 4096 * 1000
    (system / "_FREE").write_text("MemTotal: 4000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\n")
    assert memory_here() == 1024 * 3000
    (system / "_LIMIT").write_text("max\n")
    assert memory_here() == 1024 * 3000
    (system / "_LIMIT").write_text("2000000\n")
    assert memory_here() == 2_000_000
    (system / "_TAKEN").write_text("anon 500000\nfile 1400000\n")
    assert memory_here() == 1_500_000
    ask_memory(system, 1_500_000, "rows", "give fewer")
    with pytest.raises(DataError, match=r"rows need 0.0 GB of memory and 0.0 are free; give fewer"):
        ask_memory(system, 1_500_001, "rows", "give fewer")


def test_where_nothing_is_known_nothing_is_refused(system, monkeypatch):
    monkeypatch.delattr("os.sysconf")
    assert memory_here() is None
    ask_memory(system, 1 << 60, "rows", "give fewer")


def asked_and_taken(path, monkeypatch, **options):
    """The bytes asked for before `path` is read, and those that reading it took at its peak."""
    load(path, **options)  # what is imported and kept on first use is not asked
    asked = []
    for module in (npy, tables, images):
        monkeypatch.setattr(module, "ask_memory", lambda path, needed, *told: asked.append(needed))
    tracemalloc.start()
    load(path, **options)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (needed,) = asked
    return needed, taken


BUFFERS = 2 << 20  # of zip and numpy while they read or move rows, whatever there is to read
STORED = {
    "bytes": np.zeros((1000, 10_000), "u1"),
    "floats": np.zeros((1000, 3000), "f4"),
    "doubles": np.zeros((1000, 2000), "f8"),
    "in the order of Fortran": np.zeros((3000, 1000), "f4").T,
    "images": np.zeros((1000, 3, 60, 60), "u1"),
    "images with channels last": np.zeros((1000, 60, 60, 3), "u1"),
    "images in doubles with channels last": np.zeros((1000, 30, 30, 3), "f8"),
    "narrow": np.zeros((300_000, 2), "f4"),
}


@pytest.mark.parametrize("case", STORED)
@pytest.mark.parametrize("has_test", [False, True])
def test_as_much_is_asked_for_arrays_as_they_take(tmp_path, monkeypatch, case, has_test):
    x = STORED[case]
    arrays = {"x_train": x, "y_train": np.arange(len(x)) % 2}
    if has_test:
        arrays |= {"x_test": x[:200], "y_test": arrays["y_train"][:200]}
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    asked, taken = asked_and_taken(tmp_path / "own.npz", monkeypatch)
    assert taken - BUFFERS < asked < 1.3 * taken


def test_rows_that_are_used_as_stored_are_never_there_twice(tmp_path, monkeypatch):
    x = STORED["floats"]
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(len(x)) % 2)
    _, taken = asked_and_taken(tmp_path / "own.npz", monkeypatch)
    assert taken < 1.3 * x.nbytes


def test_parts_in_one_memory_keep_the_order_of_their_rows():
    x, y = np.arange(50_000 * 3).reshape(50_000, 3), np.arange(50_000)
    test = stratified_test_rows(y % 7)
    parts = (x[~test], y[~test]), (x[test], y[test])
    for part, expected in zip(divided(x, y, test), parts, strict=True):
        assert np.array_equal(part[0], expected[0]) and np.array_equal(part[1], expected[1])
        assert np.shares_memory(part[0], x)


@pytest.mark.parametrize("width, rows, text", [(200, 10_000, "1"), (3, 100_000, "0.123456")])
@pytest.mark.parametrize("has_split", [False, True])
def test_as_much_is_asked_for_a_table_as_it_takes(
    tmp_path, monkeypatch, width, rows, text, has_split
):
    names = [*(f"x{i}" for i in range(width)), "y", *(["split"] * has_split)]
    lines = [[*[text] * width, label, *(["train"] * has_split)] for label in ("one", "two")]
    lines = [",".join(line) for line in lines] * (rows // 2)
    if has_split:
        lines[-2:] = [line.replace("train", "test") for line in lines[-2:]]
    (tmp_path / "own.csv").write_text("\n".join([",".join(names), *lines, ""]))
    asked, taken = asked_and_taken(tmp_path / "own.csv", monkeypatch)
    assert taken - BUFFERS < asked < 1.3 * taken


@pytest.mark.parametrize("colour", [(10, 20, 30), (9, 9, 9)])
def test_as_much_is_asked_for_pictures_as_they_take(tmp_path, monkeypatch, colour):
    for i in range(60):
        path = tmp_path / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (300, 300), colour).save(path)
    asked, taken = asked_and_taken(tmp_path, monkeypatch)
    assert taken - BUFFERS < asked < 1.3 * taken
