"""What a launcher adds to a run: many tiny runs on a Ray cluster of this machine.

    PYTHONPATH=src python -m tools.launching --out results/cpu/launching.json

The first runs start the cluster and its processes; the others find them warm. The overhead is the
time per run, times the runs at once, less what training took in the process of the run.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosnorm.study import compare, configure
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.progress import Silence
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.ray_cluster import RayCluster


class Times(Silence):
    """When each run was over."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def end(self, status: str, summary: Any) -> None:
        self.ends.append(time.perf_counter())


def measured(launcher: type, runs: int, at_once: int) -> dict[str, float]:
    """Seconds a run, with and without the start, over all runs after the first few."""
    configs = [
        configure("digits", "cosine", seed, epochs=1, width=16, device="cpu")
        for seed in range(runs)
    ]
    times = Times()

    def watcher(job: Job) -> Times:
        return times

    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        compare(configs, launcher(watcher, keep_checkpoints=False), folder)
    whole = time.perf_counter() - begun
    warm = 2 * at_once  # every process has loaded what it needs
    per_run = (times.ends[-1] - times.ends[warm]) / (len(times.ends) - 1 - warm)
    return {"seconds": whole, "warm_seconds_per_run": per_run, "process_seconds": per_run * at_once}


def told(result: dict[str, Any]) -> str:
    """That in a sentence or two."""
    here, ray, facts = result["in_process"], result["ray"], result["environment"]
    start = ray["seconds"] - result["runs"] * ray["warm_seconds_per_run"]
    return (
        f"What the launcher adds to a run, over {result['runs']} tiny runs (`digits`, one epoch) "
        f"with {result['at_once']} warm processes on as many cores: "
        f"**{result['overhead_seconds_per_run']:.2f} s**, besides {here['process_seconds']:.2f} s "
        f"of training. All took {ray['seconds']:.0f} s, some {start:.0f} of them the start of the "
        f"cluster and its processes. ({facts['cpu']}, torch {facts['torch']}, commit "
        f"{facts['commit'][:7]}; `python -m tools.launching`.)"
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    runs = arguments.runs
    import torch

    torch.set_num_threads(1)  # as a run on the cluster has them
    at_once = os.cpu_count() or 1
    here = measured(InProcess, runs, 1)
    ray = measured(RayCluster, runs, at_once)
    result = {
        "runs": runs, "at_once": at_once, "in_process": here, "ray": ray,
        "overhead_seconds_per_run": ray["process_seconds"] - here["process_seconds"],
        "environment": environment("cpu"),
    }  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(told(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
