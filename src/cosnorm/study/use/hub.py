"""The program's networks in the folder format of the Hugging Face Hub, from local folders alone."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from cosnorm.study.models import Recipe, build
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.inputs import pipeline_for
from cosnorm.study.train.learner import plan_of
from cosnorm.study.train.run import load_run

try:
    from huggingface_hub import PyTorchModelHubMixin
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'the Hub\'s folders need the package {error.name}: pip install "cosnorm[hub]"',
        name=error.name,
    ) from error

_FILES = ("config.json", "model.safetensors")
_DTYPES = {  # by their names in a file
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16
}  # fmt: skip
_MOST_TOLD = 300  # letters of what another library says
_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
_OPTIONS = frozenset({"map_location", "local_files_only"})


class HubNetwork(nn.Module, PyTorchModelHubMixin):
    """A network of `cosnorm.study.names` that `save_pretrained` writes and `from_pretrained` reads.

    network, shape, classes: as `cosnorm.study.models.build` takes them.
    recipe: the fields of a `cosnorm.study.models.Recipe`.
    sizes: width, channels and pool, where they are not those of `build`.

        net = HubNetwork("mlp", [6], 3, {"method": "pearson"}, {"width": 8})
        net.save_pretrained("saved")
        again = HubNetwork.from_pretrained("saved")
    """

    def __init__(
        self,
        network: str,
        shape: Sequence[int],
        classes: int,
        recipe: dict[str, Any],
        sizes: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.network = build(network, shape, classes, Recipe(**recipe), **(sizes or {}))

    def forward(self, input: Tensor) -> Tensor:
        return self.network(input)

    @classmethod
    def from_run(cls, run: str | Path | Storage) -> "HubNetwork":
        """The network of a run folder, as trained; it takes what `load_run(run).input_of` gives."""
        loaded = load_run(run)
        config, (recipe, sizes) = loaded.config, plan_of(loaded.config)
        shape = pipeline_for(config).output_shape(loaded.sample_shape)
        places = [list(shape), len(loaded.classes), asdict(recipe), sizes]
        network = cls(config.network, *places)
        network.network.load_state_dict(loaded.network.state_dict())
        return network.eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "HubNetwork":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read a folder that `save_pretrained` wrote; no server is asked, and no pickle is read.

        Raises RunError for anything else than such a folder.

        options: `map_location`, a device.
        """
        if not isinstance(folder, str | Path):
            raise TypeError(f"folder must be a path; got {type(folder).__name__} {folder!r}")
        device = _checked_device(options)
        _check(Path(folder))
        fixed = {"map_location": "cpu", "local_files_only": True, "strict": True}  # not a choice
        try:
            if differing := _differing(cls, Path(folder)):
                raise ValueError(differing)
            with torch.device("cpu"):  # whatever the default is
                network = super().from_pretrained(str(folder), **fixed)
            return network.to(device, _dtype(Path(folder)))
        except Exception as error:  # whatever a file can hold
            why = " ".join(str(error).split())
            raise RunError(
                f"{folder} holds no network that save_pretrained wrote, or a damaged one: "
                f"{type(error).__name__}: {why[:_MOST_TOLD]}: save it again, or copy it anew"
            ) from error


def _differing(kind: type[HubNetwork], folder: Path) -> str | None:
    """Where config.json and the weights do not fit, told before any memory is taken for them."""
    config = json.loads((folder / _FILES[0]).read_bytes())
    with torch.device("meta"):
        wanted = {key: list(t.shape) for key, t in kind(**config).state_dict().items()}
    with safe_open(folder / _FILES[1], "pt") as file:
        names = file.keys()
        found = {key: file.get_slice(key).get_shape() for key in names}
    for key in sorted(wanted.keys() | found.keys()):
        if wanted.get(key) != found.get(key):
            return f"{key} is {wanted.get(key)} by {_FILES[0]} and {found.get(key)} in {_FILES[1]}"
    _dtype(folder)
    return None


def _dtype(folder: Path) -> torch.dtype:
    """That of the weights, which come back as they were saved."""
    with safe_open(folder / _FILES[1], "pt") as file:
        names = file.keys()
        found = {key: file.get_slice(key).get_dtype() for key in names}
    kinds = sorted({found[key] for key in found if not key.endswith("num_batches_tracked")})
    if len(kinds) != 1 or kinds[0] not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise ValueError(f"the weights must be of one dtype of {known}; got {', '.join(kinds)}")
    return _DTYPES[kinds[0]]


def _checked_device(options: dict[str, Any]) -> torch.device:
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(f"from_pretrained takes folder and map_location; got {unknown[0]}")
    given = options.get("map_location", "cpu")
    try:
        device = torch.empty(0, device=given).device
        if device.type == "meta":
            raise ValueError("it holds no numbers")
    except Exception as error:  # whatever a device can lack
        raise ValueError(
            f"map_location must be a device of this machine; got {given!r}: leave it out for the "
            "CPU"
        ) from error
    return device


def _is_pickle(path: Path) -> bool:
    """By its name, or by its first bytes: a pickle's own, or an archive's, which may hold one, as
    torch's files do.
    """
    if not path.is_file() or path.suffix.lower() == ".safetensors":  # never a pickle to its reader
        return False
    if path.suffix.lower() in _PICKLES:
        return True
    with path.open("rb") as file:
        head = file.read(4)
    return head == b"PK\x03\x04" or head[:2] in (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(
            f"a network is read from a local folder; got {str(folder)!r}, which is none: "
            "download it first, and give the folder"
        )
    inside = (path for path in folder.rglob("*") if _is_pickle(path))
    pickles = sorted(str(path.relative_to(folder)) for path in inside)
    if pickles:
        raise RunError(
            f"{folder} holds {pickles[0]}, a pickle or an archive that may hold one, which could "
            "run anything: take a folder with model.safetensors and neither"
        )
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise RunError(
            f"{folder} lacks {' and '.join(missing)}: give a folder that save_pretrained wrote"
        )
