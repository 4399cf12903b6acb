"""Text of others on a terminal: names of folders, words of servers."""

import logging
import sys

# What stands for a sign of ours on a terminal that cannot show it.
_PLAIN = str.maketrans({"±": "+-", "—": "-", "−": "-"})
# A control character could colour, clear or name the terminal, or answer in the user's stead.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def shown(text: object) -> str:
    """Text as a line of standard output can show it: no control characters, no sign it lacks.

    >>> shown("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    line = str(text).translate(_CONTROL | _TURNING)
    line = line.encode("utf-8", "backslashreplace").decode()  # of a path that is not text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        return line.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return line


class ShownHandler(logging.Handler):
    """Messages of the library as lines of ours, on the standard error of the moment.

    While a display moves that is the display's, which puts them above itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        print(f"cosnorm: warning: {shown(record.getMessage())}", file=sys.stderr, flush=True)
