"""Systems without POSIX (Windows) can import everything that their packages allow."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import cosnorm

# What CPython has on POSIX alone, and no package of ours may want before it is used.
POSIX = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")

CODE = f"""
import importlib, importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {POSIX}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import torch, numpy, scipy, sklearn, PIL, matplotlib.figure, typer, rich.progress, safetensors
# Their own use of POSIX is not what is asked:
import huggingface_hub.hub_mixin, unittest.mock, torch._dynamo
for name in {POSIX}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""

# Windows has neither os.sysconf nor /proc nor /sys.
READ = """
import os, sys
from pathlib import Path

del os.sysconf
opened = Path.read_text
def read_text(path, *args, **kwargs):
    if path.parts[1:2] in (("proc",), ("sys",)):
        raise FileNotFoundError(path)
    return opened(path, *args, **kwargs)
Path.read_text = read_text
from cosnorm.study.data import load
from cosnorm.study.data.memory import memory_here

assert memory_here() is None
assert len(load(sys.argv[1]).train) == 16
"""


def modules():
    """Every module of the package, but what needs a GPU's compiler and what runs when imported."""
    root = Path(cosnorm.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if "triton" not in parts and parts[-1] != "__main__":
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_everything_imports_without_the_modules_of_posix():
    called = [sys.executable, "-c", CODE, *modules()]
    ended = subprocess.run(called, capture_output=True, text=True, timeout=250)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_arrays_are_read_where_the_system_does_not_say_how_much_memory_is_free(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x_train=np.zeros((20, 3)), y_train=np.arange(20) % 2)
    called = [sys.executable, "-c", READ, path]
    ended = subprocess.run(called, capture_output=True, text=True, timeout=250)
    assert (ended.returncode, ended.stderr) == (0, "")
