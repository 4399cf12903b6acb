"""Whatever happens to a file, the answer is a data set or a DataError, never another exception."""

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
from PIL import Image

from cosnorm.data import DataError, load

ROUNDS = 100


def _pickles(root):
    cifar10_pickles(write_cifar10(root / "binary", records=2).glob("*.bin"), root)


def _npz(root):
    x, y = pixels(8, 1, 4, 4), np.arange(8) % 2
    np.savez_compressed(root / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def _images(root):
    for i in range(8):
        path = root / "own" / "ab"[i % 2] / f"{i}.{'png' if i < 5 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(6, 6, 3, seed=i)).save(path)


FORMATS = {
    "mnist, gzipped": (lambda root: write_mnist(root, 12, 11), "mnist"),
    "mnist, plain": (lambda root: write_mnist(root, 12, 11, packed=False), "mnist"),
    "cifar10, binary": (lambda root: write_cifar10(root, records=2), "cifar10"),
    "cifar10, pickled": (_pickles, "cifar10"),
    "cifar100": (lambda root: write_cifar100(root, 3, 2), "cifar100"),
    "svhn, packed": (lambda root: write_svhn(root, 2, 2, 2), "svhn"),
    "svhn, plain": (lambda root: write_svhn(root, 2, 2, 2, compress=False), "svhn"),
    "20news": (write_news, "20news"),
    "npz": (_npz, "own.npz"),
    "images": (_images, "own"),
}


def _damage(content: bytes, random: np.random.RandomState) -> bytes:
    """Cut, overwrite or stretch somewhere, most often near the start, where the headers are."""
    reach = min(len(content), 200) if random.rand() < 0.7 else len(content)
    place = random.randint(reach)
    kind = random.randint(4)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes([random.randint(256)]) + content[place + 1 :]
    if kind == 2:
        return content[:place] + random.bytes(8) + content[place + 8 :]
    return content[:place] + random.bytes(random.randint(1, 20)) + content[place:]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damage_anywhere_is_answered(tmp_path, name):
    write, dataset = FORMATS[name]
    write(tmp_path)
    target = tmp_path / dataset if dataset.startswith("own") else dataset
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and "binary" not in p.parts)
    random = np.random.RandomState(len(name))
    refused = 0
    for _ in range(ROUNDS):
        path = files[random.randint(len(files))]
        whole = path.read_bytes()
        path.write_bytes(_damage(whole, random))
        try:
            load(target, tmp_path)
        except DataError as error:
            refused += 1
            assert str(tmp_path) in str(error)
        path.write_bytes(whole)
    load(target, tmp_path)
    assert refused > ROUNDS // 10
