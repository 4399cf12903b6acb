"""What a user has to choose, measured by small runs: the numbers of the page Which one.

    PYTHONPATH=src python -m tools.choices --data DIR --out results/cpu/choices.json

MNIST, five epochs, layers of 256 units, three seeds: small enough for a CPU, with 10,000 test rows.
Runs that are in the file are not made again. A row is one run; it has the settings in which it
differs from the preset of its method.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.reproduction import table

FILE = Path(__file__).resolve().parent.parent / "results" / "cpu" / "choices.json"
COMMON = {"epochs": 5, "width": 256}
SEEDS = 3
METHODS = ("pearson", "cosine", "batch", "layer", "weight", "none")
RATES = {
    "sgd": (0.01, 0.1, 1.0, 10.0, 100.0),
    "momentum": (0.01, 0.1, 1.0, 10.0),
    "adam": (1e-4, 1e-3, 1e-2, 1e-1),
}
# About the deviation of first weights by torch's own initialisation: 0.021 for rows of 784, 0.036
# for those of 256.
TORCHS = 0.03
TORCHS_RATES = {"sgd": (0.01, 0.1, 1.0, 10.0), "momentum": (0.001, 0.01, 0.1, 1.0)}
STARTS = (3.0, 10.0, 30.0)  # beside 1, the preset's
SCALED = (("sgd", 10.0), ("adam", 1e-3))

Settings = dict[str, Any]


def plan() -> Iterator[Settings]:
    """Every setting that is measured, each once: a method and what differs from its preset."""
    found = [{"method": method} for method in METHODS]
    found += [{"method": method, "bias": True} for method in ("pearson", "cosine")]
    for optimizer, rates in RATES.items():
        chosen = [{"optimizer": optimizer, "lr": rate} for rate in rates]
        found += [{"method": method, **each} for method in ("pearson", "batch") for each in chosen]
    for optimizer, rates in TORCHS_RATES.items():
        chosen = [{"optimizer": optimizer, "lr": rate, "init_std": TORCHS} for rate in rates]
        found += [{"method": method, **each} for method in ("pearson", "batch") for each in chosen]
        found += [{"method": "pearson", **each, "scale_start": 10.0} for each in chosen]
    for optimizer, rate in SCALED:
        found += [
            {"method": "pearson", "optimizer": optimizer, "lr": rate, "scale_start": start}
            for start in STARTS
        ]
    yield from found


def rows_of(**settings: Any) -> list[dict[str, Any]]:
    """The runs in the file with exactly these settings, one a seed."""
    rows = json.loads(FILE.read_text())["rows"]
    return [row for row in rows if row["settings"] == settings]


def error(**settings: Any) -> str:
    """`1.85 ± 0.04`, over seeds; or what became of the runs."""
    rows = rows_of(**settings)
    if len(rows) < SEEDS:
        return "not made yet"
    lost = [row["status"] for row in rows if row["status"] != "done"]
    if lost:
        return f"{lost[0]} ({len(lost)} of {SEEDS})"
    found = [row["test_error_mean"] for row in rows]
    return f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"


def methods() -> str:
    from cosnorm.methods import METHODS as KNOWN

    rows = [[name, f"{KNOWN[name].lr:g}", error(method=name)] for name in METHODS]
    return table(["method", "rate of SGD", "test error %"], rows)


def rates() -> str:
    """Errors by optimiser and rate, Pearson beside batch normalisation."""
    methods: list[Settings] = [{"method": "pearson"}, {"method": "batch"}]
    heads = ["pearson, test error %", "batch, test error %"]
    return _by_rate(RATES, heads, methods)


def torchs_rates() -> str:
    """The same with first weights as torch makes them, and beside it with a larger scale."""
    methods: list[Settings] = [{"method": "pearson", "scale_start": 10.0}]
    methods += [{"method": "pearson"}, {"method": "batch"}]
    heads = ["pearson, scale from 10", "pearson, scale from 1", "batch"]
    found = _by_rate(TORCHS_RATES, heads, [{**each, "init_std": TORCHS} for each in methods])
    return (
        f"{found}\n\nMNIST, {COMMON['epochs']} epochs, layers of {COMMON['width']} units, {SEEDS} "
        f"seeds, test error in percent: mean ± deviation. First weights of deviation {TORCHS:g}, "
        "about as torch makes them; momentum is 0.9; the scale is that of the last layer."
    )


def _by_rate(
    rates: Mapping[str, Sequence[float]], heads: Sequence[str], columns: Sequence[Settings]
) -> str:
    rows = [
        [optimizer, f"{rate:g}", *(error(optimizer=optimizer, lr=rate, **each) for each in columns)]
        for optimizer, several in rates.items()
        for rate in several
    ]
    return table(["optimiser", "rate", *heads], rows)


def rate_rows() -> list[dict[str, Any]]:
    """The runs of the figure: a row each, with its optimiser, rate and error."""
    wanted = [s for s in plan() if set(s) == {"method", "optimizer", "lr"}]
    rows = [row for settings in wanted for row in rows_of(**settings)]
    return [{**row["settings"], "error": row["test_error_mean"]} for row in rows]


def rate_figure() -> bytes:
    """Error against the rate, with plain SGD and with Adam."""
    from cosnorm.study.claims.figure import figure_files, panel_of

    panels = [
        panel_of(
            [row for row in rate_rows() if row["optimizer"] == optimizer],
            title, "lr", "error", ("learning rate", "test error %"), "x",
        )
        for optimizer, title in (("sgd", "plain SGD"), ("adam", "Adam"))
    ]  # fmt: skip
    return figure_files(panels)[".png"]


def scales() -> str:
    rows = [["1", *(error(method="pearson", optimizer=o, lr=r) for o, r in SCALED)]]
    rows += [
        [f"{start:g}"]
        + [error(method="pearson", optimizer=o, lr=r, scale_start=start) for o, r in SCALED]
        for start in STARTS
    ]
    return table(["scale starts at", *(f"{o}, rate {r:g}" for o, r in SCALED)], rows)


def biases() -> str:
    rows = [[name, error(method=name), error(method=name, bias=True)] for name in METHODS[:2]]
    return table(["method", "no bias, test error %", "bias, test error %"], rows)


def where() -> str:
    """What was run and on what, in a line."""
    result = json.loads(FILE.read_text())
    facts, rows = result["environment"], result["rows"]
    commits = dict.fromkeys(row["commit"][:7] for row in rows)
    minutes = sum(row["seconds"] or 0.0 for row in rows) / 60
    return (
        f"MNIST, {COMMON['epochs']} epochs, layers of {COMMON['width']} units, {SEEDS} seeds: "
        f"mean ± deviation. {len(rows)} runs, {minutes:.0f} minutes. {facts['cpu']}, "
        f"torch {facts['torch']}, commits {', '.join(commits)}."
    )


def main(argv: Sequence[str]) -> int:
    from cosnorm.study.runs.environment import environment

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that has mnist")
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--work", type=Path, default=Path("runs/choices"))
    arguments = parser.parse_args(argv)
    out = arguments.out
    result = json.loads(out.read_text()) if out.exists() else {"rows": []}
    result["environment"] = environment("cpu")
    for number, settings in enumerate(plan()):
        for seed in range(SEEDS):
            key = {"settings": settings, "seed": seed}
            if any(key.items() <= row.items() for row in result["rows"]):
                continue
            row = _made(settings, seed, number, arguments)
            if row["status"] == "stopped":  # by a signal; it goes on when this is run again
                return 1
            commit = str(result["environment"]["commit"])
            result["rows"].append({**key, **row, "commit": commit})
            _write(out, result)
            print(result["rows"][-1], flush=True)
    return 0


def _made(settings: Settings, seed: int, number: int, arguments: Any) -> dict[str, Any]:
    from cosnorm.study.data import load
    from cosnorm.study.runs.presets import configure
    from cosnorm.study.train.run import run

    more = {key: value for key, value in settings.items() if key != "method"}
    config = configure("mnist", settings["method"], seed, device="cpu", **COMMON, **more)
    dataset = load("mnist", arguments.data)
    folder = arguments.work / f"{number}-{seed}"
    outcome = run(config, folder, dataset=dataset, keep_checkpoints=False)
    summary = outcome.summary or {}
    keys = ("test_error_mean", "seconds")
    return {"lr": config.lr, "status": outcome.status, **{k: summary.get(k) for k in keys}}


def _write(path: Path, result: Mapping[str, Any]) -> None:
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["rows"])
    head = json.dumps({"rows": [], "environment": result["environment"]})
    path.write_text(head.replace('"rows": []', f'"rows": [\n{rows}\n]', 1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
