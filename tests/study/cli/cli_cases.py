"""The program as a user meets it: a process with arguments, output and an exit code."""

import json
import os
import subprocess
import sys
import time

import numpy as np

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
PROGRAM = [sys.executable, "-m", "cosnorm"]


def cosnorm(*arguments, **options):
    """Run the program to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        env={**ENVIRONMENT, **options.pop("env", {})},
        capture_output=True,
        text=True,
        timeout=200,
        **options,
    )


def started(*arguments, **options):
    """Start the program."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env={**ENVIRONMENT, **options.pop("env", {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(condition, seconds=60.0):
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def own_data(path, rows=400):
    """An .npz of the user's own, three classes of vectors."""
    generator = np.random.default_rng(0)
    y = np.arange(rows) % 3
    x = generator.random((rows, 12), dtype=np.float32)
    x += (np.arange(12) // 4 == y[:, None]) * np.float32(0.5)
    half = rows // 2
    np.savez(path, x_train=x[:half], y_train=y[:half], x_test=x[half:], y_test=y[half:])
    return path


def is_one_readable_line(text):
    lines = text.splitlines()
    return len(lines) == 1 and lines[0].startswith("cosnorm: ") and "Traceback" not in text


def assert_same_result(one, other):
    """The parameters byte for byte, and the metrics but for their times."""
    name = "model.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    metrics = []
    for folder in (one, other):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            del line["seconds"], line["examples_per_second"]
        metrics.append(lines)
    assert metrics[0] == metrics[1]
