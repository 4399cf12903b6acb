"""`python -m cosnorm`, and the command `cosnorm`."""

import signal
import sys
from collections.abc import Callable


def main() -> None:
    """The program, from its first import to its exit code."""
    try:
        _run()
    except KeyboardInterrupt:  # before any handler of ours was there
        sys.exit(128 + signal.SIGINT)


def _run() -> None:
    """Hear signals before anything heavy is imported, and no more once the exit code is known.

    From then on the system ends the process, with the code of the signal.
    """
    from cosnorm.study.train.stopping import REASONS, Interrupted, interruptible

    try:
        with interruptible():
            _program()()
    except Interrupted as error:
        sys.stderr.write(f"cosnorm: {error}\n")
        sys.exit(error.code)
    finally:
        for number in REASONS:
            signal.signal(number, signal.SIG_DFL)


def _program() -> Callable[[], None]:
    from cosnorm.study.extensions import ExtensionError, load_extensions

    try:
        load_extensions()  # before flags are made of what there is to choose from
    except ExtensionError as error:
        sys.exit(f"cosnorm: {error}")
    try:
        from cosnorm.study.cli import main as program
    except ModuleNotFoundError as missing:
        if (missing.name or "cosnorm").startswith("cosnorm"):
            raise
        sys.exit(
            f"the commands need the package {missing.name!r}: "
            'install them with pip install "cosnorm[all]"'
        )
    return program


if __name__ == "__main__":
    main()
