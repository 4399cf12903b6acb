"""Run folders on a file system."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cosnorm.study.runs.errors import InUseError, StorageError

_ASIDE = ".part-"
_LOCK = ".lock"


class LocalStorage:
    """A folder on a file system with atomic renames."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.label = str(self.root)
        self._claimed: int | None = None  # the lock file, open while the folder is claimed

    @property
    def key(self) -> str:
        return os.path.realpath(self.root)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(_told("read", self.root / name, error)) from error

    def size(self, name: str) -> int | None:
        try:
            return (self.root / name).stat().st_size
        except OSError:  # `read` says what is wrong
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        aside = path.with_name(f"{_ASIDE}{path.name}")
        self._check_claim()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise StorageError(_told("write", path, error)) from error
        finally:  # after an interruption, too
            _forget(aside)

    def append(self, name: str, content: bytes) -> None:
        path = self.root / name
        self._check_claim()
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
            self._claimed = descriptor
            with _taken_back(made):
                for leftover in self.root.rglob(f"{_ASIDE}*"):
                    _forget(leftover)
                yield
        finally:
            self._claimed = None
            os.close(descriptor)

    def _check_claim(self) -> None:
        """Refuse to write where a claimed folder is no longer.

        A write would make the folder anew, without what it held: half a run that looks whole.
        """
        if self._claimed is None:
            return
        try:
            is_there = os.path.samestat(os.fstat(self._claimed), os.stat(self.root / _LOCK))
        except OSError:
            is_there = False
        if not is_there:
            raise StorageError(
                f"{self.root} was moved or deleted while it was written to: bring it back and give "
                "the same command again to go on, or choose another folder"
            )

    def at(self, name: str) -> "LocalStorage":
        return LocalStorage(self.root / name)

    def folders(self) -> Iterator[tuple[str, list[str]]]:
        if not self.root.is_dir():
            raise StorageError(
                f"{self.root} is not a folder: give run folders, or a folder of them"
            )
        for folder, children, files in os.walk(self.root):
            children.sort()
            path = Path(folder).relative_to(self.root)
            yield "" if path == Path() else path.as_posix(), sorted(files)


def _lock(descriptor: int, root: Path) -> None:
    try:
        import fcntl
    except ImportError:
        # A system without these locks: the user answers for running one process at a time.
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (root / _LOCK).exists():  # taken back by the process that had it
            raise BlockingIOError
    except BlockingIOError:
        raise InUseError(
            f"{root} is in use by another process: wait for it to end, or choose another folder"
        ) from None
    except OSError:
        # A file system without locks: the user answers for running one process at a time.
        return


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows, which opens no folders
        return
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
    errno.EISDIR: "a folder stands where a file belongs: move it away, or choose another folder",
    errno.EEXIST: "a file of that name is in the way; choose another folder",
}


def _told(verb: str, path: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"cannot {verb} {path}: {reason}" + (f"; {advice}" if advice else "")
