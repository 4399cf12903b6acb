"""A loopback store that speaks as much of S3 as run folders need, and fails on request.

Objects are put, got, listed and deleted by path (BUCKET/KEY), large ones in parts; puts heed
If-None-Match and If-Match; whoever has not the key ACCESS is refused.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

ACCESS, BUCKET = "loopback", "runs"


@dataclass(frozen=True)
class Request:
    """What is asked, with how many bytes: `condition` is "create", an ETag, or None."""

    method: str
    key: str
    condition: str | None
    query: dict[str, str]
    size: int


@dataclass
class Fault:
    """What goes wrong with a request.

    status: answer so, and do nothing.
    lost: "before", "middle" or "after": close the connection when the head is read, when half of
        the body is, or when all is done and only the answer lacks.
    wait: for this, before anything else.
    """

    status: int | None = None
    lost: str | None = None
    wait: threading.Event | None = None


@dataclass
class ObjectServer:
    """objects: content, ETag and time by key; kinds: their media types.

    log: every request and what was answered, 0 for nothing.

    fault: asked for each request that is not refused, may name what goes wrong with it.
    page: how many keys a listing tells at once. heeds: whether conditions of puts are heeded.
    """

    objects: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    log: list[tuple[Request, int]] = field(default_factory=list)
    fault: Callable[[Request], Fault | None] = lambda request: None
    page: int = 1000
    heeds: bool = True
    kinds: dict[str, str | None] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> "ObjectServer":
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a program finds the store."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def put(self, key: str, content: bytes, condition: str | None = None) -> int:
        with self.lock:
            there = self.objects.get(key)
            if self.heeds and condition == "create" and there is not None:
                return 412
            if self.heeds and condition not in ("create", None):
                if there is None:
                    return 404
                if there[1] != condition:
                    return 412
            etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
            self.objects[key] = content, etag, time.time()
            return 200

    def keys_with(self, part: str) -> list[str]:
        with self.lock:
            return sorted(key for key in self.objects if part in key)

    def seen(self, method: str, part: str = "") -> list[int]:
        """The answers to requests of a method whose key has a part."""
        return [
            status for request, status in list(self.log)
            if request.method == method and part in request.key
        ]  # fmt: skip


def _handler_of(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        store = server

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second would wait for the first's receipt
    store: ObjectServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        try:
            self._answered()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _answered(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        condition = "create" if "If-None-Match" in self.headers else self.headers.get("If-Match")
        length = int(self.headers.get("Content-Length", 0))
        request = Request(self.command, key, condition, query, length)
        fault = self.store.fault(request) or Fault()
        if fault.wait is not None:
            fault.wait.wait()
        if fault.lost in ("before", "middle"):
            self.rfile.read(length // 2 if fault.lost == "middle" else 0)
            self._lost(request)
            return
        body = self.rfile.read(length)
        refusal = self._refusal(bucket)
        if refusal is not None or fault.status is not None:
            status, code = refusal or (fault.status or 0, "InjectedFault")
            self._send(request, status, _error(code))
            return
        answer = self._done(request, body)
        if fault.lost == "after":
            self._lost(request)
        else:
            self._send(request, *answer)

    def _refusal(self, bucket: str) -> tuple[int, str] | None:
        if f"Credential={ACCESS}/" not in self.headers.get("Authorization", ""):
            return 403, "InvalidAccessKeyId"
        return (404, "NoSuchBucket") if bucket != BUCKET else None

    def _lost(self, request: Request) -> None:
        self.store.log.append((request, 0))
        self.close_connection = True
        self.connection.close()

    def _done(self, request: Request, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        store, key = self.store, request.key
        if request.method == "PUT" and "uploadId" in request.query:
            store.parts[request.query["uploadId"]][int(request.query["partNumber"])] = body
            return 200, b"", {"ETag": f'"{len(body)}"'}
        if request.method == "PUT":
            status = store.put(key, body, request.condition)
            store.kinds[key] = self.headers.get("Content-Type")
            tag = {"ETag": store.objects[key][1]} if status == 200 else {}
            return status, b"" if status == 200 else _error("PreconditionFailed"), tag
        if request.method == "POST" and "delete" in request.query:
            with store.lock:
                doomed = re.findall("<Key>.*?</Key>", body.decode())
                for each in doomed:
                    store.objects.pop(unescape(each[5:-6]), None)
            told = "".join(f"<Deleted>{each}</Deleted>" for each in doomed)
            return 200, f"<DeleteResult>{told}</DeleteResult>".encode(), {}
        if request.method == "POST":
            return self._parts(request)
        if request.method == "DELETE":
            with store.lock:
                store.objects.pop(key, None)
            return 204, b"", {}
        if key == "" and request.query.get("list-type") == "2":
            return 200, self._listing(request.query), {}
        with store.lock:
            there = store.objects.get(key)
        if there is None:
            return 404, _error("NoSuchKey"), {}
        content, etag, when = there
        return 200, content, {"ETag": etag, "Last-Modified": formatdate(when, usegmt=True)}

    def _parts(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        if "uploads" in request.query:
            name = str(len(self.store.parts))
            self.store.parts[name] = {}
            told = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
            return 200, f"{told}</InitiateMultipartUploadResult>".encode(), {}
        parts = self.store.parts[request.query["uploadId"]]
        self.store.put(request.key, b"".join(parts[number] for number in sorted(parts)))
        told = "<CompleteMultipartUploadResult><ETag>&quot;parts-2&quot;</ETag>"
        return 200, f"{told}</CompleteMultipartUploadResult>".encode(), {}

    def _listing(self, query: dict[str, str]) -> bytes:
        after = query.get("continuation-token", query.get("start-after", ""))
        keys = [
            k
            for k in self.store.keys_with("")
            if k.startswith(query.get("prefix", "")) and k > after
        ]
        shown = keys[: self.store.page]
        more = len(keys) > len(shown)
        last = shown[-1] if shown else ""
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        entries = "".join(map(self._entry, shown))
        told = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token if more else ''}{entries}"
        return f"<ListBucketResult>{told}</ListBucketResult>".encode()

    def _entry(self, key: str) -> str:
        content, etag, when = self.store.objects[key]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when))
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>"
            f"<ETag>{escape(etag)}</ETag><Size>{len(content)}</Size></Contents>"
        )

    def _send(
        self, request: Request, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.store.log.append((request, status))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as asked for</Message></Error>".encode()
