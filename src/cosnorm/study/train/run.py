"""A run from its configuration to its folder, and back from the folder to a network."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosnorm.study.names import DATASETS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import RunError, RunWarning
from cosnorm.study.runs.progress import Silence, Watcher
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.result import ended
from cosnorm.study.runs.storage import Nowhere, Storage, storage_at
from cosnorm.study.train.ranks import Alone, Ranks
from cosnorm.study.train.stopping import GiveUp, Stop

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cosnorm.study.data import Dataset
    from cosnorm.study.train.train import Outcome


_ENDS = ("done", "diverged", "untrained")


def run(
    config: Config,
    out: str | Path | Storage,
    *,
    data_dir: str | Path | None = None,
    dataset: "Dataset | None" = None,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: bool = True,
    watch: bool = False,
    ranks: Ranks | None = None,
    give_up: GiveUp | None = None,
) -> "Outcome":
    """Begin the run in `out`, go on with it, or say that it is over, and what it has lost since.

    out: the run folder, made where there is none; refused where it is of a run with other settings.
    data_dir: where the data lies.
    dataset: the data itself, if it was loaded before.
    checkpoint_seconds: time between checkpoints, what a crash may cost; None for what takes no
        more than a fiftieth of the time.
    keep_checkpoints: keep the last two when the run is over, too.
    watch: record the training error and the weights, scale and rate of every layer at each
        evaluation; the training is the same to the last bit.
    give_up: when to end a run that learns nothing; None for never.
    ranks: the processes that train together, of which the first has the folder, the watcher and the
        summary; None for this one alone.
    """
    from cosnorm.study.runs.environment import environment
    from cosnorm.study.train.inputs import dataset_for
    from cosnorm.study.train.train import train

    ranks = ranks or Alone()
    storage = place = storage_at(out)
    if not ranks.is_first:
        storage, watcher = Nowhere(), None
    watcher, stop, folder = watcher or Silence(), stop or Stop(), RunFolder(storage)
    folder.check(config)
    if over := over_before(folder, config, ranks, watcher):
        if ranks.is_first:
            check_data(folder, config, dataset or data_of_its_own(config))
        return over
    check_device(config)
    dataset = dataset or dataset_for(config, data_dir)
    if ranks.is_sharded and dataset.kind == "sparse" and config.sparse:
        raise RunError(
            "--shard spreads dense layers, and the first one here is sparse: use --no-sparse too"
        )
    for note in dataset.notes:
        watcher.warning(note)
    here = {**environment(config.device), "processes": ranks.count}
    with opened(folder, config, here, ranks, watcher) as over:
        outcome = over or train(
            config,
            dataset,
            folder,
            watcher=watcher,
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
            keep_checkpoints=keep_checkpoints,
            watch=watch,
            ranks=ranks,
            place=place,
            give_up=give_up,
        )
    return outcome if ranks.is_first else replace(outcome, summary=None)


@contextmanager
def opened(
    folder: RunFolder, config: Config, here: Mapping[str, Any], ranks: Ranks, watcher: Watcher
) -> "Iterator[Outcome | None]":
    """Keep the folder from other processes, and make it that of `config`; see `RunFolder.begun`.

    here: the environment, with the number of processes and of runs that train as one.
    Yields the outcome where another process has made the run while the data was loaded.
    """
    with folder.storage.claim():
        ranks.wait()  # data takes longer to load in one place than in another
        if over := over_before(folder, config, ranks, watcher):
            yield over
            return
        _warn_of_other_place(folder.read("environment.json") or here, here, watcher)
        with folder.begun(config, here):
            yield None


def over_before(
    folder: RunFolder, config: Config, ranks: Ranks, watcher: Watcher
) -> "Outcome | None":
    """How a run that is over ended, and what its folder has lost since; None of one that is not."""
    from cosnorm.study.train.train import Outcome

    summary = folder.summary()
    (over,) = ranks.most([0 if summary is None else 1 + _ENDS.index(ended(summary))])
    if not over:
        return None
    folder.keep_config(config)
    status = _ENDS[over - 1]
    missing = folder.missing(config) if ranks.is_first and status == "done" else []
    if missing:
        watcher.warning(f"{folder.storage.label} is over, but {folder.told_missing(config)}")
    return Outcome(status, summary, missing=tuple(missing))


def data_of_its_own(config: Config) -> "Dataset | None":
    """The user's own data as it is now; None of a published set, and of data that is gone.

    Published sets do not change, and what is gone cannot make a result doubtful.
    """
    from cosnorm.study.data.errors import DataError
    from cosnorm.study.train.inputs import dataset_for

    try:
        return None if config.dataset in DATASETS else dataset_for(config)
    except DataError:
        return None


def check_data(folder: RunFolder, config: Config, dataset: "Dataset | None") -> None:
    """Refuse a run that is over where its data has changed since, as one that goes on is."""
    before = (folder.read("summary.json") or {}).get("data")
    if dataset is not None and isinstance(before, Mapping):
        folder.check_data(before, config, dataset.name, dataset.fingerprint)


def check_device(config: Config) -> None:
    import torch

    if config.device == "cuda" and not torch.cuda.is_available():
        raise RunError("no CUDA device is available to torch: use the device cpu")


def _warn_of_other_place(
    before: Mapping[str, Any], here: Mapping[str, Any], watcher: Watcher
) -> None:
    """The last bits depend on what computes them; a run that moves house should know."""
    alone = {"processes": 1, "together": 1}
    before, here = alone | dict(before), alone | dict(here)
    keys = ("torch", "cpu", "threads", "gpu", "processes", "together")
    changed = [key for key in keys if before.get(key) != here.get(key)]
    moved = [f"{key} {before.get(key)}, now {here.get(key)}" for key in changed]
    if moved:
        watcher.warning(
            f"the run goes on in another place ({'; '.join(moved)}): its last bits may differ from "
            "those of an uninterrupted run"
        )


@dataclass(frozen=True)
class LoadedRun:
    """A trained network with what it needs to classify.

    network: in evaluation mode, the averaged parameters where the run has them.
    dtype: of the rows as they were stored: uint8 for pixels, float32 for any other numbers.
    columns: the names of the numbers in a row, where training had them.
    """

    config: Config
    network: "nn.Module"
    classes: tuple[str, ...]
    sample_shape: tuple[int, ...]
    kind: str
    summary: Mapping[str, Any] | None
    dtype: str
    columns: tuple[str, ...] | None = None

    def input_of(self, rows: "Tensor | Any") -> "Tensor":
        """Rows as stored in data sets (images: uint8, (N, C, H, W)) as network input."""
        import torch

        from cosnorm.study.train.inputs import pipeline_for

        x = torch.as_tensor(rows)
        if x.layout == torch.sparse_csr:
            x = x.to_dense()
        if tuple(x.shape[1:]) != self.sample_shape:
            wanted = " × ".join(map(str, self.sample_shape))
            raise ValueError(
                f"rows must have shape (N, {wanted}), as in training; got {tuple(x.shape)}"
            )
        if self.kind == "image" and (x.dtype == torch.uint8) != (self.dtype == "uint8"):
            wanted = "uint8, 0 to 255" if self.dtype == "uint8" else "floats"
            raise ValueError(f"images must be {wanted}, as in training; got {x.dtype}")
        if x.dtype != torch.uint8:
            x = x.float()
        return pipeline_for(self.config).eval(x)

    def probabilities(self, rows: "Tensor | Any") -> "Tensor":
        """The probability of every class for every row, (N, classes)."""
        import torch

        with torch.no_grad():
            parts = self.input_of(rows).split(1000)
            return torch.cat([self.network(part).float().softmax(1) for part in parts])

    def predict(self, rows: "Tensor | Any") -> list[str]:
        """The most probable class of every row, by name.

        >>> run = load_run("runs/digits/pearson-seed0")  # doctest: +SKIP
        >>> run.predict(images)  # doctest: +SKIP
        ['3', '8']
        """
        return [self.classes[k] for k in self.probabilities(rows).argmax(1).tolist()]


def load_run(path: str | Path | Storage, *, averaged: bool = True) -> LoadedRun:
    """Load a run's network, finished or not, on the CPU.

    A `RunWarning` says where the parameters are not the final ones, and of which step they are.

    path: a run folder, or any storage of one, of which no more than config.json and
        model.safetensors need be there.
    averaged: use the moving average of the parameters, if there is one.

        from cosnorm import study
        run = study.load_run("runs/digits/pearson-seed0")
        print(run.predict(images))
    """
    from cosnorm.study.runs.parameters import load_parameters
    from cosnorm.study.train.learner import network_for

    folder = RunFolder(storage_at(path))
    label, config = folder.storage.label, folder.config()
    if config is None:
        raise RunError(
            f"{label} is no run folder: it has no config.json; `cosnorm train` writes one"
        )
    tensors, data, place, warning = load_parameters(folder, config, averaged)
    if warning:
        warnings.warn(warning, RunWarning, stacklevel=2)
    shape, classes = tuple(data["sample_shape"]), tuple(data["classes"])
    network = network_for(config, shape, len(classes))
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(
            f"{place} does not fit the network of {label}/config.json, so one of them is of "
            "another run: restore it from a copy"
        ) from error
    kind = data["kind"]
    dtype = data.get("dtype", "uint8" if kind == "image" else "float32")
    columns = tuple(data["columns"]) if "columns" in data else None
    return LoadedRun(config, network.eval(), classes, shape, kind, folder.summary(), dtype, columns)
