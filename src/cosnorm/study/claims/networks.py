"""Studies of trained networks: changed inputs, and the variance of pre-activations by layer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from cosnorm.study.claims.errors import OURS
from cosnorm.study.claims.figure import Panel, panel_of
from cosnorm.study.claims.study import Row, Study, means
from cosnorm.study.data import Dataset, take
from cosnorm.study.report.verdicts import standard_error
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.inputs import pipeline_for
from cosnorm.study.train.learner import network_for
from cosnorm.study.train.run import load_run
from cosnorm.study.train.train import Outcome

_ROWS = 1000  # at once


class Input(Study):
    """Test inputs multiplied by, or with added to them, 0.01 to 100.

    A bias-free ReLU network without batch or layer norm passes a factor on to its logits, so its
    classes do not change either: the change of the probabilities tells the two apart.
    """

    name = "input"
    claim = (
        "The output of cosine and Pearson does not change when the input is scaled; Pearson's, "
        "neither when it is shifted."
    )
    by = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)

    def rows(
        self, config: Config, folder: Storage, dataset: Dataset, outcome: Outcome
    ) -> list[Row]:
        if outcome.status != "done":
            return []
        network = load_run(folder).network
        parts = list(_test_parts(config, dataset))
        rows = []
        for kind, change in (("scale", torch.mul), ("shift", torch.add)):
            for by in self.by:
                wrong, moved = _changed(network, parts, lambda x, f=change, b=by: f(x, b))
                rows.append(
                    {
                        "method": config.method,
                        "seed": config.seed,
                        "kind": kind,
                        "by": by,
                        "test_error": wrong,
                        "change": moved,
                    }
                )
        return rows

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        told = []
        for kind in ("scale", "shift"):
            here = [row for row in rows if row["kind"] == kind]
            moved = means(here, "by", "change")
            for method, errors in means(here, "by", "test_error").items():
                least, most = min(errors.values()), max(errors.values())
                limit = standard_error(least, tested) / 10
                word = "stays" if most - least < limit else "changes"
                told.append(
                    f"{kind}, {method}: the error {word} ({least:.2f} to {most:.2f} %); "
                    f"probabilities move by up to {max(moved[method].values()):.1e}."
                )
        return told

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        kinds = (
            ("scale", "Input scaled", "factor of the input"),
            ("shift", "Input shifted", "added to the input"),
        )
        values = (("test_error", "test error (%)"), ("change", "change of probabilities"))
        return [
            panel_of([row for row in rows if row["kind"] == kind], title, "by", value, (x, y), "x")
            for kind, title, x in kinds
            for value, y in values
        ]


class Variance(Study):
    """The variance of pre-activations in each hidden layer, at the start and after training."""

    name = "variance"
    claim = "Cosine and Pearson bound pre-activations, and their variance is small."

    def rows(
        self, config: Config, folder: Storage, dataset: Dataset, outcome: Outcome
    ) -> list[Row]:
        rows = []
        x = next(_test_parts(config, dataset))[0]
        first = network_for(config, dataset.sample_shape, len(dataset.classes))
        networks = {"start": first}
        if outcome.status == "done":
            networks["end"] = load_run(folder).network
        for when, network in networks.items():
            for layer, variance in enumerate(hidden_variances(network, x), 1):
                key = {"method": config.method, "seed": config.seed, "layer": f"hidden {layer}"}
                rows.append({**key, "when": when, "variance": variance})
        return rows

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        told = []
        for when in ("start", "end"):
            found = means([row for row in rows if row["when"] == when], "layer", "variance")
            for method, by_layer in found.items():
                values = ", ".join(f"{value:.2e}" for value in by_layer.values())
                told.append(f"{when}, {method}: {values} in the hidden layers.")
            others = [by_layer for method, by_layer in found.items() if method not in OURS]
            ours = [found[method] for method in OURS if method in found]
            if ours and others:
                below = all(
                    mine[layer] < other[layer]
                    for mine in ours
                    for other in others
                    for layer in mine
                )
                told.append(
                    f"{when}: the claim {'holds' if below else 'does not hold'}: cosine and "
                    f"Pearson {'are' if below else 'are not'} below every other method in every "
                    "layer."
                )
        return told

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        names = {"start": "At the start", "end": "After training"}
        words = "", "variance of pre-activations"
        return [
            panel_of(
                [row for row in rows if row["when"] == when], title, "layer", "variance", words, "y"
            )
            for when, title in names.items()
        ]


def _test_parts(config: Config, dataset: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    pipeline = pipeline_for(config)
    for index in torch.arange(len(dataset.test)).split(_ROWS):
        x = take(dataset.test.x, index)
        x = x.to_dense() if x.layout == torch.sparse_csr else x
        yield pipeline.eval(x if x.dtype == torch.uint8 else x.float()), dataset.test.y[index]


@torch.no_grad()
def _changed(network: nn.Module, parts, change) -> tuple[float, float]:
    """Test error in percent with changed inputs, and how far the probabilities move.

    The latter is the total variation between those of an input as it is and as it is changed, from
    0 to 1, averaged over the test rows.
    """
    wrong, moved, count = 0, 0.0, 0
    for x, y in parts:
        before, after = network(x).softmax(1), network(change(x)).softmax(1)
        wrong += int((after.argmax(1) != y).sum())
        moved += float((after - before).abs().sum()) / 2
        count += len(y)
    return 100 * wrong / count, moved / count


@torch.no_grad()
def hidden_variances(network: nn.Module, x: Tensor) -> list[float]:
    """The variance, over rows and units, of what each hidden layer gives its ReLU.

    In training mode, so that batch normalisation takes the statistics of these rows: at the start
    it has no others. The network is left as it was, but for those statistics.
    """
    found: list[float] = []

    def look(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        found.append(float(output.double().var()))
        return output.relu()

    hidden = [layer for layer in network.modules() if getattr(layer, "activation", None) == "relu"]
    hooks = []
    for layer in hidden:
        layer.activation = None  # pyright: ignore
        hooks.append(layer.register_forward_hook(look))
    mode = network.training
    network.train()(x)
    network.train(mode)
    for layer, hook in zip(hidden, hooks, strict=True):
        layer.activation = "relu"  # pyright: ignore
        hook.remove()
    return found


STUDIES = (Input, Variance)
