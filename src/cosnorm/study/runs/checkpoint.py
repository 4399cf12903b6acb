"""States to go on from.

A checkpoint is one sealed file; two are kept, so that one is always whole. Where processes hold
parts of the tensors, these lie in files beside it (`shards`), written before it.

The state holds the settings of the run too: a checkpoint that was copied in from another run is
passed over, even where its tensors would fit.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError, DamagedFile
from cosnorm.study.runs.record import differences
from cosnorm.study.runs.sealing import DamagedCheckpoint, seal, unseal
from cosnorm.study.runs.shards import assembled, check_shards, drop_shards
from cosnorm.study.runs.storage import Storage

_FOLDER = "checkpoints/step-"
_KEPT = 2


def save_checkpoint(
    storage: Storage,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    config: Config,
) -> None:
    """Write the state of `config`'s run at `step`; then, and only then, all but the last two go.

    state: with `shards`, where some of the tensors are in files beside it (`study.runs.shards`).
    """
    told = {**state, "step": step, "config": config.to_dict()}
    storage.write(f"{_FOLDER}{step:010d}.safetensors", seal(tensors, told))
    names = storage.names(_FOLDER)
    for name in names[:-_KEPT]:
        storage.delete(name)
    kept = {each: None for name in names[-_KEPT:] if (each := _step_of(name)) is not None}
    drop_shards(storage, kept | {step: state.get("shards", {}).get("save", "")})


def load_checkpoint(
    storage: Storage, config: Config, *, whole: bool = True
) -> tuple[tuple[dict[str, Tensor], dict[str, Any]] | None, list[str]]:
    """The last whole checkpoint of `config`'s run, or None; and what there is to warn of.

    One that is damaged, or of other settings, is passed over; one of an unknown format is refused,
    since a later version may go on from it. One that does not say its settings,
    as earlier versions wrote it, is taken: the folder is that of `config`.

    whole: with the tensors that are in files beside it; with False these are only looked at.
    """
    warnings: list[str] = []
    for name in reversed(storage.names(_FOLDER)):
        place = f"{storage.label}/{name}"
        try:
            tensors, state = unseal(storage.read(name) or b"", place)
            _check_state(state)
            if "shards" in state:
                tensors |= _of_shards(storage, state, whole)
        except (DamagedCheckpoint, DamagedFile) as error:
            warnings.append(f"{place} is damaged: {error}; going back before it")
            continue
        if "config" not in state:
            warnings.append(
                f"{place} does not say of which settings it is, as earlier versions wrote it; it "
                "is taken for this run's"
            )
        elif other := other_settings(state["config"], config):
            warnings.append(
                f"{place} is of a run with other settings ({other}): it is not used, and removed "
                "from here; going back before it"
            )
            continue
        return (tensors, state), warnings
    return None, warnings


def _of_shards(storage: Storage, state: Mapping[str, Any], whole: bool) -> dict[str, Tensor]:
    try:
        if whole:
            return assembled(storage, state["step"], state["shards"])
        check_shards(storage, state["step"], state["shards"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedCheckpoint("its parts are not as it says") from error
    return {}


def _check_state(state: Mapping[str, Any]) -> None:
    """A sealed file may be another than a checkpoint: final parameters are sealed too."""
    if lacking := [key for key in ("step", "seconds", "data") if key not in state]:
        raise DamagedCheckpoint(
            f"it is whole, but no state to go on from: it has no {' and no '.join(lacking)}"
        )


def other_settings(stored: Any, config: Config) -> str:
    """In what stored settings differ from `config`; nothing where they do not."""
    if not isinstance(stored, dict):
        return "they cannot be read"
    try:
        return differences(Config.from_dict(stored), config)
    except ConfigError as error:
        return str(error)


def drop_checkpoints(storage: Storage, after: int = -1) -> None:
    """Remove all checkpoints later than step `after`."""
    kept: dict[int, str | None] = {}
    for name in storage.names(_FOLDER):
        step = _step_of(name)
        if step is None or step > after:
            storage.delete(name)
        else:
            kept[step] = None
    drop_shards(storage, kept)


def saved_steps(storage: Storage) -> set[int]:
    """The steps of which there are checkpoints, whole or not."""
    return {step for name in storage.names(_FOLDER) if (step := _step_of(name)) is not None}


def _step_of(name: str) -> int | None:
    number = name.removeprefix(_FOLDER).removesuffix(".safetensors")
    return int(number) if number.isdigit() else None
