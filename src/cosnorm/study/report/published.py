"""What the paper *Cosine Normalization* (2017) prints: its five tables, its protocol, its claims.

Errors are percent, variances are of the error in percent over the evaluations of one run's window.

>>> PAPER["cifar10"].results["pearson"].test_error
6.39
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cosnorm.methods import PAPER_METHODS


@dataclass(frozen=True)
class PublishedResult:
    """One row of a published table; a variance of None was not given."""

    test_error: float
    variance: float | None = None


@dataclass(frozen=True)
class Published:
    """One published table: where it stands, how long the training was, and a result per method.

    `unit` is what `length` (the whole training) and `window` (its last part, over which mean and
    variance are taken) count: "epoch" or "step".
    """

    source: str
    unit: str
    length: int
    window: int
    results: Mapping[str, PublishedResult]


@dataclass(frozen=True)
class Claim:
    """A claim that the paper makes in words, under a short name."""

    name: str
    text: str


def _results(exponent: int, *rows: tuple[str, str]) -> dict[str, PublishedResult]:
    """The paper prints a variance as a multiple of a power of ten: shift the printed decimals."""
    return {
        method: PublishedResult(float(error), float(f"{variance}e{exponent}"))
        for method, (error, variance) in zip(PAPER_METHODS, rows, strict=True)
    }


PAPER: Mapping[str, Published] = {
    "mnist": Published(
        "the paper's MNIST table",
        "epoch",
        200,
        50,
        _results(
            -3,
            ("1.39", "0"),
            ("1.40", "0.009"),
            ("1.45", "6.740"),
            ("1.65", "0.054"),
            ("1.43", "0.108"),
        ),
    ),
    "20news": Published(
        "the paper's 20NEWS table",
        "epoch",
        200,
        50,
        _results(
            -2,
            ("29.37", "0.201"),
            ("31.73", "0.633"),
            ("43.94", "1.231"),
            ("33.55", "4.775"),
            ("33.29", "0.556"),
        ),
    ),
    "cifar10": Published(
        "the paper's CIFAR-10 table",
        "step",
        100_000,
        10_000,
        _results(
            -3,
            ("6.39", "0.076"),
            ("7.33", "0.036"),
            ("8.08", "1.052"),
            ("8.55", "0.010"),
            ("7.42", "0.008"),
        ),
    ),
    "cifar100": Published(
        "the paper's CIFAR-100 table",
        "step",
        100_000,
        10_000,
        _results(
            -4,
            ("27.49", "1.03"),
            ("31.02", "0.43"),
            ("31.01", "3.23"),
            ("37.87", "1.36"),
            ("31.66", "0.22"),
        ),
    ),
    "svhn": Published(
        "the paper's SVHN table",
        "step",
        100_000,
        10_000,
        _results(
            -4,
            ("2.22", "0.01"),
            ("2.34", "0.11"),
            ("2.49", "0.14"),
            ("2.63", "0.03"),
            ("2.58", "0.01"),
        ),
    ),
}

CLAIMS = (
    Claim(
        "larger learning rate",
        "Cosine and Pearson train at learning rate 10, where the other three use 1.",
    ),
    Claim("speed of convergence", "All five methods converge at about the same speed."),
    Claim(
        "steadiness",
        "The test error of cosine and Pearson fluctuates less between evaluations than that of "
        "batch norm.",
    ),
    Claim(
        "independence of the batch",
        "The result depends neither on the batch size nor on batch statistics, and training and "
        "inference compute the same function.",
    ),
    Claim("input scale", "The output does not change when the input is multiplied by a factor."),
    Claim("need of normalisation", "Networks without any normalisation do much worse."),
    Claim("lowest error", "Pearson has the lowest mean test error on all five data sets."),
)
