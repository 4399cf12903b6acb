"""A run from its configuration to its folder, and back from the folder to a network."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosnorm.experiments.config import Config
from cosnorm.experiments.errors import RunError, RunWarning
from cosnorm.experiments.ranks import Alone, Ranks
from cosnorm.experiments.record import RunFolder
from cosnorm.experiments.stopping import Stop
from cosnorm.experiments.storage import LocalStorage, Nowhere, Storage
from cosnorm.experiments.watching import Silence, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cosnorm.data import Dataset
    from cosnorm.experiments.train import Outcome


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
    ranks: Ranks | None = None,
) -> "Outcome":
    """Begin the run in `out`, go on with it, or say that it is over, and what it has lost since.

    out: the run folder, made where there is none; refused where it is of a run with other settings.
    data_dir, dataset: where the data lies, or the data itself if it was loaded before.
    checkpoint_seconds: time between checkpoints, what a crash may cost; None for what takes no
        more than a fiftieth of the time.
    keep_checkpoints: keep the last two when the run is over, too.
    ranks: the processes that train together, of which the first has the folder, the watcher and the
        summary; None for this one alone.
    """
    import torch

    from cosnorm.experiments.environment import environment
    from cosnorm.experiments.inputs import dataset_for
    from cosnorm.experiments.train import Outcome, train

    ranks = ranks or Alone()
    storage: Storage = LocalStorage(out) if isinstance(out, str | Path) else out
    if not ranks.is_first:
        storage, watcher = Nowhere(), None
    watcher, stop, folder = watcher or Silence(), stop or Stop(), RunFolder(storage)
    folder.check(config)
    summary = folder.summary()
    if over := ranks.most(0 if summary is None else 1 + summary["diverged"]):
        folder.keep_config(config)
        status = ("done", "diverged")[over - 1]
        missing = folder.missing(config) if ranks.is_first and status == "done" else []
        if missing:
            watcher.warning(f"{storage.label} is over, but {folder.told_missing(config)}")
        return Outcome(status, summary, missing=tuple(missing))
    if ranks.count > 1 and config.device != "cpu":
        raise RunError(f"several ranks train on CPUs only; got device {config.device}: use cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RunError("no CUDA device is available to torch: use the device cpu")
    dataset = dataset or dataset_for(config, data_dir)
    with storage.claim():
        here = {**environment(config.device), "processes": ranks.count}
        _warn_of_other_place(folder.read("environment.json") or here, here, watcher)
        with folder.begun(config, here):
            outcome = train(
                config,
                dataset,
                folder,
                watcher=watcher,
                stop=stop,
                checkpoint_seconds=checkpoint_seconds,
                keep_checkpoints=keep_checkpoints,
                ranks=ranks,
            )
    return outcome if ranks.is_first else replace(outcome, summary=None)


def _warn_of_other_place(
    before: Mapping[str, Any], here: Mapping[str, Any], watcher: Watcher
) -> None:
    """The last bits depend on what computes them; a run that moves house should know."""
    before = {"processes": 1, **before}
    keys = ("torch", "cpu", "threads", "gpu", "processes")
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
    """

    config: Config
    network: "nn.Module"
    classes: tuple[str, ...]
    sample_shape: tuple[int, ...]
    kind: str
    summary: Mapping[str, Any] | None
    dtype: str

    def input_of(self, rows: "Tensor | Any") -> "Tensor":
        """Rows as stored in data sets (images: uint8, (N, C, H, W)) as network input."""
        import torch

        from cosnorm.experiments.inputs import pipeline_for

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


def load_run(path: str | Path, *, averaged: bool = True) -> LoadedRun:
    """Load a run's network, finished or not, on the CPU.

    A `RunWarning` says where the parameters are not the final ones, and of which step they are.

    path: a run folder, of which no more than config.json and model.safetensors need be there.
    averaged: use the moving average of the parameters, if there is one.

        import cosnorm
        run = cosnorm.load_run("runs/digits/pearson-seed0")
        print(run.predict(images))
    """
    from cosnorm.experiments.learner import network_for
    from cosnorm.experiments.parameters import load_parameters

    folder = RunFolder(LocalStorage(path))
    config = folder.config()
    if config is None:
        raise RunError(
            f"{path} is no run folder: it has no config.json; `cosnorm train` writes one"
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
            f"{place} does not fit the network of {path}/config.json, so one of them is of another "
            "run: restore it from a copy"
        ) from error
    kind = data["kind"]
    dtype = data.get("dtype", "uint8" if kind == "image" else "float32")
    return LoadedRun(config, network.eval(), classes, shape, kind, folder.summary(), dtype)
