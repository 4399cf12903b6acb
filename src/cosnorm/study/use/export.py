"""A run's network for programs that know nothing of cosnorm."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cosnorm.study.runs.errors import RunError, RunWarning
from cosnorm.study.runs.storage import Storage, storage_at
from cosnorm.study.train.inputs import pipeline_for
from cosnorm.study.train.run import LoadedRun, load_run


@dataclass(frozen=True)
class ExportedFiles:
    """Where the files are, in the storage's words: of a folder, their paths."""

    onnx: str
    safetensors: str
    labels: str


class _Classifier(nn.Module):
    """Stored rows in, logits out: what training did to its input belongs to the network."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__()
        self.network = run.network
        self.pipeline = pipeline_for(run.config)

    def forward(self, rows: Tensor) -> Tensor:
        return self.network(self.pipeline.eval(rows))


def export_run(
    run: str | Path | Storage, out: str | Path | Storage, *, averaged: bool = True
) -> ExportedFiles:
    """Write model.onnx, model.safetensors and labels.json into `out`.

    The ONNX model takes `rows` as data sets store them (pixels: uint8, (N, C, H, W); any N) and
    gives `logits`, (N, classes). The safetensors file is the network's state_dict. Of a run that
    has diverged, or is not over, a `RunWarning` says so.
    """
    from safetensors.torch import save

    loaded = load_run(run, averaged=averaged)
    if loaded.summary is not None and loaded.summary["diverged"]:
        warnings.warn(
            f"{storage_at(run).label} diverged at step {loaded.summary['steps']:,}: what is "
            "exported has not learnt to classify; train anew with a lower learning rate",
            RunWarning,
            stacklevel=2,
        )
    storage = storage_at(out)
    tensors = {name: t.contiguous() for name, t in loaded.network.state_dict().items()}
    storage.write("model.safetensors", save(tensors))
    labels = {"classes": list(loaded.classes), "sample_shape": list(loaded.sample_shape)}
    storage.write("labels.json", (json.dumps(labels, indent=2) + "\n").encode())
    storage.write("model.onnx", _onnx(loaded))
    names = ("model.onnx", "model.safetensors", "labels.json")
    return ExportedFiles(*(f"{storage.label}/{name}" for name in names))


def _onnx(run: LoadedRun) -> bytes:
    dtype = torch.uint8 if run.dtype == "uint8" else torch.float32
    example = torch.zeros(2, *run.sample_shape, dtype=dtype)
    try:
        with _quiet():
            program = torch.onnx.export(
                _Classifier(run).eval(),
                (example,),
                input_names=["rows"],
                output_names=["logits"],
                dynamic_shapes={"rows": {0: torch.export.Dim("rows")}},
                dynamo=True,
                verbose=False,
            )
    except ImportError as error:
        raise RunError(f"{error}; install what ONNX needs: pip install 'cosnorm[onnx]'") from error
    assert program is not None
    return program.model_proto.SerializeToString()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about packages of others and about itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
