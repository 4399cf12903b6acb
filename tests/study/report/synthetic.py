"""Run folders as the trainer writes them, made from a formula: any state, any damage."""

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux-6.1-x86_64",
    "device": "cpu",
    "threads": 2,
    "commit": "0123abcd",
    "versions": {"numpy": "2.4.0", "cosnorm": "0.1.0"},
}
LEVELS = {"pearson": 1.39, "cosine": 1.43, "batch": 1.52, "weight": 1.68, "layer": 1.56}


def config_of(method: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    config = {
        "dataset": "mnist",
        "method": method,
        "network": "mlp",
        "epochs": 200,
        "steps": None,
        "batch_size": 100,
        "lr": 10.0 if method in ("pearson", "cosine") else 1.0,
        "optimizer": "sgd",
        "seed": seed,
        "init_std": 0.1,
        "scale": "learned",
        "precision": "fp32",
        "device": "cpu",
    }
    return {**config, **changes}


def curve_of(config: dict[str, Any], level: float, noise: float, every: int) -> list[dict]:
    """Errors that fall from 90 towards `level` and then fluctuate by `noise`."""
    draw = random.Random(f"{config['method']}{config['seed']}{config['init_std']}")
    unit = "epoch" if config["epochs"] else "step"
    length = config["epochs"] or config["steps"]
    own = level * (1 + draw.gauss(0, 0.008))
    lines = []
    for i, at in enumerate(range(every, length + 1, every), start=1):
        fall = 6 * level * math.exp(-14 * at / length) + 60 * math.exp(-90 * at / length)
        error = own + fall + abs(draw.gauss(0, noise)) * (3 if draw.random() < 0.03 else 1)
        epoch, step = (at, at * 600) if unit == "epoch" else (at / 390, at)
        lines.append(
            {
                "epoch": epoch,
                "step": step,
                "train_loss": 2.3 * math.exp(-20 * at / length) + 1e-4,
                "test_error": error,
                "seconds": 1.5 * i,
                "examples_per_second": 40_000.0,
            }
        )
    return lines


def watched(line: dict[str, Any], config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The evaluation with a training error, and layers whose weights grow."""
    norms = [(1 + number) * math.sqrt(1 + line["step"] / 6000) for number in range(layers)]
    figures = {
        str(number): {
            "weight_norm": norm,
            "effective_lr": config["lr"] / norm**2,
            "scale": 1 + 9 * line["step"] / 120_000 if number == layers else None,
        }
        for number, norm in enumerate(norms, start=1)
    }
    return {**line, "train_error": line["test_error"] / 9, "layers": figures}


def write_run(
    folder: Path,
    config: dict[str, Any],
    *,
    level: float | None = None,
    noise: float = 0.01,
    every: int = 1,
    state: str = "finished",
    upto: int | None = None,
    environment: dict[str, Any] | None = None,
    layers: int = 0,
) -> Path:
    """One run folder; `state` is finished, diverged or running, `upto` the evaluations kept.

    `layers`: as many as a watched run tells of.
    """
    level = LEVELS.get(config["method"], 2.2) if level is None else level
    lines = curve_of(config, level, noise, every)[:upto]
    if layers:
        lines = [watched(line, config, layers) for line in lines]
    if state == "diverged":
        lines[-1] |= {"test_error": None, "train_loss": None}
    folder.mkdir(parents=True)
    environment = ENVIRONMENT if environment is None else environment
    _write(folder / "config.json", config)
    _write(folder / "environment.json", environment)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if state != "running":
        _write(folder / "summary.json", summary_of(config, lines, environment, state))
    return folder


def summary_of(config: dict[str, Any], lines: list[dict], environment: dict, state: str) -> dict:
    unit = "epoch" if config["epochs"] else "step"
    whole = 50 if unit == "epoch" else 10_000
    length = config["epochs"] or config["steps"]
    count = min(whole, math.ceil(length / 4))
    known = state == "finished"
    errors = [line["test_error"] for line in lines if line[unit] > length - count]
    return {
        "test_error_mean": statistics.fmean(errors) if known else None,
        "test_error_variance": statistics.pvariance(errors) if known else None,
        "final_test_error": lines[-1]["test_error"] if known else None,
        "diverged": state == "diverged",
        "window": {"unit": unit, "count": count},
        "steps": lines[-1]["step"],
        "seconds": lines[-1]["seconds"],
        "data": {"test": 10_000},
        "config": config,
        "environment": environment,
    }


def write_comparison(
    folder: Path, dataset: str = "mnist", seeds: int = 3, scale: float = 1.0, **changes: Any
) -> Path:
    """The paper's five methods, `seeds` runs each, as `cosnorm compare` lays them out."""
    every, layers = changes.pop("every", 1), changes.pop("layers", 0)
    for method, level in LEVELS.items():
        for seed in range(seeds):
            write_run(
                folder / f"{method}-seed{seed}",
                config_of(method, seed, dataset=dataset, **changes),
                level=scale * level,
                noise=scale * (0.06 if method == "batch" else 0.008),
                every=every,
                layers=layers,
            )
    return folder


def write_errors(folder: Path, config: dict[str, Any], errors: list[float]) -> Path:
    """One finished run with exactly these errors, one an epoch."""
    write_run(folder, {**config, "epochs": len(errors)})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, error in zip(lines, errors, strict=True):
        line["test_error"] = error
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = summary_of({**config, "epochs": len(errors)}, lines, ENVIRONMENT, "finished")
    _write(folder / "summary.json", summary)
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
