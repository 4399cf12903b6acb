"""`fetch`: download, check, unpack aside, check again, and only then move to the final names."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cosnorm.study.data.archives import unpack
from cosnorm.study.data.catalogue import check_file, release
from cosnorm.study.data.download import Progress, Settings, download
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.paths import data_root
from cosnorm.study.data.releases import Download


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did: the files of the set, and the bytes transferred (0: all was there)."""

    name: str
    root: Path
    files: tuple[Path, ...]
    bytes_received: int


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirror: str | None = None,
    extra: bool = True,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> Fetched:
    """Bring a published set into the data folder; what is there and whole is left alone.

    Interrupted, it goes on where it stopped when called again. Files get their final names only
    when they are complete and their sums are right; until then everything lies in a folder
    `.NAME.fetch` of the data folder.

    Args:
        mirror: an address under which the publisher's files lie by the same names, to be asked
            instead of the publisher; the sums stay those of the publisher.
        extra: SVHN: also the 1.3 GB of extra images.
        progress: called with the file's name, the bytes done and the bytes in all, if known.

    Example: `fetch("mnist", "~/data").files`.
    """
    root = data_root(data_dir)
    chosen = [item for item in release(name).downloads if extra or not item.optional]
    received = 0
    try:
        with _partial(root, name) as partial:
            for item in chosen:
                if not _whole(root, item):
                    urls = _mirrored(mirror, item) if mirror else item.urls
                    received += download(item, urls, partial / item.filename, progress, settings)
                    _install(item, partial, root)
    except OSError as error:
        raise DataError(
            f"{root}: cannot be written ({error}); check the folder and the disk"
        ) from error
    files = tuple(root / file.path for item in chosen for file in item.files)
    return Fetched(name, root, files, received)


def _whole(root: Path, item: Download) -> bool:
    return all(check_file(root, file).state == "ok" for file in item.files)


def _mirrored(mirror: str, item: Download) -> tuple[str, ...]:
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise DataError(f"a mirror is an http:// or https:// address, received {mirror!r}")
    return (f"{mirror.rstrip('/')}/{item.filename}",)


@contextmanager
def _partial(root: Path, name: str) -> Iterator[Path]:
    """A folder beside the final places, on the same disk, for one process at a time.

    It goes when the fetch succeeds; otherwise only what a later fetch can go on with stays.
    """
    folder = root / f".{name}.fetch"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        _lock(lock.fileno(), folder)
        for leftover in folder.glob("unpacked-*"):
            shutil.rmtree(leftover)
        try:
            yield folder
        except BaseException:
            if any(folder.glob("*.part")):
                raise
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two fetches at once are the user's to avoid
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataError(
            f"{folder}: another fetch of the same set is under way; wait until it ends"
        ) from error


def _install(item: Download, partial: Path, root: Path) -> None:
    """Check the downloaded file, or what it unpacks to, and move it to its final place."""
    source = partial / item.filename
    aside = Path(tempfile.mkdtemp(prefix="unpacked-", dir=partial))
    try:
        if item.archive:
            unpack(source, aside)
        else:
            place = aside / item.files[0].path
            place.parent.mkdir(parents=True)
            os.replace(source, place)
        for file in item.files:
            check = check_file(aside, file)
            if check.state != "ok":
                raise DataError(
                    f"{item.filename}: {file.path} in it is {check.state} ({check.detail}); "
                    "it is not the publisher's release, try a mirror"
                )
        for folder in {Path(file.path).parts[0] for file in item.files}:
            (root / folder).mkdir(parents=True, exist_ok=True)
            _merge(aside / folder, root / folder)  # no other: an archive may hold more than its set
    finally:
        source.unlink(missing_ok=True)
        with suppress(OSError):
            shutil.rmtree(aside)


def _merge(source: Path, target: Path) -> None:
    """Move what is in `source` into `target`: a new folder as a whole, a known file replaced."""
    for item in sorted(source.iterdir()):
        place = target / item.name
        if item.is_dir() and place.is_dir():
            _merge(item, place)
        else:
            os.replace(item, place)
