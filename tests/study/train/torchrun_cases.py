"""Runs that several processes make together, and the same runs of one: `python -m` for torchrun.

One start of the processes serves all the runs: most of what they take is the start.
"""

import subprocess
import sys
from pathlib import Path

from experiment_cases import StopAfter, config_for, image_data, sparse_data, vector_data

# Neither the rows of an epoch nor those of a batch nor those of the test part are 2 or 4 times
# anything.
ROWS = {"rows": 61, "test": 31}
EXACT = {"precision": "fp64", "steps": 50, "batch_size": 11, "lr": 0.5}
CASES = {
    "cosine": (config_for("cosine", **EXACT), vector_data(**ROWS)),
    "pearson": (
        config_for("pearson", **{**EXACT, "network": "small_conv", "ema_decay": 0.9}),
        image_data(**ROWS),
    ),
    "weight": (
        config_for("weight", **{**EXACT, "optimizer": "momentum", "lr": 0.05, "affine": True}),
        vector_data(**ROWS),
    ),
    "layer": (
        config_for("layer", **{**EXACT, "network": "small_conv", "affine": True}),
        image_data(**ROWS),
    ),
    "sparse": (config_for("cosine", **EXACT), sparse_data(**ROWS)),
    "sync": (
        config_for("batch", **{**EXACT, "sync_batch_norm": True, "affine": True, "bias": True}),
        vector_data(**ROWS),
    ),
    "sync-conv": (
        config_for(
            "batch",
            **{**EXACT, "sync_batch_norm": True, "network": "small_conv"}
            | {"optimizer": "adam", "lr": 0.01, "ema_decay": 0.9},
        ),
        image_data(**ROWS),
    ),
    "batch": (config_for("batch", **EXACT), vector_data(**ROWS)),
}
EXACT_CASES = [name for name in CASES if name != "batch"]
SHARDED_CASES = ("cosine", "pearson", "sync-conv")


def command(processes, *arguments):
    """torchrun on this machine, meeting on loopback."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    return [sys.executable, *launcher, *map(str, ("--nproc-per-node", processes, *arguments))]


def made_by(processes, out, environment):
    """The folder under `out` in which so many processes have made all the cases."""
    folder = out / f"{processes}"
    ended = subprocess.run(
        command(processes, __file__, folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def main(out):
    from cosnorm.study.train.ranks import ranks_here
    from cosnorm.study.train.run import run

    def made(name, folder, ranks, stop=None):
        config, data = CASES[name]
        options = {"checkpoint_seconds": 1e6, "stop": stop, "ranks": ranks}  # no saves but at stops
        return run(config, Path(out) / folder, dataset=data, **options).status

    with ranks_here("cpu", 120) as ranks:
        for name in CASES:
            assert made(name, name, ranks) == "done"
        # One that is gone on with in parts, below.
        assert made("cosine", "sharded-cosine", ranks, StopAfter(20)) == "stopped"
    with ranks_here("cpu", 120, shard=True) as ranks:
        for name in SHARDED_CASES:
            if name != "cosine":
                assert made(name, f"sharded-{name}", ranks, StopAfter(20)) == "stopped"
            assert made(name, f"sharded-{name}", ranks) == "done"
        for steps in (12, 8):
            assert made("pearson", "halfway", ranks, StopAfter(steps)) == "stopped"


if __name__ == "__main__":
    main(sys.argv[1])
