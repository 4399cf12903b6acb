"""A whole 20NEWS training step with sparse rows against the same step with the dense matrix.

Rows, forward, loss, backward and update are timed, for every method, the two ways in turn, so that
whatever else the machine does falls on both. What counts is the ratio of neighbours in time.

    python -m cosnorm.study.bench.sparse --data-dir ~/data --out sparse.json
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from cosnorm.methods import METHODS
from cosnorm.study.bench.arguments import at_least, count, names_of
from cosnorm.study.data import Dataset, Split, load
from cosnorm.study.data.rows import sparse_csr
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.presets import configure
from cosnorm.study.train.learner import Learner

SPARSE = [name for name, method in METHODS.items() if method.sparse]


def synthetic(rows: int = 2000, features: int = 21_566, per_row: int = 124) -> Dataset:
    """Rows of the shape and the sparsity of 20NEWS, where the real ones are not at hand."""
    generator = torch.Generator().manual_seed(0)
    # Words are as rare as their rank: a batch then meets about as many as a batch of 20NEWS.
    weights = 1 / torch.arange(20.0, features + 20)
    columns = torch.multinomial(weights.expand(rows, -1), per_row, generator=generator)
    columns = columns.sort(1).values
    values = torch.rand(rows * per_row, generator=generator)
    crow = torch.arange(0, rows * per_row + 1, per_row)
    x = sparse_csr(crow, columns.reshape(-1), values, (rows, features))
    split = Split(x, torch.randint(20, (rows,), generator=generator))
    return Dataset("like 20news", split, split, tuple(map(str, range(20))), "sparse")


def _check(method: str, sparse: Learner, dense: Learner) -> None:
    """Raises where a step on sparse rows does not give the weights of one on dense rows."""
    pairs = zip(sparse.network.parameters(), dense.network.parameters(), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        error = ((ours - theirs).norm() / theirs.norm()).item()
        if not error <= 1e-4:
            raise AssertionError(f"{method}: after a step, tensor {number} differs by {error:.1e}")


def measured(dataset: Dataset, method: str, repeats: int) -> dict[str, Any]:
    """Milliseconds of a step, sparse and dense, and the quantiles of dense over sparse."""
    learners = {}
    for name, sparse in (("sparse", True), ("dense", False)):
        learner = Learner(configure("20news", method, epochs=1, sparse=sparse), dataset)
        learner.batches.begin(0)
        learner.step()
        learners[name] = learner
    _check(method, *learners.values())
    times: dict[str, list[float]] = {"sparse": [], "dense": []}
    for repeat in range(repeats):
        for name, learner in learners.items():
            if repeat % learner.batches.per_epoch == 0:
                learner.batches.begin(0)
            begun = time.perf_counter()
            learner.step()
            times[name].append(1000 * (time.perf_counter() - begun))
    ratios = [d / s for s, d in zip(times["sparse"], times["dense"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "method": method,
        "sparse_ms": statistics.median(times["sparse"]),
        "dense_ms": statistics.median(times["dense"]),
        "ratio": {"25%": low, "50%": middle, "75%": high},
        "repeats": repeats,
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="cosnorm bench sparse", description=__doc__)
    parser.add_argument("--methods", type=names_of(SPARSE), default=list(SPARSE))
    parser.add_argument("--repeats", type=at_least(2), default=20)
    parser.add_argument("--data-dir", help="where 20NEWS lies")
    parser.add_argument("--synthetic", action="store_true", help="rows like those of 20NEWS")
    parser.add_argument("--threads", type=count, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    dataset = synthetic() if options.synthetic else load("20news", options.data_dir)
    results = []
    print(f"{'method':10}{'sparse ms':>10}{'dense ms':>10}{'ratio':>8}   quartiles")
    for method in options.methods:
        row = measured(dataset, method, options.repeats)
        low, middle, high = row["ratio"].values()
        print(
            f"{method:10}{row['sparse_ms']:10.1f}{row['dense_ms']:10.1f}{middle:8.1f}   "
            f"{low:.1f} … {high:.1f}",
            flush=True,
        )
        results.append(row)
    if options.out:
        told = {"data": dataset.name, "results": results, "environment": environment("cpu")}
        options.out.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
