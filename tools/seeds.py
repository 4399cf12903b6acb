"""What seeds cost that train as one: the time of several beside the time of a single run.

    PYTHONPATH=src python -m tools.seeds --data DIR --out results/h200/seeds.json

Each is a whole run as `cosnorm compare` makes it: data at hand, then network, capture, training,
evaluations, checkpoints and files. One and several take turns, and the ratio of each turn counts;
the first turn, in which libraries are loaded, does not.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosnorm.methods import METHODS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.presets import configure
from cosnorm.study.runs.storage import LocalStorage
from cosnorm.study.train.launchers import InProcess, Job


def seconds_of(launcher: InProcess, configs: Sequence[Config]) -> float:
    """The time of the runs, from the call to the last file."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(config, LocalStorage(Path(folder) / config.name)) for config in configs]
        begun = time.perf_counter()
        statuses = {outcome.status for _, outcome in launcher(jobs)}
        taken = time.perf_counter() - begun
    if statuses != {"done"}:
        raise SystemExit(f"a time is one of runs that are done; got {', '.join(statuses)}")
    return taken


def measured(config: Config, seeds: int, turns: int, launcher: InProcess) -> dict[str, Any]:
    """The times of one run and of `seeds` of them as one, in turn, and their ratios."""
    many = [replace(config, seed=seed) for seed in range(seeds)]
    pairs = [(seconds_of(launcher, [config]), seconds_of(launcher, many)) for _ in range(turns + 1)]
    one, several = zip(*pairs[1:], strict=True)
    ratios = [b / a for a, b in pairs[1:]]
    return {
        "method": config.method,
        "one_seconds": one,
        "several_seconds": several,
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }


def table(result: dict[str, Any]) -> str:
    """How many times as long several seeds take as one, a method in a row."""
    lines = [f"| method | {result['seeds']} seeds, times one |", "|---|---|"]
    lines += [f"| {row['method']} | {row['ratio']:.1f} |" for row in result["rows"]]
    facts = result["environment"]
    told = f"{result['dataset']}, {result['epochs']} epochs, {result['turns']} turns"
    place = facts.get("gpu") or facts["cpu"]
    return "\n".join([*lines, "", f"{told}; {place}, torch {facts['torch']}, {facts['commit']}."])


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="where the data sets lie")
    parser.add_argument("--out", type=Path, help="a file for the result, besides the output")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--width", type=int, help="units of hidden layers; default: the paper's")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    arguments = parsed(argv)
    launcher = InProcess(data_dir=arguments.data, batch_seeds="on")
    rows: list[dict[str, Any]] = []
    keys = ("dataset", "seeds", "epochs", "turns", "width", "precision")
    told = {key: getattr(arguments, key) for key in keys}
    told |= {"environment": environment(arguments.device), "rows": rows}
    for method in arguments.methods.split(","):
        settings: dict[str, Any] = {"epochs": arguments.epochs, "width": arguments.width}
        settings |= {"precision": arguments.precision, "sparse": False}
        config = configure(arguments.dataset, method, device=arguments.device, **settings)
        rows.append(measured(config, arguments.seeds, arguments.turns, launcher))
        print(f"{method}: {rows[-1]['ratio']:.2f} × one", file=sys.stderr, flush=True)
        if arguments.out:  # what is measured is there, whatever becomes of the rest
            arguments.out.write_text(f"{json.dumps(told, indent=2)}\n")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
