"""Rows of measurements in units of their own: the five methods on scikit-learn's table of tumours.

    PYTHONPATH=src python -m tools.columns

Once as the table is, areas near 1,000 beside smoothness near 0.1, and once with every column
brought to mean 0 and deviation 1 by the training rows. Needs no data but scikit-learn's.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.reproduction import table

from cosnorm.methods import PAPER_METHODS

FILE = Path(__file__).resolve().parent.parent / "results" / "cpu" / "columns.json"
SEEDS = 5
COMMON = {"epochs": 30, "width": 64}
VARIANTS = {"as they are": False, "standardised": True}


def errors() -> str:
    """A row a method: its error with the columns as they are, and standardised."""
    rows = json.loads(FILE.read_text())["rows"]
    lines = []
    for method in PAPER_METHODS:
        cells = []
        for variant in VARIANTS:
            found = [
                row["test_error_mean"]
                for row in rows
                if (row["columns"], row["method"]) == (variant, method)
            ]
            assert len(found) == SEEDS
            cells.append(f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}")
        lines.append([method, *cells])
    return table(["method", *(f"columns {variant}, test error %" for variant in VARIANTS)], lines)


def where() -> str:
    facts = json.loads(FILE.read_text())["environment"]
    return (
        f"569 rows of 30 columns, 113 of them held out, {COMMON['epochs']} epochs, layers of "
        f"{COMMON['width']} units, SGD at the preset rate of each method, {SEEDS} seeds: mean ± "
        f"deviation. {facts['cpu']}, torch {facts['torch']}, commit {str(facts['commit'])[:7]}."
    )


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    from cosnorm.study import compare, configure
    from cosnorm.study.runs.environment import environment

    rows = []
    for variant, standard in VARIANTS.items():
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "tumours.npz"
            write(file, standard)
            configs = [
                configure(str(file), method, seed, device="cpu", **COMMON)
                for method in PAPER_METHODS
                for seed in range(SEEDS)
            ]
            outcomes = compare(configs, storage=Path(work) / "runs")
            for config in configs:
                summary: Any = outcomes[config.name].summary
                if summary is None:
                    return 1  # stopped
                key = {"columns": variant, "method": config.method, "seed": config.seed}
                rows.append({**key, "test_error_mean": summary["test_error_mean"]})
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    facts = json.dumps(environment("cpu"))
    FILE.write_text(f'{{"rows": [\n{lines}\n], "environment": {facts}}}\n')
    return 0


def write(file: Path, standard: bool) -> None:
    """The table as an .npz; a fixed fifth of the rows is its test part."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    data: Any = load_breast_cancer()
    x, y = data.data.astype(np.float32), data.target
    test = np.random.default_rng(0).permutation(len(y)) < len(y) // 5
    if standard:
        x = (x - x[~test].mean(0)) / x[~test].std(0)
    parts = {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
    np.savez(file, **parts, classes=data.target_names)


if __name__ == "__main__":
    sys.exit(main())
