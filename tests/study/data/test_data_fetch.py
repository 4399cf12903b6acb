"""Fetching, against a server on this machine that behaves well, badly, and not."""

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from data_files import real_data
from data_server import Handler

from cosnorm.study.data import DataError, fetch, verify
from cosnorm.study.data.download import Settings
from cosnorm.study.data.releases import RELEASES, Download, File, Release

QUICK = Settings(timeout_s=5, pause_s=0.01)
CONTENT = os.urandom(1 << 20)


def sha(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def toy(server, monkeypatch):
    """A release of one plain file."""
    server.files = {"toy.bin": CONTENT}
    file = File("toy", "toy/toy.bin", sha(CONTENT), len(CONTENT))
    item = Download("toy.bin", (f"{server.url}/toy.bin",), (file,), sha(CONTENT), len(CONTENT))
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))
    return item


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_file_is_fetched_once(toy, server, tmp_path):
    seen = []
    done = fetch("toy", tmp_path, settings=QUICK, progress=lambda *step: seen.append(step))
    assert done.files == (tmp_path / "toy/toy.bin",) and done.bytes_received == len(CONTENT)
    assert done.files[0].read_bytes() == CONTENT and everything(tmp_path) == ["toy/toy.bin"]
    assert seen[-1] == ("toy.bin", len(CONTENT), len(CONTENT)) and len(seen) > 2
    assert fetch("toy", tmp_path, settings=QUICK).bytes_received == 0
    assert len(server.asked) == 1
    assert [check.state for check in verify("toy", tmp_path)] == ["ok"]


def test_a_damaged_file_is_replaced(toy, tmp_path):
    fetch("toy", tmp_path, settings=QUICK)
    (tmp_path / "toy/toy.bin").write_bytes(CONTENT[:-1] + b"?")
    (check,) = verify("toy", tmp_path)
    assert check.state == "damaged" and "sha256" in check.detail
    fetch("toy", tmp_path, settings=QUICK)
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT


def test_a_server_that_dies_midway_is_asked_for_the_rest(toy, server, tmp_path):
    server.manners = ["dies midway"] * 6
    done = fetch("toy", tmp_path, settings=QUICK)
    assert done.files[0].read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.asked[:2] == [None, f"bytes={half}-"] and len(server.asked) == 7


def test_what_arrived_stays_for_the_next_time(toy, server, tmp_path):
    server.manners = ["dies midway", "500", "500", "500", "500"]
    with pytest.raises(DataError, match=r"answered 500 .*run the same command again, it goes on"):
        fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == [
        f".toy.fetch/{n}" for n in ("lock", "toy.bin.part", "toy.bin.part.json")
    ]
    assert not (tmp_path / "toy").exists()
    server.asked.clear()
    done = fetch("toy", tmp_path, settings=QUICK)
    assert server.asked == [f"bytes={len(CONTENT) // 2}-"] and everything(tmp_path) == [
        "toy/toy.bin"
    ]
    assert done.bytes_received == len(CONTENT) // 2


def test_a_file_that_changed_meanwhile_starts_anew(toy, server, tmp_path):
    server.files = {"toy.bin": CONTENT[::-1]}
    server.manners = ["dies midway", "500", "500", "500", "500"]
    with pytest.raises(DataError):
        fetch("toy", tmp_path, settings=QUICK)
    server.files, server.etag = {"toy.bin": CONTENT}, '"two"'
    server.asked.clear()
    assert fetch("toy", tmp_path, settings=QUICK).files[0].read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) // 2}-"]  # answered with the whole file


@pytest.mark.parametrize("manner", ["ignores ranges", "lies about the start", "lies about content"])
def test_a_server_that_lies_about_ranges_does_no_harm(toy, server, tmp_path, manner):
    server.manners = ["dies midway", manner]
    done = fetch("toy", tmp_path, settings=QUICK)
    assert done.files[0].read_bytes() == CONTENT and everything(tmp_path) == ["toy/toy.bin"]
    assert done.bytes_received >= len(CONTENT)
    assert len(server.asked) == (2 if manner == "ignores ranges" else 3)


@pytest.mark.parametrize(
    "manner, message",
    [
        ("other bytes", "checksum differs: sha256 is [0-9a-f]{64}, not "),
        ("claims another size", "it has 1,048,581 bytes, the release 1,048,576"),
    ],
)
def test_another_file_than_the_releases_is_refused(toy, server, tmp_path, manner, message):
    server.manners = [manner] * 9
    with pytest.raises(DataError, match=message + r".*mirror"):
        fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == [] and len(server.asked) == 2


def test_a_file_longer_than_the_release_is_cut_off(server, tmp_path, monkeypatch):
    """Without a length in the answer, only counting shows it."""
    server.files = {"toy.bin": CONTENT + b"more"}
    monkeypatch.setattr(
        Handler,
        "send_header",
        lambda self, name, value, send=Handler.send_header: (
            None if name == "Content-Length" else send(self, name, value)
        ),
    )
    file = File("toy", "toy/toy.bin", sha(CONTENT), len(CONTENT))
    item = Download("toy.bin", (f"{server.url}/toy.bin",), (file,), sha(CONTENT), len(CONTENT))
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))
    with pytest.raises(DataError, match=r"it sent more than 1,048,576 bytes"):
        fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == []


def test_a_server_that_hangs_is_left_after_the_timeout(toy, server, tmp_path):
    server.manners = ["hangs midway"]
    done = fetch("toy", tmp_path, settings=Settings(timeout_s=0.3, pause_s=0.01))
    assert done.files[0].read_bytes() == CONTENT and len(server.asked) == 2


def test_a_missing_file_is_not_asked_for_again(toy, server, tmp_path):
    server.files = {}
    with pytest.raises(DataError, match=r"answered 404 .*name a mirror"):
        fetch("toy", tmp_path, settings=QUICK)
    assert len(server.asked) == 1 and everything(tmp_path) == []


def test_the_second_address_is_tried(toy, server, tmp_path, monkeypatch):
    urls = (f"{server.url}/gone.bin", f"{server.url}/toy.bin")
    item = Download("toy.bin", urls, toy.files, toy.digest, toy.size)
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))
    assert fetch("toy", tmp_path, settings=QUICK).files[0].read_bytes() == CONTENT


def test_a_mirror_is_asked_instead(toy, server, tmp_path):
    server.files = {"pub/data/toy.bin": CONTENT}
    done = fetch("toy", tmp_path, mirror=f"{server.url}/pub/data/", settings=QUICK)
    assert done.files[0].read_bytes() == CONTENT
    with pytest.raises(DataError, match=r"an http:// or https:// address, received 'file:///etc'"):
        fetch("toy", tmp_path / "b", mirror="file:///etc", settings=QUICK)


def test_a_redirect_to_a_local_file_is_not_followed(toy, server, tmp_path):
    server.manners = ["redirect to a file"] * 9
    with pytest.raises(DataError, match=r"could not be downloaded"):
        fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == []


def test_no_server_at_all(toy, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        mirror = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DataError, match=r"refused.*check the connection"):
            fetch("toy", tmp_path, mirror=mirror, settings=QUICK)


def test_a_folder_that_cannot_be_written(toy, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot be written"):
        fetch("toy", tmp_path / "file", settings=QUICK)


def test_a_full_disk_says_so_and_keeps_what_arrived(toy, tmp_path, monkeypatch):
    import errno

    from cosnorm.study.data import download

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download.os, "fsync", full)
        with pytest.raises(DataError, match=r"the disk is full; free some space"):
            fetch("toy", tmp_path, settings=QUICK)
    assert not (tmp_path / "toy").exists()
    assert fetch("toy", tmp_path, settings=QUICK).files[0].read_bytes() == CONTENT


def test_two_fetches_at_once_do_not_mix(toy, server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / ".toy.fetch").mkdir()
    with (tmp_path / ".toy.fetch" / "lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"another fetch of the same set is under way"):
            fetch("toy", tmp_path, settings=QUICK)
    assert fetch("toy", tmp_path, settings=QUICK).files[0].read_bytes() == CONTENT


KILLED = """
import sys
import tarfile
from cosnorm.study.data import fetch
from cosnorm.study.data.releases import RELEASES, Download, File, Release
url, root, digest, size = sys.argv[1:]
file = File("toy", "toy/toy.bin", digest, int(size))
item = Download("toy.bin", (url,), (file,), digest, int(size))
RELEASES["toy"] = Release("toy", "", "", "", (item,))
fetch("toy", root)
"""


def test_a_killed_fetch_goes_on(toy, server, tmp_path):
    server.manners = ["hangs midway"]
    command = [sys.executable, "-c", KILLED, f"{server.url}/toy.bin", str(tmp_path)]
    process = subprocess.Popen([*command, sha(CONTENT), str(len(CONTENT))])
    part = tmp_path / ".toy.fetch" / "toy.bin.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    arrived = part.stat().st_size
    assert 0 < arrived < len(CONTENT) and not (tmp_path / "toy").exists()
    done = fetch("toy", tmp_path, settings=QUICK)
    assert server.asked == [None, f"bytes={arrived}-"]
    assert done.files[0].read_bytes() == CONTENT and everything(tmp_path) == ["toy/toy.bin"]


def test_optional_files_can_be_left_out(toy, server, tmp_path, monkeypatch):
    server.files["extra.bin"] = b"extra"
    extra = File("toy", "toy/extra.bin", sha(b"extra"), 5)
    more = Download(
        "extra.bin", (f"{server.url}/extra.bin",), (extra,), sha(b"extra"), 5, optional=True
    )
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (toy, more)))
    fetch("toy", tmp_path, extra=False, settings=QUICK)
    assert everything(tmp_path) == ["toy/toy.bin"] and len(verify("toy", tmp_path)) == 1
    fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == ["toy/extra.bin", "toy/toy.bin"]


def test_the_real_mnist_from_a_local_mirror(server, tmp_path):
    root = real_data()
    server.files = {path.name: path.read_bytes() for path in (root / "mnist").iterdir()}
    server.manners = ["dies midway", "dies midway", "lies about content"]
    done = fetch("mnist", tmp_path, mirror=server.url, settings=QUICK)
    assert len(done.files) == 4 and {check.state for check in verify("mnist", tmp_path)} == {"ok"}


def test_an_archive_stays_in_the_folder_of_its_set(server, tmp_path, monkeypatch):
    """Whatever else is in it must not replace another set's files, or lie about among them."""
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/labels").write_bytes(b"ours")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("toy/toy.bin", "toy/names.txt", "mnist/labels", "evil.sh"):
            entry = tarfile.TarInfo(name)
            entry.size = 5
            archive.addfile(entry, io.BytesIO(b"extra"))
    server.files["toy.tgz"] = content.getvalue()
    file = File("toy", "toy/toy.bin", sha(b"extra"), 5)
    item = Download("toy.tgz", (f"{server.url}/toy.tgz",), (file,), None, None, archive=True)
    monkeypatch.setitem(RELEASES, "toy", Release("toy", "A toy", "", "", (item,)))
    fetch("toy", tmp_path, settings=QUICK)
    assert everything(tmp_path) == ["mnist/labels", "toy/names.txt", "toy/toy.bin"]
    assert (tmp_path / "mnist/labels").read_bytes() == b"ours"


@pytest.mark.parametrize("manner", ["drips", "drips its head"])
def test_a_drip_is_given_up(toy, server, tmp_path, manner):
    server.manners = [manner] * 100
    impatient = Settings(timeout_s=0.3, pause_s=0.01, least_bytes=1000)
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"toy.bin could not be downloaded \(http://127"):
        fetch("toy", tmp_path, settings=impatient)
    assert time.monotonic() - begun < 20
    server.manners = []
    assert fetch("toy", tmp_path, settings=QUICK).files[0].read_bytes() == CONTENT


def test_a_slow_line_is_fast_enough(toy, server, tmp_path, monkeypatch):
    server.manners = ["drips"]
    monkeypatch.setattr(Handler, "_drip", _drip_some)
    fetch("toy", tmp_path, settings=Settings(timeout_s=0.3, pause_s=0.01, least_bytes=2))
    assert server.asked == [None, "bytes=100-"]


def _drip_some(handler, body):
    """A hundred bytes over more than the time limit, and then the end."""
    for byte in body[:100]:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.01)


@pytest.mark.parametrize(
    "place", ["http://[::1", "http://127.0.0.1:port/", "http://exa mple\x7f/", "http://[x]/"]
)
def test_a_redirect_to_what_is_no_address_is_told(toy, server, tmp_path, place):
    server.manners = [f"redirects to {place}"] * 9
    with pytest.raises(DataError, match=r"toy.bin could not be downloaded \(http://127"):
        fetch("toy", tmp_path, settings=QUICK)


def test_published_addresses_are_secure_first_and_contents_are_pinned():
    for release in RELEASES.values():
        for item in release.downloads:
            assert item.urls[0].startswith("https://")
            assert item.digest or item.archive
            assert all(":" in file.digest for file in item.files)
