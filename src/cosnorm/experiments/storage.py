"""Where run folders live, behind one small interface.

A run needs six things of its storage, and nothing of file systems beyond them. `write` must be all
or nothing as seen by a later reader; nothing else may be assumed, neither an atomic rename nor a
lock, so that object stores can serve too. Whatever must be trusted after a crash (a checkpoint)
carries its own checksum.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from cosnorm.experiments.errors import StorageError

_ASIDE = ".part-"
_LOCK = ".lock"


class Storage(Protocol):
    """Named byte strings under one root; names use `/`."""

    label: str

    def read(self, name: str) -> bytes | None:
        """The content of `name`; None where there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put `content` under `name`, replacing what was there: all of it or none of it."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Add `content` at the end of `name`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove `name`; no error where there is none."""
        ...

    def claim(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here, as far as the storage can."""
        ...


class LocalStorage:
    """A folder on a file system with atomic renames."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.label = str(root)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(_told("read", self.root / name, error)) from error

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        aside = path.with_name(f"{_ASIDE}{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            _sync_folder(path.parent)
        except OSError as error:
            _forget(aside)
            raise StorageError(_told("write", path, error)) from error

    def append(self, name: str, content: bytes) -> None:
        path = self.root / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise StorageError(_told("write", path, error)) from error
        try:
            before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, before)
                raise StorageError(_told("write", path, error)) from error
        finally:
            os.close(descriptor)

    def names(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(_told("read", self.root / folder, error)) from error
        stem = f"{folder}/" if folder else ""
        return sorted(stem + n for n in found if n.startswith(start) and not n.startswith("."))

    def delete(self, name: str) -> None:
        try:
            (self.root / name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(_told("delete", self.root / name, error)) from error

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the folder's lock file; the system lets go of it when the process ends, however.

        Where nothing comes to be beside it, folder and file go again, if they were made here.
        """
        path = self.root / _LOCK
        made = [each for each in (path, self.root) if not each.exists()]
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StorageError(_told("write to", self.root, error)) from error
        try:
            _lock(descriptor, self.root)
            with _taken_back(made):
                for leftover in self.root.rglob(f"{_ASIDE}*"):
                    _forget(leftover)
                yield
        finally:
            os.close(descriptor)


class Nowhere:
    """Keeps nothing: what all ranks but the first write to."""

    label = "nowhere"

    def read(self, name: str) -> bytes | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        pass

    def append(self, name: str, content: bytes) -> None:
        pass

    def names(self, prefix: str) -> list[str]:
        return []

    def delete(self, name: str) -> None:
        pass

    def claim(self) -> AbstractContextManager[None]:
        return nullcontext()


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (root / _LOCK).exists():  # taken back by the process that had it
            raise BlockingIOError
    except BlockingIOError:
        raise StorageError(
            f"{root} is in use by another process: wait for it to end, or choose another folder"
        ) from None
    except OSError:
        # A file system without locks: the user answers for running one process at a time.
        return


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


@contextmanager
def _taken_back(made: list[Path]) -> Iterator[None]:
    """Remove the lock file and the folder that were made, if all that is there then is the file."""
    try:
        yield
    finally:
        with suppress(OSError):
            if made and os.listdir(made[0].parent) == [made[0].name]:
                for path in made:
                    path.rmdir() if path.is_dir() else path.unlink()


_ADVICE = {
    errno.ENOSPC: "free some space and run the same command again; nothing saved before is lost",
    errno.EDQUOT: "free some space and run the same command again; nothing saved before is lost",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOENT: "choose a folder that can be made",
    errno.ENOTDIR: "a part of the path is a file; choose another folder",
    errno.EEXIST: "a file of that name is in the way; choose another folder",
}


def _told(verb: str, path: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"cannot {verb} {path}: {reason}" + (f"; {advice}" if advice else "")
