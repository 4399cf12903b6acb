"""The program's networks in the folder format of the Hugging Face Hub, from local folders alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from cosnorm.study.models import Recipe, build
from cosnorm.study.runs.errors import RunError

_FILES = ("config.json", "model.safetensors")
_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})


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
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "HubNetwork":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read a folder that `save_pretrained` wrote; no server is asked, and no pickle is read."""
        _check(Path(folder))
        return super().from_pretrained(str(folder), local_files_only=True, strict=True, **options)


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(
            f"a network is read from a local folder; got {str(folder)!r}, which is none: "
            "download it first, and give the folder"
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in _PICKLES)
    if pickles:
        raise RunError(
            f"{folder} holds {pickles[0]}, a pickle, which could run anything: take a folder with "
            "model.safetensors and no pickle"
        )
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise RunError(
            f"{folder} lacks {' and '.join(missing)}: give a folder that save_pretrained wrote"
        )
