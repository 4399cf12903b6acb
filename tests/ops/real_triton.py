"""Triton's own compiler and launcher, where the tests around have its interpreter."""

import os
import subprocess
import sys


def output_of(program):
    """The words that a Python program prints, in a process without the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
