"""Studies of test errors: learning rates, sizes of batches, steadiness, no normalisation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cosnorm.methods import METHODS
from cosnorm.study.claims.figure import Panel, panel_of
from cosnorm.study.claims.study import Row, Setting, Study, means
from cosnorm.study.data import Dataset
from cosnorm.study.report.verdicts import (
    Verdict,
    least_deviation,
    mean_interval,
    standard_error,
    verdict_of,
)
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.presets import learning_rate
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.train import Outcome

OURS, OTHERS = ("pearson", "cosine"), ("batch", "weight", "layer")
STEADY_MARGIN = 0.3  # of log10 of a variance: a factor of two
ERROR = "test error (%)"


class _Errors(Study):
    """A row for each run: its error, and the variance of that."""

    def rows(
        self, config: Config, folder: Storage, dataset: Dataset, outcome: Outcome
    ) -> list[Row]:
        summary = outcome.summary
        assert summary is not None
        is_steady = summary["window"]["evaluations"] > 1  # a single one has no variance
        return [
            {
                "method": config.method,
                "seed": config.seed,
                "lr": config.lr,
                "batch_size": config.batch_size,
                "test_error": summary["test_error_mean"],
                "variance": summary["test_error_variance"] if is_steady else None,
            }
        ]


class LearningRates(_Errors):
    """Error against rate, the grid widened until every method's lowest error lies inside it."""

    name = "learning-rates"
    claim = (
        "Cosine and Pearson can use larger learning rates than the other methods (10 against 1)."
    )
    most = 12  # rates beyond the grid that a method may be tried at

    def grid(self) -> list[float]:
        """0.01 to 316 in steps of √10."""
        return [_half_decade(0.01, k) for k in range(10)]

    def configs(self, setting: Setting) -> list[Config]:
        rates = {method: self.grid() for method in setting.methods}
        return at_rates(setting, rates, setting.seeds)

    def more(self, rows: Sequence[Row], setting: Setting) -> list[Config]:
        return at_rates(setting, self.wider(rows), setting.seeds)

    def wider(self, rows: Sequence[Row]) -> dict[str, list[float]]:
        """The next rate for every method whose lowest error lies at an end of what was tried."""
        found = {}
        for method, errors in means(rows, "lr", "test_error").items():
            tried = rates_of(rows, method)
            best = lowest(errors)
            if len(tried) >= len(self.grid()) + self.most:
                continue
            if best is None or best == tried[0]:
                found[method] = [_half_decade(tried[0], -1)]
            elif best == tried[-1]:
                found[method] = [_half_decade(tried[-1], 1)]
        return found

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        told, largest = [], {}
        for method, errors in means(rows, "lr", "test_error").items():
            best = lowest(errors)
            if best is None:
                told.append(f"{method}: no rate at which every seed trains.")
                continue
            limit = errors[best] + 2 * standard_error(errors[best], tested)
            usable = [lr for lr in errors if errors[lr] <= limit]
            largest[method] = max(usable)
            end = at_an_end(rates_of(rows, method), best)
            told.append(
                f"{method}: lowest error {errors[best]:.2f} % at {best:g}{end}; usable (within two "
                f"test-set standard errors of it) from {min(usable):g} to {max(usable):g}."
            )
        ours = [largest[m] for m in OURS if m in largest]
        others = [largest[m] for m in OTHERS if m in largest]
        if ours and others:
            holds = min(ours) > max(others)
            told.append(
                f"The claim {'holds' if holds else 'does not hold'}: the largest usable rate is "
                f"{min(ours):g} or more for cosine and Pearson, {max(others):g} or less for "
                "batch, weight and layer."
            )
        return told

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        words = "learning rate", ERROR
        return [panel_of(rows, "Error against rate", "lr", "test_error", words, "xy")]


class BatchSize(_Errors):
    """Error against the size of batches, the rate in proportion to it."""

    name = "batch-size"
    claim = "Cosine and Pearson do not depend on batch statistics, so not on the size of batches."
    epochs = 5
    quick_epochs = 1
    sizes = (1, 2, 4, 10, 32, 100, 1000)

    def configs(self, setting: Setting) -> list[Config]:
        return [
            setting.config(
                method, seed, batch_size=size, lr=_round(learning_rate(method) * size / 100)
            )
            for seed in range(setting.seeds)
            for method in setting.methods
            for size in self.sizes
            if size > 1 or not METHODS[method].over_batch
        ]

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        told = []
        for method, errors in means(rows, "batch_size", "test_error").items():
            small, paper = errors.get(2), errors.get(100)
            if small is None or paper is None:
                told.append(f"{method}: not every seed trains with batches of 2 and of 100.")
                continue
            limit = 2 * standard_error(paper, tested)
            word = "does not depend" if abs(small - paper) <= limit else "depends"
            told.append(
                f"{method} {word} on the size: {small:.2f} % with batches of 2, {paper:.2f} % with "
                f"100 (within two test-set standard errors: {limit:.2f})."
            )
        single = [m for m in dict.fromkeys(row["method"] for row in rows) if METHODS[m].over_batch]
        return [*told, *(f"{m} cannot train with batches of 1." for m in single)]

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        words = "rows of a batch", ERROR
        return [panel_of(rows, "Error against batch", "batch_size", "test_error", words, "xy")]


class Steadiness(_Errors):
    """The variance of the test error from one evaluation to the next, at the end of training."""

    name = "steadiness"
    claim = (
        "The test error of cosine and Pearson is steadier than that of the others, batch norm "
        "above all."
    )
    quick_epochs = 20  # whose window has five evaluations: one has no variance

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        told = []
        for ours in OURS:
            for other in OTHERS:
                differences = paired(rows, ours, other, "variance", log_variance)
                interval = mean_interval(differences)
                verdict = verdict_of(interval, STEADY_MARGIN)
                if interval is None or not differences:
                    told.append(f"{ours} against {other}: too few seeds for a verdict.")
                    continue
                words = {"better": "steadier", "worse": "less steady", "equivalent": "as steady"}
                told.append(
                    f"{ours} against {other}: {words.get(verdict, 'undecided')}, its variance "
                    f"{10**interval.low:.2g} to {10**interval.high:.2g} times as large."
                )
        return told

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        words = "", "variance of the test error"
        return [panel_of(rows, "Steadiness", "method", "variance", words, "y")]


class Normalisation(_Errors):
    """No normalisation at several rates, beside every method at the paper's rate."""

    name = "normalisation"
    claim = "Networks without any normalisation do much worse."
    rates = (0.01, 0.0316, 0.1, 0.316, 1.0)

    def configs(self, setting: Setting) -> list[Config]:
        others = [m for m in setting.methods if m != "none"]
        return [
            *(setting.config(m, seed) for seed in range(setting.seeds) for m in others),
            *(
                setting.config("none", seed, lr=lr)
                for seed in range(setting.seeds)
                for lr in self.rates
            ),
        ]

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        plain = [row for row in rows if row["method"] == "none"]
        told = []
        for lr in self.rates:
            here = [row for row in plain if row["lr"] == lr]
            errors = [row["test_error"] for row in here if row["test_error"] is not None]
            if here:
                whole = len(errors) == len(here)
                mean = f"{sum(errors) / len(errors):.2f} %" if whole else "diverges"
                told.append(f"none at {lr:g}: {mean}.")
        paper = self._paper(rows)
        for method in dict.fromkeys(row["method"] for row in paper if row["method"] != "none"):
            told.append(against(paper, "none", method, tested, much=True).told)
        return told

    def _paper(self, rows: Sequence[Row]) -> list[Row]:
        """Every method at the rate of the paper's networks."""
        return [row for row in rows if row["method"] != "none" or row["lr"] == 0.1]

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        paper = self._paper(rows)
        return [
            panel_of(rows, "Error against rate", "lr", "test_error", ("learning rate", ERROR), "x"),
            panel_of(paper, "Every method", "method", "test_error", ("", ERROR)),
        ]


def lowest(errors: Mapping[float, float]) -> float | None:
    """The rate of the lowest error; None where there is none."""
    return min(errors, key=lambda lr: errors[lr], default=None)


def rates_of(rows: Sequence[Row], method: str) -> list[float]:
    """The rates that a method was tried at, from the smallest to the largest."""
    return sorted({row["lr"] for row in rows if row["method"] == method})


def at_an_end(tried: Sequence[float], best: float) -> str:
    """What is said where no rate beyond the best was tried, however far the grid was widened."""
    is_inside = tried[0] < best < tried[-1]
    return "" if is_inside else " (the last that was tried: a better one may lie beyond)"


def at_rates(
    setting: Setting, rates: Mapping[str, Sequence[float]], seeds: int, **settings: Any
) -> list[Config]:
    """Every method at each of its rates, seed by seed."""
    return [
        setting.config(method, seed, lr=lr, **settings)
        for seed in range(seeds)
        for method in rates
        for lr in rates[method]
    ]


class Against(NamedTuple):
    """One method's errors against another's: the verdict on the first, and a sentence.

    whole: whether both have a number of every seed.
    """

    verdict: Verdict
    told: str
    whole: bool


def against(
    rows: Sequence[Row], first: str, second: str, tested: int, *, much: bool = False
) -> Against:
    """The rule of pairs; much: whether to say so of what is worse by more than ten margins."""
    differences = paired(rows, first, second, "test_error", lambda error: error)
    interval = mean_interval(differences, least_deviation(tested, errors=2))
    errors = [row["test_error"] for row in rows if row["method"] in (first, second)]
    known = [error for error in errors if error is not None]
    whole = len(known) == len(errors) == 2 * len(differences)
    if interval is None:
        told = f"{first} against {second}: too few seeds for a verdict."
        return Against("no verdict", told, whole)
    margin = standard_error(sum(known) / len(known), tested)
    verdict = verdict_of(interval, margin)
    word = ", and much" if much and interval.low > 10 * margin else ""
    told = (
        f"{first} against {second}: {verdict}{word}, {interval.low:+.2f} to "
        f"{interval.high:+.2f} points (margin {margin:.2f})"
        f"{'' if whole else ', without seeds of which one has no number'}."
    )
    return Against(verdict, told, whole)


def paired(rows: Sequence[Row], first: str, second: str, key: str, scale) -> list[float]:
    """First minus second of `scale(value)`, for every seed that both have a value of."""
    found: dict[str, dict[int, float]] = {first: {}, second: {}}
    for row in rows:
        if row["method"] in found and row[key] is not None:
            found[row["method"]][row["seed"]] = scale(row[key])
    ours, theirs = found[first], found[second]
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def log_variance(variance: float) -> float:
    """log10, of a variance that may be 0: the least that one wrong row in 10,000 can make."""
    return math.log10(max(variance, 1e-6))


def _half_decade(rate: float, steps: int) -> float:
    """So many steps of √10 from a rate of the grid; however it is reached, it is the same number.

    >>> _half_decade(0.0316, -1)
    0.01
    """
    return _round(10 ** ((round(2 * math.log10(rate)) + steps) / 2))


def _round(rate: float) -> float:
    """Three digits, so that a rate is the same however it was reached."""
    return float(f"{rate:.3g}")


STUDIES = (LearningRates, BatchSize, Steadiness, Normalisation)
