"""Where a run was made: machine, versions, commit. Part of every record."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cosnorm._version import __version__


def environment(device: str) -> dict[str, Any]:
    """What a reader needs to judge or repeat a measurement, as plain values."""
    import torch

    told: dict[str, Any] = {
        "cosnorm": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "triton": _version("triton"),
        "platform": platform.platform(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if device == "cuda":
        told["gpu"] = torch.cuda.get_device_name()
        told["cuda"] = torch.version.cuda
        told["cudnn"] = torch.backends.cudnn.version()
    return told


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the source, when it is a checkout of it and not a package installed in one.

    Where git does not know the source, as in an image or a copy on another machine, whoever made
    the copy says it in COSNORM_COMMIT. Nothing is written to a checkout, as `git describe --dirty`
    would: a git that a signal ends while it holds the lock of the index leaves it behind, and no
    commit can be made any more.
    """
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return os.environ.get("COSNORM_COMMIT") or None
    found = _git(here.parent, "rev-parse", "--short=12", "HEAD")
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{found}-dirty" if found and changed else found


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
