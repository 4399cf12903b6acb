"""A download over HTTP that goes on where it stopped, and is checked before it gets its name.

What has arrived lies in `NAME.part`, with what identifies the server's copy in `NAME.part.json`.
A later attempt asks for the rest only. Whatever the server says about ranges, the whole must have
the recorded sum: if a continued file has not, it is fetched once more from the start. A server that
sends next to nothing counts as one that sends nothing.
"""

import errno
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError

from cosnorm._version import __version__
from cosnorm.study.data.catalogue import file_digest
from cosnorm.study.data.connections import opener
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.releases import Download

BLOCK = 1 << 18
MOST_BYTES = 1 << 28  # where the release does not say how many
PATIENCE = 4  # attempts in a row that bring nothing new
MOST_MISMATCHES = 2
TIMEOUT_S = 30.0

Progress = Callable[[str, int, int | None], None]


@dataclass
class Settings:
    """What a test or a slow line may want otherwise.

    In any `timeout_s` at least `least_bytes` must come, the head of an answer in one.
    """

    timeout_s: float = TIMEOUT_S
    pause_s: float = 1.0
    least_bytes: int = 1 << 15


class _TooSlow(ConnectionError):
    """Bytes come, but so few that the file would never be whole."""


class _Mismatch(Exception):
    """What arrived is not the file: start again."""


def download(
    wanted: Download,
    urls: tuple[str, ...],
    target: Path,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> int:
    """Bring `wanted` to `target`, whole and with the right sum; the bytes that were transferred.

    On failure `target` does not exist, and what has arrived stays beside it for the next time.
    """
    settings = settings or Settings()
    part, attempts = _Part(target), _Attempts(urls)
    while (url := attempts.next_url()) is not None:
        before = part.size()
        try:
            _continue(wanted, url, part, progress, settings)
            _check(wanted, part)
        except _Mismatch as error:
            attempts.mismatched(url, error)
            part.discard()
        except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
            gained = part.size() > before and not isinstance(error, _TooSlow)
            attempts.failed(url, error, gained)
            time.sleep(settings.pause_s * attempts.idle)
        except OSError as error:
            raise _not_written(target, error) from error
        else:
            os.replace(part.path, target)
            part.discard()
            return part.received
    raise DataError(f"{target.name} could not be downloaded ({attempts.account()}")


class _Attempts:
    """Which address to try next, and when to give up."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = list(urls)
        self._mismatches = 0
        self._problem = "no address is known"
        self.idle = 0

    def next_url(self) -> str | None:
        if not self._urls or self.idle >= PATIENCE or self._mismatches >= MOST_MISMATCHES:
            return None
        return self._urls[(self.idle + self._mismatches) % len(self._urls)]

    def mismatched(self, url: str, error: _Mismatch) -> None:
        self._mismatches += 1
        self._problem = f"{url}: {error}"

    def failed(self, url: str, error: Exception, gained: bool) -> None:
        self._problem = f"{url}: {_reason(error)}"
        if _final(error):
            self._urls.remove(url)
        else:
            self.idle = 0 if gained else self.idle + 1

    def account(self) -> str:
        remedy = "check the connection and run the same command again, it goes on where it stopped"
        if not self._urls or self._mismatches >= MOST_MISMATCHES:
            remedy = "the release's file is not there; name a mirror, or fetch it by hand"
        return f"{self._problem}); {remedy}"


class _Part:
    """The file under its temporary name, and what identifies the server's copy of it."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(target.name + ".part")
        self._note = target.with_name(target.name + ".part.json")
        self.received = 0

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self, url: str) -> str | None:
        """The ETag or date under which the first bytes came from `url`, if it is known."""
        try:
            note = json.loads(self._note.read_text())
            return note["validator"] if note["url"] == url else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def start(self, url: str, validator: str | None) -> None:
        self._note.write_text(json.dumps({"url": url, "validator": validator}))
        self.path.write_bytes(b"")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _continue(
    wanted: Download, url: str, part: _Part, progress: Progress | None, settings: Settings
) -> None:
    start = part.size()
    validator = part.validator(url)
    if not wanted.digest and validator is None:
        start = 0  # nothing would show that the two ends do not belong together
    if start and start == wanted.size:
        return
    response = _open(url, start, validator, settings.timeout_s)
    if response is None:
        return
    with response:
        start, total = _agreed(response, start, wanted)
        if start == 0:
            part.start(url, _validator(response))
        pace = _Pace(settings)
        _receive(
            response, part, start, total, lambda done: _tell(progress, wanted, done, total), pace
        )


def _open(url: str, start: int, validator: str | None, timeout_s: float) -> HTTPResponse | None:
    """The answer, or None if the server says that its file ends just where the part here does."""
    headers = {"User-Agent": f"cosnorm/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator
    try:
        return opener().open(request.Request(url, headers=headers), timeout=timeout_s)
    except HTTPError as error:
        with error:
            if start and error.code == 416:
                if error.headers.get("Content-Range") == f"bytes */{start}":
                    return None
                raise _Mismatch(
                    "it has no such range, the part here is longer than its file"
                ) from error
        raise
    except (ValueError, LookupError) as error:  # an address to go to that is none
        raise URLError(f"its answer cannot be understood ({error})") from error


def _agreed(response: HTTPResponse, start: int, wanted: Download) -> tuple[int, int | None]:
    """Where the bytes that come now belong, and how long the whole is."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise _Mismatch(
                f"asked for bytes from {start:,}, it sent {found[0] if found else 'others'}"
            )
        total = int(found[3])
    else:
        start = 0
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
    if None not in (total, wanted.size) and total != wanted.size:
        raise _Mismatch(f"it has {total:,} bytes, the release {wanted.size:,}")
    return start, total if total is not None else wanted.size


def _validator(response: HTTPResponse) -> str | None:
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


class _Pace:
    """Whether enough bytes come."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._mark, self._bytes = settings, time.monotonic(), 0

    def count(self, size: int) -> None:
        self._bytes += size
        seconds = time.monotonic() - self._mark
        if seconds < self._settings.timeout_s:
            return
        if self._bytes < self._settings.least_bytes:
            raise _TooSlow(f"it sent {self._bytes:,} bytes in {seconds:.0f} s")
        self._mark, self._bytes = time.monotonic(), 0


def _receive(
    response: HTTPResponse,
    part: _Part,
    start: int,
    total: int | None,
    tell: Callable[[int], None],
    pace: _Pace,
) -> None:
    done = start
    with part.path.open("ab") as file:
        while block := _read(response):
            done += len(block)
            if done > (total if total is not None else MOST_BYTES):
                raise _Mismatch(f"it sent more than {total or MOST_BYTES:,} bytes")
            file.write(block)
            part.received += len(block)
            tell(done)
            if done != total:
                pace.count(len(block))
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _tell(progress: Progress | None, wanted: Download, done: int, total: int | None) -> None:
    if progress is not None:
        progress(wanted.filename, done, total)


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read1(BLOCK)  # what is there; read would wait for all of it
    except OSError as error:  # the network's, not the disk's
        raise ConnectionError(_reason(error)) from error


def _check(wanted: Download, part: _Part) -> None:
    if not wanted.digest:
        return
    algorithm, _, recorded = wanted.digest.partition(":")
    found = file_digest(part.path, algorithm)
    if found != recorded:
        raise _Mismatch(f"checksum differs: {algorithm} is {found}, not {recorded}")


def _final(error: BaseException) -> bool:
    """Whether asking the same address again is pointless, as after 404 Not Found."""
    return isinstance(error, HTTPError) and 400 <= error.code < 500 and error.code not in (408, 429)


def _reason(error: Any) -> str:
    if isinstance(error, HTTPError):
        return f"the server answered {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def _not_written(target: Path, error: OSError) -> DataError:
    if error.errno == errno.ENOSPC:
        return DataError(
            f"{target}: the disk is full; free some space and run the same command again, it goes "
            "on where it stopped"
        )
    return DataError(f"{target}: cannot be written ({error}); check the folder and its permissions")
