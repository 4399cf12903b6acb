"""The paper's order of the methods, read as one would compare them today.

Every method has a gain and a shift in its hidden layers (the similarities their own: a learned
scale for each output, and the bias inside the vectors), group normalisation and root mean squares
take part, and each method has the learning rate that suits it: chosen from one grid, widened until
the lowest error lies inside it, by the error on a tenth of the training part that is held out. The
test part is looked at once, with the rates that were chosen.
"""

from collections.abc import Sequence

from cosnorm.methods import STUDIED
from cosnorm.study.claims.errors import (
    ERROR,
    LearningRates,
    against,
    at_an_end,
    at_rates,
    lowest,
    rates_of,
)
from cosnorm.study.claims.figure import Panel, panel_of
from cosnorm.study.claims.study import Row, Setting, means
from cosnorm.study.data import Dataset
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.train import Outcome

HELD_OUT = 0.1


class Modern(LearningRates):
    """Rates by the held-out error of one seed, then the test error of every seed."""

    claim = (
        "Pearson errs less than cosine, and cosine less than batch, weight and layer normalisation."
    )
    methods = (*STUDIED, "group", "rms")
    epochs = None
    steps = 5000
    quick_epochs = 15

    def grid(self) -> list[float]:
        """The middle of a grid in steps of √10, from which every method goes as far as it has to.

        >>> Modern().grid()
        [0.1, 0.316, 1.0, 3.16, 10.0]
        """
        return super().grid()[2:7]

    def configs(self, setting: Setting) -> list[Config]:
        rates = {method: self.grid() for method in setting.methods}
        return at_rates(setting, rates, 1, held_out=HELD_OUT, affine=True)

    def more(self, rows: Sequence[Row], setting: Setting) -> list[Config]:
        held, tested = _parts(rows)
        wider = self.wider(held)
        if wider:
            return at_rates(setting, wider, 1, held_out=HELD_OUT, affine=True)
        made = {(row["method"], row["seed"]) for row in tested}
        rates = {method: [lr] for method, lr in chosen(rows).items()}
        finals = at_rates(setting, rates, setting.seeds, affine=True)
        return [config for config in finals if (config.method, config.seed) not in made]

    def rows(
        self, config: Config, folder: Storage, dataset: Dataset, outcome: Outcome
    ) -> list[Row]:
        """As of every study of errors; in a run with rows held out, the error is that on them."""
        rows = super().rows(config, folder, dataset, outcome)
        return [{**row, "held_out": bool(config.held_out)} for row in rows]

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        held, finals = _parts(rows)
        rates, by_rate = chosen(rows), means(held, "lr", "test_error")
        results = means(finals, "lr", "test_error")
        told = []
        for method, errors in by_rate.items():
            rate = rates.get(method)
            tried = rates_of(held, method)
            if rate is None:
                told.append(f"{method}: trains at none of {len(tried)} rates.")
                continue
            result = results.get(method, {}).get(rate)
            told.append(
                f"{method}: rate {rate:g} of {len(tried)} by its held-out error of "
                f"{errors[rate]:.2f} %{at_an_end(tried, rate)}; test error "
                f"{'not a number for every seed' if result is None else f'{result:.2f} %'}."
            )
        return [*told, *self._pairs(finals, tested)]

    def _pairs(self, finals: Sequence[Row], tested: int) -> list[str]:
        claimed = [("pearson", "cosine")]
        claimed += [("cosine", other) for other in ("batch", "weight", "layer")]
        beyond = [("pearson", other) for other in ("batch", "weight", "layer", "group", "rms")]
        beyond += [("cosine", other) for other in ("group", "rms")]
        found = {pair: against(finals, *pair, tested) for pair in (*claimed, *beyond)}
        holds = sum(found[pair].verdict == "better" and found[pair].whole for pair in claimed)
        return [
            *(each.told for each in found.values()),
            f"The claim holds for {holds} of its {len(claimed)} pairs.",
        ]

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        held, finals = _parts(rows)
        words = "learning rate", "held-out error (%)"
        return [
            panel_of(held, "To choose the rate", "lr", "test_error", words, "xy"),
            panel_of(finals, "At the rate chosen", "method", "test_error", ("", ERROR)),
        ]


def _parts(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of runs with a part held out, and those of the others."""
    return [row for row in rows if row["held_out"]], [row for row in rows if not row["held_out"]]


def chosen(rows: Sequence[Row]) -> dict[str, float]:
    """Each method's rate of the lowest held-out error."""
    by_rate = means(_parts(rows)[0], "lr", "test_error")
    found = {method: lowest(errors) for method, errors in by_rate.items()}
    return {method: lr for method, lr in found.items() if lr is not None}


class ModernMnist(Modern):
    name = "modern-mnist"


class Modern20News(Modern):
    name = "modern-20news"
    dataset = "20news"


class ModernCifar10(Modern):
    name = "modern-cifar10"
    dataset, network = "cifar10", "vgg"


STUDIES = (ModernMnist, Modern20News, ModernCifar10)
