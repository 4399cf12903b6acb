"""A server on this machine that behaves well, badly, or not at all, for the tests of fetching."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by name; `manners` change how; `asked` records the ranges asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.manners: list[str] = []
        self.asked: list[str | None] = []
        self.etag = '"one"'

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # clients that go away are part of the tests


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format, *args):
        pass

    def do_GET(self):
        server = self.server
        assert isinstance(server, Server)
        manner = server.manners.pop(0) if server.manners else "good"
        asked = self.headers.get("Range")
        server.asked.append(asked)
        content = server.files.get(self.path.lstrip("/"))
        if manner.isdigit():
            return self._answer(int(manner), b"no", {})
        if content is None:
            return self._answer(404, b"nothing here", {})
        if manner == "redirect to a file":
            return self._answer(302, b"", {"Location": "file:///etc/passwd"})
        if manner.startswith("redirects to "):
            return self._answer(302, b"", {"Location": manner.removeprefix("redirects to ")})
        if manner == "drips its head":
            return self._drip(b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 90)
        return self._serve(content, asked, manner)

    def _serve(self, content, asked, manner):
        start = int(asked[6:-1]) if asked and manner != "ignores ranges" else 0
        if start and self.headers.get("If-Range") not in (None, self.server.etag):
            start = 0
        if manner == "other bytes" or (manner == "lies about content" and start):
            content = bytes(len(content))
        total = len(content)
        if start >= total and start:
            return self._answer(416, b"", {"Content-Range": f"bytes */{total}"})
        body, headers = content[start:], {"ETag": self.server.etag}
        if start:
            said = 0 if manner == "lies about the start" else start
            headers["Content-Range"] = f"bytes {said}-{total - 1}/{total}"
        if manner == "too long":
            body += b"more"
        if manner == "claims another size":
            headers["Content-Length"] = str(total + 5)
        if manner == "dies midway":
            headers["Content-Length"] = str(len(body))
            body = body[: len(body) // 2]
        if manner == "drips":
            headers["Content-Length"] = str(len(body))
            self._answer(206 if start else 200, b"", headers)
            return self._drip(body)
        if manner == "hangs midway":
            headers["Content-Length"] = str(len(body))
            return self._hang(headers, body[: len(body) // 2])
        return self._answer(206 if start else 200, body, headers)

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def _drip(self, body):
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.05)

    def _hang(self, headers, body):
        self._answer(200, body, headers)
        self.wfile.flush()
        time.sleep(20)
