"""What the published sets consist of, what of it is here, and whether it is whole.

The facts are in `releases`; nothing in this module needs torch, numpy or the network.
"""

from dataclasses import dataclass
from hashlib import new as new_hash
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from cosnorm.study.data.errors import DataError
from cosnorm.study.data.paths import data_root
from cosnorm.study.data.releases import RELEASES, File, Release
from cosnorm.study.names import DATASETS

State = Literal["embedded", "whole", "incomplete", "other layout", "absent", "added"]


@dataclass(frozen=True)
class Listing:
    """One line of the list of data sets.

    `state`: whole (every file there, of the right size; `verify` looks inside), incomplete (some
    missing or of another size), other layout (readable, but not as `fetch` lays it out), absent,
    embedded (comes with scikit-learn), or added (by an extension, which knows where it is).
    """

    name: str
    title: str
    state: State
    folder: Path | None
    bytes_here: int
    bytes_to_fetch: int | None
    terms: str
    homepage: str


@dataclass(frozen=True)
class FileCheck:
    """What `verify` found about one file, e.g. state "damaged", detail "sha256 is …, not …"."""

    path: Path
    state: Literal["ok", "damaged", "missing"]
    detail: str


def release(name: str) -> Release:
    """The facts about a published set."""
    if name not in RELEASES:
        raise DataError(f"{name}: not a set that is fetched; these are: {', '.join(RELEASES)}")
    return RELEASES[name]


def listing(data_dir: str | Path | None = None) -> list[Listing]:
    """Every data set that has a name, and how much of it is in the data folder."""
    root = data_root(data_dir)
    added = [entry for name, entry in DATASETS.items() if name not in ("digits", *RELEASES)]
    return [
        _digits(),
        *(_listed(entry, root) for entry in RELEASES.values()),
        *(_elsewhere(entry.name, entry.title, "added", "its extension's", "") for entry in added),
    ]


def _digits() -> Listing:
    state = "embedded" if find_spec("sklearn") else "absent"
    terms = "comes with scikit-learn: pip install 'cosnorm[data]'"
    return _elsewhere(
        "digits", "Handwritten digits, 8 × 8", state, terms, "https://scikit-learn.org"
    )


def _elsewhere(name: str, title: str, state: State, terms: str, homepage: str) -> Listing:
    """A set that is not in the data folder, and not fetched into it."""
    return Listing(
        name,
        title,
        state,
        folder=None,
        bytes_here=0,
        bytes_to_fetch=None,
        terms=terms,
        homepage=homepage,
    )


def _listed(entry: Release, root: Path) -> Listing:
    files = [
        file for download in entry.downloads if not download.optional for file in download.files
    ]
    optional = [
        file for download in entry.downloads if download.optional for file in download.files
    ]
    there = [file for file in (*files, *optional) if (root / file.path).is_file()]
    right = [file for file in files if _size_is_right(root / file.path, file)]
    state: State = "absent"
    if len(right) == len(files):
        state = "whole"
    elif there:
        state = "incomplete"
    elif any((root / path).exists() for path in entry.other_layouts):
        state = "other layout"
    sizes = [download.size for download in entry.downloads]
    return Listing(
        entry.name,
        entry.title,
        state,
        folder=None if state == "absent" else root,
        bytes_here=sum((root / file.path).stat().st_size for file in there),
        bytes_to_fetch=None if None in sizes else sum(size or 0 for size in sizes),
        terms=entry.terms,
        homepage=entry.homepage,
    )


def _size_is_right(path: Path, file: File) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def verify(name: str, data_dir: str | Path | None = None) -> list[FileCheck]:
    """Check every file of a published set in the data folder against its recorded sum.

    An optional file (SVHN's extra) that is not there is passed over. Sets that are
    not fetched have no files.
    """
    if name in DATASETS and name not in RELEASES:
        return []
    root = data_root(data_dir)
    return [
        check_file(root, file)
        for download in release(name).downloads
        for file in download.files
        if not (download.optional and not (root / file.path).exists())
    ]


def check_file(root: Path, file: File) -> FileCheck:
    """Compare one file under `root` with what is recorded of it: size, then sum."""
    path = root / file.path
    try:
        if not path.is_file():
            return FileCheck(path, "missing", f"fetch it with `cosnorm data fetch {file.dataset}`")
        if file.size not in (None, path.stat().st_size):
            detail = f"{path.stat().st_size:,} bytes, not {file.size:,}"
            return FileCheck(path, "damaged", detail)
        return _check_content(path, file)
    except OSError as error:
        return FileCheck(path, "damaged", f"cannot be read ({error})")


def _check_content(path: Path, file: File) -> FileCheck:
    what, _, recorded = file.digest.partition(":")
    found = documents_digest(path) if what == "documents" else file_digest(path, what)
    if found != recorded:
        return FileCheck(path, "damaged", f"{what} {found}, not {recorded}")
    return FileCheck(path, "ok", f"{what} {found}")


def documents_digest(path: Path) -> str:
    """The digest of the documents in lines `document word count`, whatever their order.

    It is the SHA-256 of the sorted SHA-256 of each document's label and words; the labels are those
    in the file of the same name that ends in .label, a document a line.
    """
    labels = path.with_suffix(".label").read_bytes().split()
    documents: dict[bytes, list[bytes]] = {}
    with path.open("rb") as lines:
        for line in lines:
            document, _, entry = line.strip().partition(b" ")
            documents.setdefault(document, []).append(entry)
    told = [
        sha256(b"\n".join([_label(labels, document), *sorted(entries)])).digest()
        for document, entries in documents.items()
    ]
    return sha256(b"".join(sorted(told))).hexdigest()


def _label(labels: list[bytes], document: bytes) -> bytes:
    is_known = document.isdigit() and len(document) < 10 and 0 < int(document) <= len(labels)
    return labels[int(document) - 1] if is_known else b"none"


def file_digest(path: Path, algorithm: str) -> str:
    """The hexadecimal digest of a file, read in blocks."""
    digest = new_hash(algorithm, usedforsecurity=False)
    with path.open("rb") as content:
        for block in iter(lambda: content.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
