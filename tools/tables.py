"""Writes the tables of README.md and of pages in docs/ from the files in results/.

    python -m tools.tables            rewrite what stands between the markers
    python -m tools.tables --check    exit 1 if that would change anything

A marker is `<!-- table: NAME -->`, a line of its own, and `<!-- end -->` closes it.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools import (
    choices,
    columns,
    figures,
    finetuning,
    launching,
    optimisers,
    reproduction,
    seeds,
    starting,
    studies,
    words,
)

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/speed.md",
    "docs/reproduction.md",
    "docs/training.md",
    "docs/which.md",
    "docs/conversion.md",
    "docs/fine-tuning.md",
    "docs/optimisers.md",
    "docs/scaling.md",
)
MARKER = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / name).read_text())


def _each(pattern: str) -> list[str]:
    """Files that were measured one after another."""
    results = ROOT / "results"
    return sorted(str(path.relative_to(results)) for path in results.glob(pattern))


def _told(rows: str, where: str) -> str:
    return f"{rows}\n\n{where}"


def _where(report: dict[str, Any]) -> str:
    facts = report["provenance"]
    machine = facts.get("gpu") or f"{facts['processor']}, {facts['threads']} threads"
    parts = [machine, f"torch {facts['torch']}", facts["date"]]
    if facts.get("driver"):
        parts.insert(1, f"driver {facts['driver']}")
    if facts.get("commit"):
        parts.append(f"commit {facts['commit']}")
    return ", ".join(parts)


def _title(result: dict[str, Any]) -> str:
    n, c, side = result["size"]
    if result["kind"] == "linear":
        return f"linear {c}→{side}, {n} rows"
    layout = "NHWC" if result["layout"] == "channels_last" else "NCHW"
    return f"conv 3×3, N{n} {c}→{c} {side}² {layout}"


MODES = {
    "both": "forward + backward",
    "forward": "forward",
    "backward": "backward",
    "folded": "forward, weights folded",
}


def layers(file: str, names: tuple[str, ...] | None = None, mode: str = "both") -> str:
    """Ratios to the plain layer with ReLU."""
    report = _load(file)
    results = [_plainly(r) for r in report["results"] if r["mode"] == mode]
    chosen = names or tuple(dict.fromkeys(n for r in results for n in r["providers"]))
    chosen = tuple(n for n in chosen if any(n in r["providers"] for r in results))
    lines = _head(f"{MODES[mode]}, ratio to the plain layer + ReLU", results)
    for name in (n for n in chosen if n != "plain"):
        cells = [_cell(result["providers"].get(name)) for result in results]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", f"20 % to 80 % quantiles in brackets. {_where(report)}."]
    return "\n".join(lines)


def _head(what: str, results: list[dict[str, Any]]) -> list[str]:
    """A column for each size."""
    titles = " | ".join(map(_title, results))
    return [f"| {what} | {titles} |", "|---" * (len(results) + 1) + "|"]


def _plainly(result: dict[str, Any]) -> dict[str, Any]:
    """With one name for the plain layer, of whatever kind."""
    plain = f"{result['kind']}+relu"
    rows = {name.replace(plain, "plain"): row for name, row in result["providers"].items()}
    return {**result, "providers": rows}


def _cell(row: dict[str, float] | None) -> str:
    if row is None:
        return ""
    if "ratio_q20" not in row:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.2f} ({row['ratio_q20']:.2f}–{row['ratio_q80']:.2f})"


def memory(file: str) -> str:
    report = _load(file)
    results = [r["providers"] for r in report["results"]]
    rows = [(n, row) for providers in results for n, row in providers.items()]
    names = dict.fromkeys(n for n, row in rows if "held_ratio" in row and "+relu" not in n)
    lines = _head("bytes held for backward, ratio", report["results"])
    for name in names:
        cells = [f"{r[name]['held_ratio']:.2f}" if name in r else "" for r in results]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{_where(report)}."])


def network(file: str) -> str:
    report = _load(file)
    lines = ["| method | ratio to no normalisation | ms a step |", "|---|---|---|"]
    for name, row in report["results"].items():
        lines.append(f"| {name} | {_cell(row)} | {row['microseconds'] / 1e3:.2f} |")
    return "\n".join([*lines, "", f"20 % to 80 % quantiles in brackets. {_where(report)}."])


def models(*files: str) -> str:
    """Converted models against themselves as they are; a row for each, its mode and its run."""
    heads = "as it is, ms | cosine | pearson | GPU busy, ms | peak GB | kernels | commit"
    lines = [f"| model, mode | {heads} |", "|---" * 8 + "|"]
    for result, report in _steps(files):
        found = result["variants"]
        cells = [_step(result), f"{found['plain']['microseconds'] / 1e3:.1f}"]
        cells += [_cell(found.get(name)) for name in ("cosine", "pearson")]
        cells += [_three(found, "busy_ms", 1), _three(found, "peak_bytes", 1e9), _kernels(found)]
        lines.append(f"| {' | '.join([*cells, report['provenance']['commit']])} |")
    told = "20 % to 80 % quantiles in brackets. Three figures: as it is, cosine, pearson. Kernels: "
    told += "compiled in the first steps, and for another batch size"
    return "\n".join([*lines, "", f"{told}. {_machine(files)}"])


def models_on_cpu(file: str) -> str:
    """The same where there is no GPU to tell of."""
    report = _load(file)
    lines = ["| model | as it is, ms | cosine | pearson |", "|---" * 4 + "|"]
    for result in report["results"]:
        found = result["variants"]
        cells = [result["model"], f"{found['plain']['microseconds'] / 1e3:.0f}"]
        cells += [_cell(found[name]) for name in ("cosine", "pearson")]
        lines.append(f"| {' | '.join(cells)} |")
    first = report["results"][0]
    told = f"Batches of {first['batch']} images of {first['size']}²; quantiles from 20 % to 80 %"
    return "\n".join([*lines, "", f"{told}. {_where(report)}."])


def _three(found: Mapping[str, Any], key: str, unit: float) -> str:
    return ", ".join(f"{row[key] / unit:.1f}" for row in found.values() if row.get(key))


def _kernels(found: Mapping[str, Any]) -> str:
    counts = [row.get("kernels") for row in found.values()]
    return ", ".join(f"{n['first']} + {n['another_batch']}" for n in counts if n)


def ratios(*files: str) -> str:
    """Whole models in short, of the last run of each: a step, and what of it the GPU is busy."""
    last = {_step(result): result["variants"] for result, _ in _steps(files)}
    lines = ["| model, mode | cosine | pearson | GPU: cosine | GPU: pearson |", "|---" * 5 + "|"]
    for title, found in last.items():
        ours, busy = [found[n] for n in ("cosine", "pearson")], found["plain"]["busy_ms"]
        cells = [f"{row['ratio']:.2f}" for row in ours]
        cells += [f"{row['busy_ms'] / busy:.2f}" for row in ours]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _machine(files)])


def _steps(files: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The results of all files with the file of each, model by model, the oldest first."""
    pairs = [(result, report) for report in map(_load, files) for result in report["results"]]
    order = dict.fromkeys(_step(result) for result, _ in pairs)
    return [pair for title in order for pair in pairs if _step(pair[0]) == title]


def _step(result: Mapping[str, Any]) -> str:
    return f"{Path(result['model']).name}, {result['mode']}"


def _machine(files: Sequence[str]) -> str:
    facts = [_load(file)["provenance"] for file in files]
    days = " and ".join(dict.fromkeys(fact["date"] for fact in facts))
    return f"{facts[0]['gpu']}, torch {facts[0]['torch']}, {days}."


def training(*files: str) -> str:
    """The rate of a run against that of its step alone."""
    reports = [_load(file) for file in files]
    lines = ["| run | ratio to its bare step | images a second of that step |", "|---|---|---|"]
    for report in reports:
        for name, row in report["results"].items():
            spread = f"{min(row['ratios']):.2f}–{max(row['ratios']):.2f}"
            lines.append(f"| {name} | {row['ratio']:.2f} ({spread}) | {row['bare']:,.0f} |")
    return "\n".join(
        [*lines, "", f"Least and most of the rounds in brackets. {_where(reports[0])}."]
    )


def runs(*folders: str) -> str:
    """Whole runs by their summaries: length, time and result."""
    lines = ["| run | epochs | seconds | test error | commit |", "|---" * 5 + "|"]
    for folder in folders:
        for path in sorted((ROOT / "results" / folder).glob("*/summary.json")):
            run = json.loads(path.read_text())
            config, window = run["config"], run["window"]
            lines.append(
                f"| {config['dataset']} {config['method']} | {config['epochs']} "
                f"| {run['seconds']:.1f} | {run['test_error_mean']:.2f} %, mean of the last "
                f"{window['count']} | {run['environment']['commit'][:7]} |"
            )
    return "\n".join(lines)


EAGER = (
    "batch", "layer", "weight", "cosine", "pearson", "cosine, ones kernel",
    "pearson, ones kernel", "cosine, normalize", "pearson, normalize",
)  # fmt: skip
FORMULAS = tuple(f"{m}, {f}" for f in ("bare formula", "formula") for m in ("cosine", "pearson"))
COMPILED = tuple(
    f"{n}, compiled" for n in ("plain", "batch", "layer", "cosine", "pearson", *FORMULAS)
)
MODELS = ("compile-trial", "first-machine", "second-machine", "third-machine")  # the oldest first
OURS = ("batch", "cosine", "pearson", "cosine, ones kernel", "pearson, ones kernel")
SHORT = ("batch", "batch, compiled", "layer", "weight", *OURS[1:])
TABLES: dict[str, Callable[[], str]] = {
    "cpu-layers": lambda: layers("cpu/layers.json"),
    "cpu-models": lambda: models_on_cpu("cpu/models.json"),
    "cpu-memory": lambda: memory("cpu/layers.json"),
    "gpu-short": lambda: layers("h200/layers.json", SHORT),
    "gpu-layers": lambda: layers("h200/layers.json", EAGER),
    "gpu-memory": lambda: memory("h200/layers.json"),
    "gpu-autocast": lambda: layers("h200/autocast.json"),
    "gpu-forward": lambda: layers("h200/modes.json", OURS[:3], "forward"),
    "gpu-backward": lambda: layers("h200/modes.json", OURS[:3], "backward"),
    "gpu-folded": lambda: layers("h200/modes.json", OURS[:3], "folded"),
    "gpu-compiled": lambda: layers("h200/layers.json", COMPILED),
    "gpu-network": lambda: network("h200/network.json"),
    "gpu-network-launches": lambda: network("h200/network_launches.json"),
    "gpu-models": lambda: models(*(f"h200/models/{name}.json" for name in MODELS)),
    "finetuning-h200": lambda: finetuning.in_short(
        [_load(name) for name in _each("h200/finetuning/*-seed*.json")]
    ),
    "finetuning": lambda: finetuning.table(_load("cpu/finetuning/resnet-seed0.json"), "resnet"),
    "finetuning-convnext": lambda: finetuning.table(
        _load("cpu/finetuning/convnext-seed0.json"), "convnext", "further"
    ),
    "which-trained": lambda: finetuning.kept(
        [_load(f"cpu/finetuning/{name}-seed0.json") for name in ("resnet", "convnext")]
    ),
    "depthwise": lambda: finetuning.depthwise(
        [_load(name) for name in _each("cpu/finetuning/[cm]*-seed*.json")]
    ),
    "without-norms": lambda: starting.told_without_norms(_load("cpu/starting.json")),
    "starting-vit": lambda: starting.table(_load("cpu/starting.json"), "vit"),
    "starting-resnet-fast": lambda: starting.table(_load("cpu/starting.json"), "resnet, 0.001"),
    "starting-resnet": lambda: starting.table(_load("cpu/starting.json"), "resnet"),
    "seeds": lambda: seeds.table(_load("h200/seeds.json")),
    "launching": lambda: launching.told(_load("cpu/launching.json")),
    "optimisers": lambda: optimisers.best(_load("cpu/optimisers.json")),
    "optimisers-rule": lambda: optimisers.rule(_load("cpu/optimisers.json")),
    "gpu-runs": lambda: runs("h200/mnist", "h200/20news"),
    "which-methods": lambda: _told(choices.methods(), choices.where()),
    "which-rates": choices.rates,
    "which-rates-torch": choices.torchs_rates,
    "which-scales": choices.scales,
    "which-biases": choices.biases,
    "which-columns": lambda: _told(columns.errors(), columns.where()),
    "speed-short": lambda: ratios(*(f"h200/models/{name}.json" for name in MODELS)),
    "paper": reproduction.paper,
    "errors-short": reproduction.short,
    "orders": reproduction.orders,
    "runs-made": reproduction.made,
    "convergence": words.convergence,
    "steadiness": words.steadiness,
    "detective": words.detective,
    "claims": studies.claims,
    **{f"cells-{name}": partial(reproduction.cells, name) for name in reproduction.NAMES},
    **{f"pairs-{name}": partial(reproduction.pairs, name) for name in reproduction.NAMES},
    "gpu-training": lambda: training("h200/training_mnist.json", "h200/training_cifar10.json"),
}


def fill(text: str) -> str:
    return MARKER.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="tell what is stale, write nothing")
    only_check = parser.parse_args(argv).check
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        if (filled := fill(text)) != text:
            stale.append(page)
            if not only_check:
                path.write_text(filled)
    stale += figures.draw(only_check)
    print("stale:" if only_check else "rewritten:", ", ".join(stale) or "none")
    return 1 if stale and only_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
