import errno
import os
import shutil
import subprocess
import sys

import pytest

from cosnorm.study.runs.errors import StorageError
from cosnorm.study.runs.local import LocalStorage


def files_of(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_write_read_names_delete(tmp_path):
    storage = LocalStorage(tmp_path / "new" / "folder")
    assert storage.read("a.json") is None
    assert storage.names("deep/") == []
    storage.write("deep/b", b"2")
    storage.write("deep/a", b"1")
    storage.write("deep/a", b"one")
    assert storage.names("deep/") == ["deep/a", "deep/b"]
    assert storage.names("deep/b") == ["deep/b"]
    assert storage.read("deep/a") == b"one"
    storage.delete("deep/a")
    storage.delete("deep/a")
    assert files_of(tmp_path) == ["new/folder/deep/b"]


def test_append(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.append("lines", b"one\n")
    storage.append("lines", b"two\n")
    assert storage.read("lines") == b"one\ntwo\n"


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("way", ["moved", "deleted", "unlocked"])
def test_a_claimed_folder_that_is_gone_is_not_made_again(tmp_path, way, made_again):
    storage = LocalStorage(tmp_path / "run")
    told = "was moved or deleted while it was written to: bring it back"
    with storage.claim():
        storage.append("lines", b"one\n")
        if way == "moved":
            storage.root.rename(tmp_path / "elsewhere")
        elif way == "deleted":
            shutil.rmtree(storage.root)
        else:
            (storage.root / ".lock").unlink()
        if made_again:
            storage.root.mkdir(exist_ok=True)
            (storage.root / ".lock").touch()
        before = files_of(tmp_path)
        with pytest.raises(StorageError, match=told):
            storage.write("deep/state", b"half")
        with pytest.raises(StorageError, match=told):
            storage.append("lines", b"two\n")
        assert files_of(tmp_path) == before
    storage.write("deep/state", b"whole")


@pytest.fixture
def full_disk(monkeypatch):
    """Every byte that must reach the disk finds no room there."""

    def no_room(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)


def test_a_full_disk_costs_nothing_that_was_there(tmp_path, request):
    storage = LocalStorage(tmp_path)
    storage.write("state", b"before")
    storage.append("lines", b"one\n")
    request.getfixturevalue("full_disk")
    with pytest.raises(StorageError, match=r"cannot write .*state: No space left .* free some"):
        storage.write("state", b"after")
    with pytest.raises(StorageError, match=r"cannot write .*lines: No space left"):
        storage.append("lines", b"two\n")
    assert storage.read("state") == b"before"
    assert storage.read("lines") == b"one\n"
    assert files_of(tmp_path) == ["lines", "state"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    storage = LocalStorage(tmp_path / "file" / "run")
    assert storage.read("config.json") is None
    with pytest.raises(StorageError, match=r"cannot write .*: Not a directory; .*another folder"):
        storage.write("config.json", b"")
    with pytest.raises(StorageError, match=r"cannot write to .*Not a dir"), storage.claim():
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied; choose a folder that you may"):
        LocalStorage(tmp_path / "run").write("a", b"")


def test_one_process_at_a_time(tmp_path):
    hold = (
        "import sys; from cosnorm.study.runs.local import LocalStorage\n"
        "with LocalStorage(sys.argv[1]).claim():\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None and holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(StorageError, match="in use by another process"),
            LocalStorage(tmp_path).claim(),
        ):
            pass
        holder.kill()
    with LocalStorage(tmp_path).claim():
        pass


def test_what_a_killed_process_left_aside_goes(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("checkpoints/a", b"1")
    (tmp_path / "checkpoints" / ".part-b").write_bytes(b"half")
    assert storage.names("checkpoints/") == ["checkpoints/a"]
    with storage.claim():
        assert files_of(tmp_path) == [".lock", "checkpoints/a"]


def test_what_a_claim_has_made_goes_where_nothing_came_of_it(tmp_path):
    storage = LocalStorage(tmp_path / "new")
    with pytest.raises(ValueError), storage.claim():
        raise ValueError
    assert not storage.root.exists()
    with storage.claim():
        storage.write("a", b"1")
    assert sorted(path.name for path in storage.root.iterdir()) == [".lock", "a"]
    storage.delete("a")
    with storage.claim():
        pass
    assert [path.name for path in storage.root.iterdir()] == [".lock"]  # it was there before


def test_a_claim_that_is_refused_takes_nothing_from_who_holds_it(tmp_path):
    storage = LocalStorage(tmp_path / "new")
    with storage.claim():
        with pytest.raises(StorageError, match="in use by another process"), storage.claim():
            pass
        assert (storage.root / ".lock").exists()
    assert not storage.root.exists()


def test_a_folder_in_the_place_of_a_file_is_told_with_what_to_do(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"Is a directory; a folder stands where a file belongs"):
        LocalStorage(tmp_path).read("metrics.jsonl")
