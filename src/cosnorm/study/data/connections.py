"""Connections to servers that are not trusted: HTTP only, and an answer begins in time."""

import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib import request


class _Headed:
    """A connection on which the head of an answer has to come within the time limit.

    The limit of a socket is for each piece; a server that sends a byte now and then keeps to it.
    """

    def getresponse(self) -> HTTPResponse:
        connection: Any = self
        clock = threading.Timer(connection.timeout, _close, [connection.sock])
        clock.daemon = True
        clock.start()
        try:
            return super().getresponse()  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            clock.cancel()


class _Connection(_Headed, HTTPConnection):
    pass


class _SecureConnection(_Headed, HTTPSConnection):
    pass


class _Handler(request.HTTPHandler):
    def http_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(request.HTTPSHandler):
    def https_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req)


def _close(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def opener() -> request.OpenerDirector:
    """HTTP and HTTPS only: a redirect to a local file or to FTP finds no handler."""
    director = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        _Handler,
        _SecureHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        director.add_handler(handler())
    return director
