"""How to treat weights whose length does not matter, measured: docs/optimisers.md has the figure.

    PYTHONPATH=src python -m tools.optimisers --data DIR --out results/cpu/optimisers.json

A small fully connected Pearson network is trained on a part of MNIST by SGD with momentum, with a
grid of rates, constant or falling in a line to zero, in three ways that all normalise in forward:

    forward     nothing else; also what `cosnorm.optim.param_groups` does, as all weights are spared
    decayed     weight decay on every parameter
    projected   weight vectors of length one after every step

A rate is given as the effective one that training begins with, lr/|w|², mean over the layers; the
first step is the same in all ways. A second grid, in plain SGD at constant rates, holds networks
with no normalisation, with cosines, and converted with calibration against the rule of
`cosnorm.optim.translated_lr`. The larger measurement, for a GPU, is
--device cuda --rows 60000 --epochs 50 --width 1000.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosnorm.conversion import convert
from cosnorm.optim import effective_lr, project_after_step, scale_free, translated_lr
from cosnorm.study.data import Dataset, load
from cosnorm.study.models import Recipe, initialise, mlp
from cosnorm.study.runs.environment import environment

WAYS = ("forward", "decayed", "projected")
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
DECAY, MOMENTUM = 1e-3, 0.9
DOT, COSINE = (0.03, 0.1, 0.3, 1.0, 3.0), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PLAIN = {"none": DOT, "cosine": COSINE, "calibrated": DOT}
STD = 0.1  # of the initial weights, the paper's reading


class Data:
    """Rows in 0 to 1 and classes, on the device."""

    def __init__(self, dataset: Dataset, rows: int, device: str) -> None:
        part = dataset.train.to(device), dataset.test.to(device)
        self.x, self.test_x = (each.x.float().flatten(1) / each.x.max() for each in part)
        self.y, self.test_y = (each.y for each in part)
        self.x, self.y = self.x[:rows], self.y[:rows]
        self.classes = len(dataset.classes)

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.x), generator=generator).to(self.x.device)
        for rows in order.split(size):
            if len(rows) == size:
                yield self.x[rows], self.y[rows]


def network_of(method: str, data: Data, width: int, seed: int) -> nn.Module:
    """calibrated: the network without normalisation, converted to cosines."""
    inputs, name = data.x.shape[1], "none" if method == "calibrated" else method
    network: nn.Module = mlp(inputs, data.classes, Recipe(method=name), width=width)
    initialise(network, STD, torch.Generator().manual_seed(seed))
    if method == "calibrated":
        parts: list[nn.Module] = []
        for layer in network.children():
            if isinstance(layer, nn.Linear):
                plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
                plain.load_state_dict(layer.state_dict())
                parts += [plain, nn.ReLU()]
        network = nn.Sequential(*parts[:-1])
        convert(network, "cosine", calibrate=data.x[:500].cpu())
    return network.to(data.x.device)


def optimiser_for(network: nn.Module, way: str, rate: float) -> torch.optim.Optimizer:
    """SGD whose effective rate begins at `rate`, mean over layers."""
    own = effective_lr(network, torch.optim.SGD(network.parameters(), lr=1.0))
    lr = rate / statistics.fmean(own.values())
    groups: list[dict[str, Any]] = [{"params": list(network.parameters()), "lr": lr}]
    if way == "projected":  # then a layer's rate is its effective one, and begins where it did
        layers = scale_free(network)
        free = {id(layer.weight) for layer in layers.values()}
        rest = [p for p in network.parameters() if id(p) not in free]
        groups = [{"params": [layers[name].weight], "lr": lr * own[name]} for name in layers]
        groups += [{"params": rest, "lr": lr}]
    decay = DECAY if way == "decayed" else 0.0
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, weight_decay=decay)
    if way == "projected":
        project_after_step(optimizer, network)
    return optimizer


def trained(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    epochs: int,
    seed: int,
    falling: bool = False,
) -> float | None:
    """The test error in percent after training; None where it diverged."""
    generator = torch.Generator().manual_seed(1000 + seed)
    steps = epochs * (len(data.x) // 100)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / steps if falling else 1.0
    )
    network.train()
    for _ in range(epochs):
        for x, y in data.batches(100, generator):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        logits = network.eval()(data.test_x)
    if not bool(logits.isfinite().all()):
        return None
    return float((logits.argmax(1) != data.test_y).double().mean() * 100)


def ways_rows(data: Data, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for falling in (False, True):
        for way in WAYS:
            for rate in RATES:
                for seed in range(arguments.seeds):
                    network = network_of("pearson", data, arguments.width, seed)
                    optimizer = optimiser_for(network, way, rate)
                    error = trained(network, optimizer, data, arguments.epochs, seed, falling)
                    lengths = [
                        layer.weight.detach().norm(dim=1) for layer in scale_free(network).values()
                    ]
                    length = float(torch.cat(lengths).mean())
                    yield {
                        "method": way, "falling": falling, "rate": rate, "seed": seed,
                        "error": error, "length_at_end": length,
                    }  # fmt: skip


def rule_rows(data: Data, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for method, rates in PLAIN.items():
        for lr in rates:
            for seed in range(arguments.seeds):
                network = network_of(method, data, arguments.width, seed)
                factor = None
                if method != "none":
                    found = translated_lr(network, 1.0, data.x[:100])
                    factor = statistics.median(found.values())
                optimizer = torch.optim.SGD(network.parameters(), lr=lr)
                error = trained(network, optimizer, data, arguments.epochs, seed)
                yield {"method": method, "lr": lr, "seed": seed, "error": error, "factor": factor}


RESULT = Path(__file__).resolve().parent.parent / "results" / "cpu" / "optimisers.json"


NAMES = {
    "forward": "normalising in forward alone, decay spared",
    "decayed": "weight decay on all",
    "projected": "projected",
}


def _means(rows: list[dict[str, Any]], key: str) -> dict[float, float]:
    """The mean error over seeds by rate, lowest rate first."""
    by_rate: dict[float, list[float]] = {}
    for row in sorted(rows, key=lambda row: row[key]):
        by_rate.setdefault(row[key], []).append(row["error"])
    return {rate: statistics.fmean(errors) for rate, errors in by_rate.items()}


def best(result: dict[str, Any]) -> str:
    """A table: the error of each way at its best rate and at the highest that was tried."""
    heads = [
        f"{kind}, {where}" for kind in ("constant", "falling") for where in ("best", "highest")
    ]
    lines = [f"| way | {' | '.join(heads)} |", "|---" * 5 + "|"]
    for way in WAYS:
        cells = []
        for falling in (False, True):
            rows = result["ways"]
            chosen = [r for r in rows if (r["method"], r["falling"]) == (way, falling)]
            means = _means(chosen, "rate")
            for rate in (min(means, key=lambda each: means[each]), max(means)):
                cells.append(f"{means[rate]:.2f} at {rate:g}")
        lines.append(f"| {NAMES[way]} | {' | '.join(cells)} |")
    return "\n".join(lines)


RULE = {
    "none": "dot products",
    "calibrated": "converted and calibrated",
    "cosine": "cosines, scale 1",
}


def rule(result: dict[str, Any]) -> str:
    """A table: the error by rate of the networks between which a rate is translated."""
    means = {m: _means([r for r in result["rule"] if r["method"] == m], "lr") for m in RULE}
    rates = sorted({rate for found in means.values() for rate in found})
    lines = [f"| rate | {' | '.join(f'{rate:g}' for rate in rates)} | the rule says |"]
    lines.append("|---" * (len(rates) + 2) + "|")
    for method, told in RULE.items():
        cells = [f"{means[method][r]:.1f}" if r in means[method] else "" for r in rates]
        factors = [r["factor"] for r in result["rule"] if r["method"] == method and r["factor"]]
        cells.append(f"{statistics.fmean(factors):.2f} times" if factors else "")
        lines.append(f"| {told} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drawn(result: dict[str, Any]) -> bytes:
    """The figure of docs/optimisers.md."""
    from cosnorm.study.claims.figure import figure_files, panel_of

    words = ("effective rate at the beginning", "test error (%)")
    panels = [
        panel_of(
            [row for row in result["ways"] if row["falling"] == falling],
            f"Pearson, momentum, {'falling' if falling else 'constant'} rate",
            "rate", "error", words, "xy",
        )
        for falling in (False, True)
    ]  # fmt: skip
    plain = ("rate", "test error (%)")
    panels.append(panel_of(result["rule"], "plain SGD, constant rate", "lr", "error", plain, "xy"))
    constant = [row for row in result["ways"] if not row["falling"]]
    grown = ("effective rate at the beginning", "length of weight vectors")
    title = "at the end, constant rate"
    panels.append(panel_of(constant, title, "rate", "length_at_end", grown, "xy"))
    return figure_files(panels)[".png"]


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="where MNIST lies")
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "digits"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=5000, help="of the training part")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    arguments = parsed(argv)
    data = Data(load(arguments.dataset, arguments.data), arguments.rows, arguments.device)
    begun = time.perf_counter()
    result = {
        "setting": {k: getattr(arguments, k) for k in ("dataset", "epochs", "width", "seeds")}
        | {
            "rows": len(data.x),
            "batch": 100,
            "momentum": MOMENTUM,
            "decay": DECAY,
            "init_std": STD,
        },
        "environment": environment(arguments.device),
        "ways": list(ways_rows(data, arguments)),
        "rule": list(rule_rows(data, arguments)),
    }
    result["seconds"] = round(time.perf_counter() - begun, 1)
    lines = {
        key: ",\n".join(f"    {json.dumps(row)}" for row in result[key]) for key in ("ways", "rule")
    }
    text = json.dumps({**result, "ways": [], "rule": []}, indent=2)
    for key, rows in lines.items():
        text = text.replace(f'"{key}": []', f'"{key}": [\n{rows}\n  ]')
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
