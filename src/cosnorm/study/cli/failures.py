"""From errors to exit codes: one readable line on stderr, and no traceback.

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | wrong usage |
| 3 | diverged (`train`) |
| 75 | stopped by `--max-minutes`; run again to go on |
| 130, 143 | interrupted by SIGINT, SIGTERM; run again to go on |
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from cosnorm.study.cli.showing import shown

FAILED, USAGE, DIVERGED = 1, 2, 3
STOPPED = {"max_minutes": 75, "SIGINT": 130, "SIGTERM": 143}


def readable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Run a command so that whatever goes wrong in it ends in a line and a code."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except BrokenPipeError:
            # The reader of our output has gone, as `head` does; there is nobody left to tell.
            _close_output()
            raise typer.Exit(FAILED) from None
        except Exception as error:
            if os.environ.get("COSNORM_TRACEBACK"):
                raise
            raise fail(_told(error), _code(error)) from None

    return guarded


@contextmanager
def resumable(out: str) -> Iterator[None]:
    """Where the reader of the output goes while a run is under way, say what becomes of the run."""
    try:
        yield
    except BrokenPipeError:
        _close_output()
        raise fail(
            f"nobody reads the output any more, so the run stops; it is kept in {out}: "
            "give the same command again to go on",
            FAILED,
        ) from None


def _close_output() -> None:
    """What is still to be written must not fail a second time when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def fail(message: str, code: int) -> typer.Exit:
    """Say on stderr what is wrong; the exception to leave with."""
    typer.echo(f"cosnorm: {shown(message)}", err=True)
    return typer.Exit(code)


def said(error: Exception) -> int:
    """Say on stderr what has gone wrong; the exit code for it."""
    return fail(_told(error), _code(error)).exit_code


def _code(error: Exception) -> int:
    from cosnorm.study.runs.errors import ConfigError

    return USAGE if isinstance(error, ConfigError) else FAILED


def _told(error: Exception) -> str:
    """An error in one line; one that is not ours gets its kind before it."""
    from cosnorm.study.data.errors import DataError
    from cosnorm.study.runs.errors import ConfigError, RunError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:3]) or "no message"
    if isinstance(error, ConfigError | DataError | RunError | ValueError):
        return text
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; {_how_to_install(error.name or '')}"
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return f"out of memory: use a smaller batch size or network ({text[:200]})"
    if isinstance(error, RuntimeError) and "allocate memory" in text:  # as torch says it of a CPU
        return f"out of memory: use a smaller batch size or network ({text[:200]})"
    if isinstance(error, RecursionError):
        return f"something given is nested too deeply ({text})"
    return f"{type(error).__name__}: {text} (set COSNORM_TRACEBACK=1 to see where)"


# The extra that brings a module; those of the command line itself are there by now.
_EXTRAS = {
    "data": ("scipy", "sklearn", "PIL"),
    "report": ("matplotlib",),
    "train": ("safetensors",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "s3": ("obstore",),
    "hub": ("huggingface_hub",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "ray": ("ray",),
}


def _how_to_install(module: str) -> str:
    top = module.partition(".")[0]
    extra = next((name for name, modules in _EXTRAS.items() if top in modules), None)
    if extra is None:
        return (
            "it is no part of what cosnorm needs: install it as the code that imports it asks "
            "(set COSNORM_TRACEBACK=1 to see where)"
        )
    return f"install it with: pip install 'cosnorm[{extra}]'"
