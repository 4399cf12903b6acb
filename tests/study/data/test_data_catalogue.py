"""What the list and the check say about a data folder."""

import hashlib

import pytest
from data_files import real_data, write_mnist

from cosnorm.study.data import DataError, fetch, listing, verify
from cosnorm.study.data.catalogue import documents_digest
from cosnorm.study.data.releases import RELEASES, Download, File, Release

CONTENT = b"0123456789"


def _state(root, name):
    return next(entry.state for entry in listing(root) if entry.name == name)


@pytest.fixture
def toy(monkeypatch):
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    file = File("toy", "toy/toy.bin", digest, len(CONTENT))
    item = Download("toy.bin", ("http://127.0.0.1/toy.bin",), (file,), digest, len(CONTENT))
    extra = File("toy", "toy/extra.bin", digest, len(CONTENT))
    more = Download("extra.bin", item.urls, (extra,), digest, len(CONTENT), optional=True)
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item, more)))


def test_the_list_tells_what_is_there(toy, tmp_path):
    assert _state(tmp_path, "digits") == "embedded" and _state(tmp_path, "toy") == "absent"
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/toy.bin").write_bytes(CONTENT[:-1])
    assert _state(tmp_path, "toy") == "incomplete"
    (tmp_path / "toy/toy.bin").write_bytes(CONTENT)
    entry = next(entry for entry in listing(tmp_path) if entry.name == "toy")
    assert entry.state == "whole" and entry.folder == tmp_path
    assert (entry.bytes_here, entry.bytes_to_fetch) == (10, 20)
    write_mnist(tmp_path, packed=False)
    assert _state(tmp_path, "mnist") == "other layout"


def test_verify_looks_inside(toy, tmp_path):
    path = tmp_path / "toy" / "toy.bin"
    assert [check.state for check in verify("toy", tmp_path)] == ["missing"]
    path.parent.mkdir()
    for content, state, detail in (
        (CONTENT[:-1], "damaged", "9 bytes, not 10"),
        (CONTENT[::-1], "damaged", "sha256 "),
        (CONTENT, "ok", "sha256 "),
    ):
        path.write_bytes(content)
        (check,) = verify("toy", tmp_path)
        assert (check.path, check.state) == (path, state) and check.detail.startswith(detail)
    (tmp_path / "toy" / "extra.bin").write_bytes(b"x")
    assert [check.state for check in verify("toy", tmp_path)] == ["ok", "damaged"]


def test_counts_are_checked_whatever_the_order_of_their_documents(tmp_path, monkeypatch):
    data, labels = tmp_path / "train.data", tmp_path / "train.label"
    data.write_text("1 1 1\n1 2 5\n2 2 2\n3 3 3\n")
    labels.write_text("1\n1\n2\n")
    file = File("toy", "train.data", f"documents:{documents_digest(data)}")
    item = Download("toy.tgz", ("http://127.0.0.1/",), (file,), archive=True)
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))
    data.write_text("1 2 2\n2 2 5\n2 1 1\n3 3 3\n")
    assert verify("toy", tmp_path)[0].state == "ok"
    others = ("1 2 2\n2 2 5\n3 3 3\n", "1 2 2\n2 2 6\n2 1 1\n3 3 3\n")
    in_another_class = "3 2 2\n2 2 5\n2 1 1\n1 3 3\n"
    for text in (*others, in_another_class, "no numbers\n", "9" * 5000 + " 1 1\n", ""):
        data.write_text(text)
        assert verify("toy", tmp_path)[0].state == "damaged"
    labels.unlink()
    assert verify("toy", tmp_path)[0].state == "damaged"


def test_verify_and_fetch_know_only_published_sets(tmp_path):
    assert verify("digits", tmp_path) == []
    for action in (verify, fetch):
        with pytest.raises(
            DataError, match=r"imagenet: not a set that is fetched; these are: mnist"
        ):
            action("imagenet", tmp_path)
    assert [check.state for check in verify("cifar10", tmp_path)] == ["missing"] * 6


def test_the_catalogue_is_well_formed():
    for name, release in RELEASES.items():
        for item in release.downloads:
            assert item.urls and all(url.startswith(("http://", "https://")) for url in item.urls)
            assert item.archive or len(item.files) == 1
            assert item.digest or item.archive
            for file in item.files:
                assert file.dataset == name and len(file.digest.partition(":")[2]) == 64


@pytest.mark.parametrize("name", ["mnist", "20news", "cifar10", "cifar100"])
def test_the_real_files_have_the_recorded_sums(name):
    root = real_data()
    assert {check.state for check in verify(name, root)} == {"ok"}
    assert _state(root, name) == "whole"
