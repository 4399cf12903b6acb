"""What the authors may have done with 20NEWS: readings of their text, each tried on all methods.

    PYTHONPATH=src python -m tools.detective --data DIR --minutes 8 --out results/detective.json

This is the one place where settings are looked at by their test error; it is told apart from the
verdicts, which use the plan's reading. Readings that are there are not run again. A row is one run.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosnorm.methods import PAPER_METHODS
from cosnorm.study.data import Dataset, Split, news
from cosnorm.study.data.rows import sparse_csr, take
from cosnorm.study.data.splits import kept_rows
from cosnorm.study.data.tfidf import Counts
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.presets import configure
from cosnorm.study.train.run import run
from cosnorm.study.train.stopping import Stop


@dataclass(frozen=True)
class Reading:
    """One way to read the paper.

    tf: what is made of a count. idf: of a word's document frequency, df of n documents. l2: rows of
    length one. largest: the documents whose maximum scales a feature, "train", "all" or "none".
    df: the documents that a word must be in, and of which part. settings: of the run.
    """

    tf: str = "raw"
    idf: str = "smooth"
    l2: bool = False
    largest: str = "train"
    min_df: int = 5
    df_of: str = "train"
    settings: Mapping[str, Any] = field(default_factory=dict)


READINGS: dict[str, Reading] = {
    "plan": Reading(),
    "tf log": Reading(tf="log"),
    "tf binary": Reading(tf="binary"),
    "tf relative": Reading(tf="relative"),
    "l2": Reading(l2=True),
    "l2, idf plain": Reading(l2=True, idf="plain"),
    "l2, tf log": Reading(l2=True, tf="log"),
    "maxima of all": Reading(largest="all"),
    "tf relative, maxima of all": Reading(tf="relative", largest="all"),
    "not scaled, l2": Reading(l2=True, largest="none"),
    "df above 5": Reading(min_df=6),
    "df of all": Reading(df_of="all"),
    "deviation 0.316": Reading(settings={"init_std": 0.316}),
    "deviation 0.01": Reading(settings={"init_std": 0.01}),
    "scale fixed 1": Reading(settings={"scale": "fixed"}),
    "scale fixed 10": Reading(settings={"scale": "fixed", "scale_start": 10.0}),
    "scale per class": Reading(settings={"scale": "per_class"}),
    "rate a tenth": Reading(settings={"lr_factor": 0.1}),
    "rate 3 times": Reading(settings={"lr_factor": 10.0**0.5}),
    "rate ten times": Reading(settings={"lr_factor": 10.0}),
    "rate 30 times": Reading(settings={"lr_factor": 10.0**1.5}),
    "rate 3 times, scale fixed 10": Reading(
        settings={"lr_factor": 10.0**0.5, "scale": "fixed", "scale_start": 10.0}
    ),
    "rate ten times, scale fixed 10": Reading(
        settings={"lr_factor": 10.0, "scale": "fixed", "scale_start": 10.0}
    ),
    "rate ten times, tf relative": Reading(tf="relative", settings={"lr_factor": 10.0}),
    "bias": Reading(settings={"bias": True, "sparse": False}),
    "gain and shift": Reading(settings={"affine": True}),
}
# Which reading's run each method has, where it is not one for all of them; else the plan's.
JOINED: dict[str, dict[str, str]] = {
    "ten times the rate for layer alone": {"layer": "rate ten times"},
    "that, and scale fixed 10 for cosine and pearson": {
        "layer": "rate ten times", "cosine": "scale fixed 10", "pearson": "scale fixed 10"
    },
}  # fmt: skip
TF: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "raw": lambda count, length: count,
    "log": lambda count, length: 1 + np.log(count),
    "binary": lambda count, length: np.ones_like(count),
    "relative": lambda count, length: count / length,
}
IDF: dict[str, Callable[[int, np.ndarray], np.ndarray]] = {
    "smooth": lambda n, df: np.log((1 + n) / (1 + df)) + 1,
    "plain": lambda n, df: np.log(n / df),
}


def dataset_of(reading: Reading, train: Any, test: Any, classes: Sequence[str]) -> Dataset:
    """The data set by a reading, from the counts and classes of both parts."""
    parts = (train[0], test[0])
    of_train, of_both = (np.bincount(p.words, minlength=p.vocabulary) for p in parts)
    of_both = of_train + of_both
    words = np.flatnonzero((of_train if reading.df_of == "train" else of_both) >= reading.min_df)
    column = np.full(parts[0].vocabulary, -1)
    column[words] = np.arange(len(words))
    # A word that only test documents have gets the idf of one training document.
    idf = IDF[reading.idf](parts[0].documents, np.maximum(of_train[words], 1))
    weighted = [_weighted(part, column, idf, reading) for part in parts]
    largest = np.zeros(len(words))
    for _, columns, values in weighted[: {"train": 1, "all": 2, "none": 0}[reading.largest]]:
        np.maximum.at(largest, columns, values)
    largest[largest == 0] = 1.0
    splits = []
    for (_, y), (indptr, columns, values), keep in zip(
        (train, test), weighted, news.KEPT, strict=True
    ):
        x = sparse_csr(
            torch.from_numpy(indptr.astype(np.int32)),
            torch.from_numpy(columns.astype(np.int32)),
            torch.from_numpy((values / largest[columns]).astype(np.float32)),
            (len(indptr) - 1, len(words)),
        )
        rows = kept_rows(len(y), keep, news.DROP_SEED)
        splits.append(Split(take(x, torch.from_numpy(rows)), torch.from_numpy(y[rows]).long()))
    return Dataset("20news", splits[0], splits[1], tuple(classes), "sparse", None)


def _weighted(
    part: Counts, column: np.ndarray, idf: np.ndarray, reading: Reading
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = part.rows(), column[part.words]
    length = np.bincount(rows, weights=part.counts, minlength=part.documents)
    kept = columns >= 0
    rows, columns, counts = rows[kept], columns[kept], part.counts[kept]
    values = TF[reading.tf](counts, length[rows]) * idf[columns]
    if reading.l2:
        values /= np.sqrt(np.bincount(rows, weights=values**2, minlength=part.documents))[rows]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=part.documents))])
    return indptr, columns, values


def main(argv: Sequence[str]) -> int:
    arguments = parsed(argv)
    until = time.time() + 60 * arguments.minutes
    folder = news._matlab_folder(arguments.data)
    train, test, classes, _ = news._read_matlab(folder)
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"rows": []}
    result["environment"] = environment(arguments.device)
    names = arguments.readings.split(";") if arguments.readings else list(READINGS)
    for name in names:
        dataset = None
        for method in arguments.methods.split(","):
            key = {"reading": name, "method": method, "epochs": arguments.epochs, "seed": 0}
            if any(key.items() <= row.items() for row in result["rows"]):
                continue
            if name == "gain and shift" and method in ("pearson", "cosine"):
                continue
            if dataset is None:
                dataset = dataset_of(READINGS[name], train, test, classes)
            left = until - time.time()
            if left < 3 or (row := _row(READINGS[name], key, dataset, arguments, left)) is None:
                return 0
            result["rows"].append(row)
            _write(arguments.out, result)
            print(row, flush=True)
    return 0


def _row(
    reading: Reading, key: dict[str, Any], dataset: Dataset, arguments: Any, left: float
) -> dict[str, Any] | None:
    """One run; None where the time is up before its end."""
    settings = dict(reading.settings)
    factor = settings.pop("lr_factor", 1.0)
    config = configure(
        "20news", key["method"], 0, device=arguments.device, epochs=key["epochs"], **settings
    )
    config = config.override(lr=config.lr * factor)
    place = "_".join(str(value).replace(" ", "-") for value in key.values())
    stop = Stop(left / 60)
    outcome = run(
        config, arguments.work / place, dataset=dataset, stop=stop, keep_checkpoints=False
    )
    if outcome.summary is None:
        return None
    keys = ("test_error_mean", "test_error_variance", "seconds")
    return {**key, "status": outcome.status, **{k: outcome.summary[k] for k in keys}}


def _write(path: Path, result: Mapping[str, Any]) -> None:
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["rows"])
    head = json.dumps({"rows": [], "environment": result["environment"]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head.replace('"rows": []', f'"rows": [\n{rows}\n]', 1) + "\n")


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="where 20news-bydate lies")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the file with a row for each run")
    parser.add_argument("--work", type=Path, default=Path("runs/detective"))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--readings", help="names, with semicolons between; default: all")
    parser.add_argument("--methods", default=",".join(PAPER_METHODS))
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
