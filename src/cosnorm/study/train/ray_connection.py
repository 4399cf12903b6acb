"""The way to a Ray cluster: one that is there, or one of this machine alone."""

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cosnorm.study.runs.errors import ConfigError, RunError
from cosnorm.study.train.stopping import REASONS

_REACH_S = 5.0
_STORE = 128 << 20  # bytes of shared memory: what goes through it is small
# What a gRPC server, as Ray's is, answers with a frame of kind 4: the greeting of HTTP/2.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster; one that is started here ends here.

    address: as `RayCluster` takes it. A connection that the program has is used as it is.
    """
    ray = loaded(alone=address is None)
    if ray.is_initialized():
        yield ray
        return
    if address is not None:
        _check_reachable(address)
    local = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE}
    chosen = local if address is None else {"address": address}
    try:
        with _handlers_kept():
            ray.init(**chosen, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        told = " ".join(str(error).split())
        where = "no Ray cluster can be started here" if address is None else f"no Ray at {address}"
        raise RunError(f"{where}: {told}") from error
    with _quiet(ray):
        try:
            yield ray
        finally:
            ray.shutdown()


def loaded(alone: bool) -> Any:
    """The module, told before it is loaded to report to nobody and, alone, to stay on loopback."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if alone:
        if not _has_token():  # in the environment of its processes: nothing is left at home
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Where clusters of several machines are off, as Ray has it on a Mac, it takes 127.0.0.1.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if _has_token():  # `ray start` asks for it where there is one; to be known before Ray is loaded
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise RunError(
            f"--launcher ray needs ray, which cannot be imported ({error}); "
            "install it with: pip install 'cosnorm[ray]'"
        ) from error
    return ray


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or Path("~/.ray/auth_token").expanduser().exists()


def _check_reachable(address: str) -> None:
    """Say in seconds what Ray would say after minutes, or never."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(f"a Ray address is HOST:PORT or auto; got {address}: use HOST:6379")
    try:
        with socket.create_connection((host, int(port)), _REACH_S) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise RunError(
            f"no Ray cluster answers at {address} ({error}): start one there with "
            "`ray start --head`, or leave --ray-address out for one on this machine"
        ) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise RunError(
            f"what answers at {address} is no Ray cluster: give the port of `ray start --head`, "
            "which is 6379 unless told otherwise"
        )


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray, told to log nothing, from printing in between what befalls its nodes.

    Watchers tell of it. There is no public switch; Ray's own debugger uses this one.
    """
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray._private.worker._worker_logs_enabled = True


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts; the program had a use for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in REASONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
