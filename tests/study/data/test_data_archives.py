"""Archives that try to leave their folder, alone and on their way through `fetch`."""

import gzip
import hashlib
import io
import tarfile
import tracemalloc
from contextlib import suppress

import pytest

from cosnorm.study.data import DataError, fetch
from cosnorm.study.data.archives import unpack
from cosnorm.study.data.download import Settings
from cosnorm.study.data.releases import RELEASES, Download, File, Release

QUICK = Settings(timeout_s=5, pause_s=0.01)


def member(name, content=b"data", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def tar_gz(*members) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return gzip.compress(raw.getvalue())


@pytest.fixture
def places(tmp_path):
    """An archive's path and a target folder two levels down, so that climbing out would show."""
    target = tmp_path / "inner" / "target"
    target.mkdir(parents=True)
    return tmp_path / "set.tar.gz", target


def test_files_and_folders_are_unpacked_with_plain_permissions(places):
    archive, target = places
    executable = member("set/run.sh", b"#!/bin/sh")
    executable[0].mode = 0o4777
    archive.write_bytes(
        tar_gz(member("set", kind=tarfile.DIRTYPE), member("./set/a/b.bin", b"12"), executable)
    )
    unpack(archive, target)
    assert (target / "set" / "a" / "b.bin").read_bytes() == b"12"
    assert (target / "set" / "run.sh").stat().st_mode & 0o7111 == 0


HOSTILE = {
    "climbs": (member("../evil"), "leaves the target"),
    "climbs inside": (member("set/../../evil"), "leaves the target"),
    "absolute": (member("/tmp/cosnorm-evil"), "leaves the target"),
    "backslash": (member("..\\evil"), "elsewhere"),
    "drive": (member("C:evil"), "elsewhere"),
    "symlink": (member("link", kind=tarfile.SYMTYPE, link="/etc/passwd"), "not a plain file"),
    "symlink inside": (member("set/l", kind=tarfile.SYMTYPE, link="a"), "not a plain file"),
    "hardlink": (member("link", kind=tarfile.LNKTYPE, link="../../x"), "not a plain file"),
    "device": (member("dev", kind=tarfile.CHRTYPE), "not a plain file"),
    "block device": (member("dev", kind=tarfile.BLKTYPE), "not a plain file"),
    "pipe": (member("pipe", kind=tarfile.FIFOTYPE), "not a plain file"),
    "twice": (member("set/good"), "there twice"),
    "file as folder": (member("set/good/x"), "both a file and a folder"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_member_condemns_the_archive(places, case):
    archive, target = places
    hostile, message = HOSTILE[case]
    archive.write_bytes(tar_gz(member("set/good"), hostile, member("set/after")))
    with pytest.raises(DataError, match=message) as caught:
        unpack(archive, target)
    assert str(archive) in str(caught.value) and "do not trust" in str(caught.value)
    assert not (target / "set" / "after").exists()
    outside = [p for p in archive.parent.rglob("*") if target not in (p, *p.parents)]
    assert sorted(p.name for p in outside) == ["inner", "set.tar.gz"]
    assert [p for p in target.rglob("*") if p.is_symlink() or p.name == "evil"] == []


def test_a_write_through_an_earlier_link_is_refused_at_the_link(places):
    archive, target = places
    archive.write_bytes(
        tar_gz(member("set", kind=tarfile.SYMTYPE, link="../.."), member("set/evil"))
    )
    with pytest.raises(DataError, match=r"'set' is not a plain file"):
        unpack(archive, target)
    assert not (archive.parent / "evil").exists()


def test_a_bomb_is_refused(places):
    archive, target = places
    archive.write_bytes(tar_gz(member("big", b"\0" * 100_000)))
    with pytest.raises(DataError, match=r"more than 50,000 bytes in all"):
        unpack(archive, target, most_bytes=50_000)
    assert list(target.iterdir()) == []


DAMAGE = {
    "cut": lambda c: c[: len(c) // 2],
    "no tar inside": lambda c: gzip.compress(b"hello" * 500),
    "not gzip": lambda c: b"<html></html>",
    "empty": lambda c: b"",
    "sum": lambda c: c[:-6] + bytes([c[-6] ^ 1]) + c[-5:],
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_archive_is_named(places, case):
    archive, target = places
    archive.write_bytes(DAMAGE[case](tar_gz(member("set/a", b"0123456789" * 1000))))
    with pytest.raises(DataError, match=r"set\.tar\.gz: not a whole \.tar\.gz archive"):
        unpack(archive, target)


def _everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _archive(server, monkeypatch, content):
    server.files = {"toy.tgz": content}
    files = {"toy/a.bin": b"aaa", "toy/sub/b.bin": b"bbb"}
    wanted = tuple(
        File("toy", path, f"sha256:{hashlib.sha256(body).hexdigest()}", len(body))
        for path, body in files.items()
    )
    item = Download("toy.tgz", (f"{server.url}/toy.tgz",), wanted, archive=True)
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))


GOOD = (member("toy/a.bin", b"aaa"), member("toy/sub/b.bin", b"bbb"), member("toy/readme", b"r"))


def test_an_archive_is_unpacked_in_place(server, tmp_path, monkeypatch):
    _archive(server, monkeypatch, tar_gz(*GOOD))
    fetch("toy", tmp_path, settings=QUICK)
    assert _everything(tmp_path) == ["toy/a.bin", "toy/readme", "toy/sub/b.bin"]
    (tmp_path / "toy/sub/b.bin").write_bytes(b"bad")
    (tmp_path / "toy/mine.txt").write_text("kept")
    fetch("toy", tmp_path, settings=QUICK)
    assert (tmp_path / "toy/sub/b.bin").read_bytes() == b"bbb"
    assert (tmp_path / "toy/mine.txt").read_text() == "kept"


BAD_ARCHIVES = {
    "climbs out": ((*GOOD, member("../evil")), "leaves the target"),
    "lacks a file": (GOOD[:1], r"toy/sub/b\.bin in it is missing"),
    "another file": ((GOOD[0], member("toy/sub/b.bin", b"xxx")), r"b\.bin in it is damaged"),
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_a_bad_archive_leaves_nothing_behind(server, tmp_path, monkeypatch, case):
    members, message = BAD_ARCHIVES[case]
    _archive(server, monkeypatch, tar_gz(*members))
    root = tmp_path / "data"
    with pytest.raises(DataError, match=message):
        fetch("toy", root, settings=QUICK)
    assert _everything(tmp_path) == [] and list(root.iterdir()) == []


def test_without_a_sum_a_part_is_continued_only_if_the_server_names_its_copy(
    server, tmp_path, monkeypatch
):
    _archive(server, monkeypatch, tar_gz(*GOOD))
    server.etag = 'W/"weak"'
    server.manners = ["dies midway"]
    fetch("toy", tmp_path, settings=QUICK)
    assert server.asked == [None, None]


def _claiming(kind, size):
    """A header of a record that claims `size` bytes, and zeros that unfold to a gigabyte."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20), 1)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_what_a_header_claims_is_bounded_before_it_is_read(places, kind):
    archive, target = places
    archive.write_bytes(_claiming(kind, 50 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"not a whole .tar.gz archive \(a header claims 52,4"):
        unpack(archive, target)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_all_headers_together_are_bounded(places, monkeypatch):
    archive, target = places
    monkeypatch.setattr("cosnorm.study.data.archives.MOST_HEADERS", 100_000)
    archive.write_bytes(tar_gz(*(member(f"{i}{'n' * 200}", b"") for i in range(100))))
    with pytest.raises(DataError, match="unfolds to more than an archive of its kind holds"):
        unpack(archive, target)


def test_what_follows_the_last_member_is_bounded(places, monkeypatch):
    archive, target = places
    monkeypatch.setattr("cosnorm.study.data.archives.MOST_HEADERS", 100_000)
    content = gzip.decompress(tar_gz(member("a")))
    archive.write_bytes(gzip.compress(content + bytes(1 << 20)))
    with pytest.raises(DataError, match="unfolds to more than an archive of its kind holds"):
        unpack(archive, target, most_bytes=100_000)


def _odd_archives():
    plain = gzip.decompress(tar_gz(member("a")))
    pax = tarfile.TarInfo("a")
    pax.pax_headers = {"size": "many", "mtime": "nan", "path": "b\0c"}
    yield gzip.compress(pax.tobuf(tarfile.PAX_FORMAT) + plain)
    yield gzip.compress(plain[:100] + b"\x80" + b"\xff" * 20 + plain[121:])
    yield tar_gz(member("n" * 300))
    yield tar_gz(member("/".join(["n" * 200] * 40)))
    long_link = tarfile.TarInfo("././@LongLink")
    long_link.type = b"L"
    yield gzip.compress(long_link.tobuf() * 3000 + plain)
    record = tarfile.TarInfo("././@PaxHeader")
    record.type, record.size = b"x", 512
    for text in (b"x path=y\n", b"999999999 path=y\n", b"0 a=b\n", b"\xff" * 20, b"12 size=-1\n"):
        yield gzip.compress(record.tobuf() + text.ljust(512, b"\0") + plain)


@pytest.mark.parametrize("number", range(len(list(_odd_archives()))))
def test_odd_archives_are_answered_in_our_words(places, number):
    archive, target = places
    archive.write_bytes(list(_odd_archives())[number])
    with suppress(DataError):
        unpack(archive, target)
