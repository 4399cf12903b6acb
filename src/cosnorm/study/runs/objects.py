"""A bucket of an object store, asked again where that helps. Loads no torch.

Requests are repeated after what passes (a busy store, a lost connection, no answer in time), with
growing pauses. A put with a condition is never simply repeated: where its answer is lost or tells
of a conflict, what is there decides whether it was stored, can be tried again, or came too late.
"""

import hashlib
import mimetypes
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from cosnorm.study.runs.endpoint import check_words, endpoint
from cosnorm.study.runs.errors import RunError, StorageError

PATIENCE_S = 60.0  # of a request, before it counts as failed
_FIRST_TRIES = 4  # where the store has never answered: a wrong address shows at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_ANSWER_S, _TRANSFER_S = 10.0, 120.0  # for requests of a few bytes, and of many
_PART = 64 << 20  # bytes; what is larger goes in parts
_PASSING = (408, 409, 412, 429, 500, 502, 503, 504)

T = TypeVar("T")


class Object(NamedTuple):
    """What lies under a key; `age` in seconds is by the store's clock and ours."""

    content: bytes
    etag: str
    age: float


class Superseded(Exception):
    """A conditional put that came too late: what is `there` is of another."""

    def __init__(self, there: Object | None) -> None:
        self.there = there
        super().__init__("the object is no longer what the put was to replace")


class _Altered(Exception):
    """The store holds something else than it was given."""


class Bucket:
    """Objects by key, with the credentials and the endpoint of the AWS environment variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._small = _client(name, _ANSWER_S, tries=0)
        self._large = _client(name, _TRANSFER_S, tries=3)  # of each part of an upload
        self._is_known = False

    def get(self, key: str) -> Object | None:
        """What lies under a key; None where there is nothing."""
        return self._asked("read", key, lambda: _got(self._large, key))

    def look(self, key: str) -> Object | None:
        """`get`, of something small: no answer for a while is none."""
        return self._asked("read", key, lambda: _got(self._small, key))

    def size(self, key: str) -> int | None:
        import obstore

        def ask() -> int | None:
            try:
                return obstore.head(self._small, key)["size"]
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

        return self._asked("read", key, ask)

    def put(self, key: str, content: bytes) -> None:
        """Store under a key, whatever was there; what the store then holds is compared."""
        import obstore

        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        kind, _ = mimetypes.guess_type(key)  # without which a browser shows no page
        options: Any = {"chunk_size": _PART, "attributes": {"Content-Type": kind} if kind else None}

        def ask() -> None:
            tag = obstore.put(self._large, key, content, **options)["e_tag"]
            if (tag or "").strip('"') == digest:  # the store's own digest of what it holds
                return
            there = _got(self._large, key)
            if there is None or there.content != content:
                raise _Altered

        self._asked("write", key, ask)

    def put_if(self, key: str, content: bytes, etag: str | None, patience: float) -> str:
        """Store under a key that still has this ETag, or nothing (None); the new ETag.

        The content must be one that nobody else would put and nobody put before. Raises
        `Superseded` where another was first.
        """
        import obstore

        mode: Any = "create" if etag is None else {"e_tag": etag}

        def ask() -> str:
            failure: Exception | None = None
            try:
                tag = obstore.put(self._small, key, content, mode=mode, use_multipart=False)
                if tag["e_tag"]:
                    return tag["e_tag"]
            except (*_errors(), FileNotFoundError) as error:
                _check_bucket(failure := error)
                if not _may_pass(error) and _status(error) != 404:
                    raise
            there = _got(self._small, key)
            if there is not None and there.content == content:
                return there.etag
            if (None if there is None else there.etag) != etag:
                raise Superseded(there)
            raise failure or _Altered()

        return self._asked("write", key, ask, patience)

    def check_conditions(self, key: str, content: bytes) -> None:
        """Refuse a store that does not heed conditions, by a put over `content` that must fail."""
        import obstore

        def ask() -> bool:
            try:
                obstore.put(self._small, key, content, mode="create", use_multipart=False)
            except _errors() as error:
                if _status(error) in (409, 412):
                    return True
                if _status(error) != 501:
                    raise
            return False

        if not self._asked("write", key, ask):
            raise StorageError(
                f"{self._place(key)}: the store does not heed conditional puts (If-None-Match), "
                "so two processes could make one run: use a store that does, or a folder"
            )

    def keys(self, prefix: str) -> dict[str, int]:
        """All keys under `prefix`/ (of the whole bucket for ""), with their sizes."""
        import obstore

        def ask() -> dict[str, int]:
            found = obstore.list(self._small, prefix or None, chunk_size=1000)
            return {each["path"]: each["size"] for chunk in found for each in chunk}

        return self._asked("list", prefix, ask)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; no error where there are none."""
        import obstore

        if doomed := list(keys):
            self._asked("delete", doomed[0], lambda: obstore.delete(self._small, doomed))

    def _asked(self, verb: str, key: str, ask: Callable[[], T], patience: float | None = None) -> T:
        end = time.monotonic() + (PATIENCE_S if patience is None else patience)
        for tries, pause in enumerate(_pauses(), 1):
            try:
                answer = ask()
            except (*_errors(), _Altered, FileNotFoundError) as error:
                self._is_known |= _status(error) is not None
                is_over = time.monotonic() + pause > end
                if not self._is_known and tries >= _FIRST_TRIES:
                    is_over = True
                if is_over or not _may_pass(error):
                    told = _told(error, self.name)
                    raise StorageError(f"cannot {verb} {self._place(key)}: {told}") from error
            else:
                self._is_known = True
                return answer
            time.sleep(pause)
        raise AssertionError

    def _place(self, key: str) -> str:
        return f"s3://{self.name}/{key}".rstrip("/")


def _client(bucket: str, seconds: float, tries: int) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise RunError(
            f"s3://{bucket} needs obstore, which cannot be imported ({error}); install it with: "
            "pip install 'cosnorm[s3]'"
        ) from error
    limits = {"timeout": timedelta(seconds=seconds), "connect_timeout": timedelta(seconds=5)}
    retries: Any = {
        "max_retries": tries,
        "retry_timeout": timedelta(seconds=seconds),
        "backoff": {"init_backoff": timedelta(seconds=_FIRST_PAUSE_S)},
    }
    check_words()
    # An address without TLS is used where the user has named it.
    options: Any = {**limits, "allow_http": endpoint().lower().startswith("http://")}
    return S3Store(bucket, client_options=options, retry_config=retries)


def _got(client: Any, key: str) -> Object | None:
    import obstore

    try:
        found = obstore.get(client, key)
        content, meta = bytes(found.bytes()), found.meta
    except FileNotFoundError as error:
        _check_bucket(error)
        return None
    age = (datetime.now(UTC) - meta["last_modified"]).total_seconds()
    return Object(content, meta["e_tag"] or "", age)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_S
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return (BaseError,)


def _check_bucket(error: Exception) -> None:
    """A key that is not there is no error, but for the bucket that is not."""
    if _code(error) == "NoSuchBucket":
        raise error


def _status(error: Exception) -> int | None:
    """The HTTP status that an error tells of; None where no answer came."""
    found = re.search(r"status code: (\d+)", str(error))
    return None if found is None else int(found[1])


def _code(error: Exception) -> str:
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return "" if found is None else found[1]


def _is_without_credentials(error: Exception) -> bool:
    """Whether the instance's own credentials were looked for, in vain."""
    return "169.254.169.254" in str(error).split("\n")[0]


def _may_pass(error: Exception) -> bool:
    if _is_without_credentials(error) or "builder error" in str(error):
        return False
    status = _status(error)
    return _code(error) != "NoSuchBucket" and (status is None or status in _PASSING)


def _told(error: Exception, bucket: str) -> str:
    """What went wrong, and what to do."""
    status, code = _status(error), _code(error)
    answer = f"the store answers {status}" + (f" ({code})" if code else "")
    if isinstance(error, _Altered):
        return "the store holds something else than it was given; try again, or another store"
    if _is_without_credentials(error):
        return "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket}: make it, or give another"
    if status in (401, 403):
        return (
            f"{answer}: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), "
            "and what they may do in this bucket"
        )
    if status is None:
        where = endpoint() or "the store"
        return f"no answer from {where}: check AWS_ENDPOINT_URL and the network, then try again"
    if status in _PASSING:
        return f"{answer}, again and again: give the same command later; nothing saved is lost"
    return f"{answer}: check AWS_ENDPOINT_URL and AWS_REGION"
