"""Whatever happens to a file, the answer is a result or an error of ours, soon and in little room.

COSNORM_FUZZ says how many damaged files there are over all readers.
"""

import json
import os
import re
import shutil
import tarfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    cifar10_pickles,
    pixels,
    write_cifar10,
    write_cifar100,
    write_mnist,
    write_news,
    write_svhn,
)
from experiment_cases import StopAfter, config_for, sparse_data, vector_data
from PIL import Image

from cosnorm.study.data import DataError, load
from cosnorm.study.data.archives import unpack
from cosnorm.study.report import ReportError, load_runs
from cosnorm.study.runs.errors import ConfigError, RunError, RunWarning
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.predict import predict_file

COUNT = int(os.environ.get("COSNORM_FUZZ", "3000"))
SECONDS = 10.0
MEGABYTES = 1000
OURS = (DataError, RunError, ConfigError, ReportError)


def _pickles(root):
    cifar10_pickles(write_cifar10(root.parent / "binary", records=2).glob("*.bin"), root)


def _npz(root):
    x, y = pixels(8, 1, 4, 4), np.arange(8) % 2
    np.savez_compressed(root / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def _csv(root):
    rows = "".join(f"{i},{i / 3:.3f},{'ab'[i % 2]}\n" for i in range(12))
    (root / "own.csv").write_text("x,z,label\n" + rows)


def _images(root):
    for i in range(8):
        path = root / "own" / "ab"[i % 2] / f"{i}.{('png', 'jpg', 'gif', 'bmp', 'tif')[i // 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(6, 6, 3, seed=i)).save(path)


def _texts(root):
    for i in range(12):
        path = root / "own" / "ab"[i % 2] / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("From: a\nSubject: b\n\n" + "sea sky night wind " * (1 + i % 3))


def _archive(root):
    (root / "content").mkdir()
    (root / "content" / "a.bin").write_bytes(bytes(range(256)) * 4)
    (root / "content" / ("long" * 40)).write_text("b")
    with tarfile.open(root / "set.tar.gz", "w:gz") as tar:
        tar.add(root / "content", "content")
    shutil.rmtree(root / "content")


def _unpacked(root):
    target = root.parent / "target"
    target.mkdir()
    try:
        unpack(root / "set.tar.gz", target)
    finally:
        shutil.rmtree(target)


def _run(root):
    run(config_for(epochs=2), root, dataset=vector_data(), stop=StopAfter(9))
    run(config_for(epochs=2), root, dataset=vector_data(), checkpoint_seconds=0)


def _stopped(root):
    _run(root)
    for name in ("model.safetensors", "summary.json", "environment.json"):
        (root / name).unlink()


def _resumed(root):
    """Go on with a copy, so that the damaged files stay as they are."""
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    try:
        run(config_for(epochs=2), copy, dataset=vector_data(), stop=StopAfter(1))
    finally:
        shutil.rmtree(copy)


def _reported(root):
    load_runs(root.parent / "fuzzed")


def _predicting(name, write):
    """Rows for a run on vectors, in a file of a kind; the run lies beside and stays whole."""

    def prepare(root):
        run(config_for(epochs=1), root.parent / "run", dataset=vector_data())
        write(root / name)

    return prepare, lambda root: list(predict_file(root.parent / "run", root / name))


def _rows(path):
    rows = np.random.RandomState(0).rand(3, 6)
    if path.suffix == ".csv":
        path.write_text("a,b,c,d,e,f\n" + "\n".join(",".join(map(str, row)) for row in rows))
    elif path.suffix == ".npz":
        np.savez(path, x=rows)
    else:
        np.save(path, rows)


def _loaded(name):
    """A published set lies in the folder itself; the user's own has a name there."""
    return lambda root: load(root / name if name.startswith("own") else name, root)


READERS = {
    "mnist, gzipped": (lambda root: write_mnist(root, 12, 11), _loaded("mnist")),
    "mnist, plain": (lambda root: write_mnist(root, 12, 11, packed=False), _loaded("mnist")),
    "cifar10, binary": (lambda root: write_cifar10(root, records=2), _loaded("cifar10")),
    "cifar10, pickled": (_pickles, _loaded("cifar10")),
    "cifar100": (lambda root: write_cifar100(root, 3, 2), _loaded("cifar100")),
    "svhn, packed": (lambda root: write_svhn(root, 2, 2, 2), _loaded("svhn")),
    "svhn, plain": (lambda root: write_svhn(root, 2, 2, 2, compress=False), _loaded("svhn")),
    "20news": (write_news, _loaded("20news")),
    "npz": (_npz, _loaded("own.npz")),
    "csv": (_csv, _loaded("own.csv")),
    "images": (_images, _loaded("own")),
    "texts": (_texts, lambda root: load(root / "own", min_df=1)),
    "tar.gz": (_archive, _unpacked),
    "run, used": (_run, load_run),
    "run, unfinished, used": (_stopped, load_run),
    "run, gone on with": (_stopped, _resumed),
    "run, reported": (_run, _reported),
    "predict .npy": _predicting("rows.npy", _rows),
    "predict .npz": _predicting("rows.npz", _rows),
    "predict .csv": _predicting("rows.csv", _rows),
}


def _damaged(content: bytes, random: np.random.RandomState) -> bytes:
    """Cut, overwrite, stretch, repeat or nest, most often near the start, where headers are."""
    reach = max(1, min(len(content), 200) if random.rand() < 0.7 else len(content))
    place = random.randint(reach)
    kind = random.randint(7)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes([random.randint(256)]) + content[place + 1 :]
    if kind == 2:
        return content[:place] + random.bytes(8) + content[place + 8 :]
    if kind == 3:
        return content[:place] + random.bytes(random.randint(1, 20)) + content[place:]
    if kind == 4:
        return content[:place] + content[place // 2 :]
    if kind == 5:
        digits = b"9" * random.choice([3, 12, 40, 5000])
        return content[:place] + digits + content[place + len(digits) :]
    nest = random.choice([b"[", b'{"a":', b"\x00", b"\xff", b"\n"])
    return content[:place] + bytes(nest) * random.choice([10, 20_000]) + content[place:]


@pytest.mark.timeout(300 + COUNT // 10)
def _megabytes(field):
    """What the kernel tells of this process: VmRSS, the memory it has now, or VmHWM, the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damage_anywhere_is_answered(tmp_path, name):
    prepare, read = READERS[name]
    root = tmp_path / "fuzzed"
    root.mkdir()
    prepare(root)
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    contents = {path: path.read_bytes() for path in files}
    random = np.random.RandomState(list(READERS).index(name))
    rounds, refused, slowest = COUNT // len(READERS), 0, 0.0
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on, not of tests before
    before = _megabytes("VmRSS")
    for _ in range(rounds):
        path = files[random.randint(len(files))]
        path.write_bytes(_damaged(contents[path], random))
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)
            try:
                read(root)
            except OURS:
                refused += 1
        slowest = max(slowest, time.monotonic() - begun)
        path.write_bytes(contents[path])
    read(root)
    memory = _megabytes("VmHWM") - before
    with suppress(KeyError):
        told = {"reader": name, "files": rounds, "refused": refused}
        told |= {"slowest_s": round(slowest, 2), "peak_mb": round(memory)}
        with open(os.environ["COSNORM_FUZZ_LOG"], "a") as log:
            log.write(json.dumps(told) + "\n")
    assert slowest < SECONDS
    assert memory < MEGABYTES
    assert refused > (0 if name == "texts" else rounds // 20)  # most damage to text is text


def test_the_vocabulary_of_a_run_is_read_with_the_same_care(tmp_path):
    run(config_for(epochs=1), tmp_path, dataset=sparse_data())
    (tmp_path / "vocabulary.safetensors").write_bytes(b"\x08" + bytes(15))
    with pytest.raises(RunError, match=r"vocabulary.safetensors is damaged"):
        (tmp_path / "a.txt").write_text("sea")
        list(predict_file(tmp_path, tmp_path / "a.txt"))
