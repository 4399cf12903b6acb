"""What the AWS environment variables say of an object store, checked before its client reads them.

Of what it can make no request, the client makes a panic, which no `except Exception` sees. Loads no
torch.
"""

import os
import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from cosnorm.study.runs.errors import ConfigError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_WORDS = {  # what they may be: a region is a part of the address, a credential of a header
    **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), r"[A-Za-z0-9_-]*"),
    **dict.fromkeys(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), r"[^\x00-\x1f\x7f]*"
    ),
}
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:\d+)?(/[\w./~%+-]*)?", re.I | re.A)


def endpoint() -> str:
    """The address of the store that the environment names; nothing for that of Amazon."""
    name = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if name is None:
        return ""
    if not _is_address(os.environ[name]):
        raise ConfigError(
            f"{name} must be http://HOST:PORT or https://HOST; got {os.environ[name]!r}: "
            "set it to the whole address of the store"
        )
    return os.environ[name]


def check_words() -> None:
    """Refuse credentials and regions of which no request can be made; their values stay hidden."""
    for name, pattern in _WORDS.items():
        if not re.fullmatch(pattern, os.environ.get(name, "")):
            raise ConfigError(
                f"{name} must be one word; got one with a line break or another character that it "
                "cannot have: set it again without"
            )


def _is_address(told: str) -> bool:
    if not _ADDRESS.fullmatch(told):
        return False
    try:
        parts = urlsplit(told)
        host = parts.hostname or ""
        if ":" in host or host.rpartition(".")[2].isdigit():  # which no name ends in
            ip_address(host)
        return parts.port != 0  # one beyond 65535 is an error
    except ValueError:
        return False
