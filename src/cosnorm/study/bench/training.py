"""The rate of a whole run against that of its bare step: what loop, records and epochs cost.

Two sets of random images, of the sizes of MNIST and CIFAR-10, with the paper's networks and
presets; on CUDA the step is one graph. Rates are those that a run writes into its metrics,
evaluation not counted, between two measurements of the step alone.

    cosnorm bench training --device cuda
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch

from cosnorm.methods import METHODS
from cosnorm.study.bench.arguments import add_device, count, names_of
from cosnorm.study.bench.timing import provenance, write
from cosnorm.study.bench.verify import verify
from cosnorm.study.data import Dataset, Split
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.presets import configure
from cosnorm.study.runs.progress import Silence
from cosnorm.study.train.learner import Learner, captured
from cosnorm.study.train.run import run

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


class _Rates(Silence):
    """A watcher that notes examples a second."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def evaluation(self, evaluation: Any) -> None:
        self.noted.append(evaluation["examples_per_second"])


def images(name: str, rows: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (rows, *SHAPES[name]), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (rows,), generator=generator)
    test = Split(x[: rows // 10], y[: rows // 10])
    return Dataset(f"like {name}", Split(x, y), test, tuple(map(str, range(10))), "image")


def bare(config: Config, dataset: Dataset, steps: int) -> float:
    """Examples a second of the step by itself."""
    learner = Learner(config, dataset)
    learner.batches.begin(0)
    advance = captured(learner) if learner.capturable else learner.step
    advance()
    learner.wait()
    begun = time.perf_counter()
    for step in range(steps):
        if step % learner.batches.per_epoch == 0:
            learner.batches.place.zero_()
        advance()
    learner.wait()
    return steps * learner.batches.size / (time.perf_counter() - begun)


def whole(config: Config, dataset: Dataset) -> float:
    """Examples a second of a run, by its own account."""
    rates = _Rates()
    with tempfile.TemporaryDirectory() as folder:
        run(config, folder, dataset=dataset, watcher=rates)
    return statistics.median(rates.noted)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("cosnorm bench training", description="A run against its step")
    add_device(parser)
    parser.add_argument("--sets", type=names_of(SHAPES), default=list(SHAPES), help="mnist,cifar10")
    parser.add_argument("--methods", type=names_of(METHODS), default=["pearson", "batch"])
    parser.add_argument("--rows", type=count, help="60000 on cuda, 2000 on cpu")
    parser.add_argument("--steps", type=count, help="1000 on cuda, 20 on cpu")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--out", help="write JSON here")
    options = parser.parse_args(argv)
    cuda = options.device == "cuda"
    rows = options.rows or (60_000 if cuda else 2000)
    steps = options.steps or (1000 if cuda else 20)
    checked = (torch.float32, torch.bfloat16) if cuda else (torch.float32,)
    verify(torch.device(options.device), checked)
    results = {}
    for name in options.sets:
        dataset = images(name, rows)
        for method in options.methods:
            smaller: dict[str, Any] = {}
            if name == "cifar10" and not cuda:
                smaller["network"] = "small_conv"
            config = configure(name, method, steps=steps, device=options.device, **smaller)
            ratios, before = [], bare(config, dataset, steps)
            for _ in range(options.rounds):
                here, after = whole(config, dataset), bare(config, dataset, steps)
                ratios.append(2 * here / (before + after))
                before = after
            row = {"ratio": statistics.median(ratios), "ratios": ratios, "bare": before}
            results[f"{name} {method}"] = row
            spread = f"{min(ratios):.3f}–{max(ratios):.3f}"
            print(f"{name:10}{method:10}{row['ratio']:8.3f}{spread:>16}{before:12.0f} images/s")
    report = {"benchmark": "training", "arguments": argv, "results": results}
    write(options.out, {**report, "provenance": provenance(torch.device(options.device))})
    return 0
