"""The parameters of a run, from the best of what its folder has."""

from typing import Any, NamedTuple

from torch import Tensor

from cosnorm.study.runs.checkpoint import load_checkpoint, other_settings
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.record import AVERAGE, MODEL, RunFolder
from cosnorm.study.runs.sealing import DamagedCheckpoint, unseal

_RESTORE = (
    "restore it from a copy, or delete it and summary.json and give the training command again"
)


class Parameters(NamedTuple):
    """A network's tensors, what its data was, their file, and what there is to warn of."""

    tensors: dict[str, Tensor]
    data: dict[str, Any]
    place: str
    warning: str | None = None


def load_parameters(folder: RunFolder, config: Config, averaged: bool) -> Parameters:
    """Final parameters, averaged where wanted and there; else those of the last checkpoint.

    A warning comes with what is not the final, or not the average. A file of a run with other
    settings is refused; one that does not tell them, as earlier versions wrote it, is taken.
    """
    wanted = (AVERAGE, MODEL) if averaged and config.ema_decay else (MODEL,)
    for name in wanted:
        content = folder.storage.read(name)
        if content is None:
            continue
        found = _final(f"{folder.storage.label}/{name}", content, config)
        if name == wanted[0]:
            return found
        return found._replace(
            warning=f"{folder.storage.label} has no {wanted[0]}: {name} is used, the last "
            "parameters and not their average"
        )
    return _of_checkpoint(folder, config, averaged)


def _final(place: str, content: bytes, config: Config) -> Parameters:
    try:
        tensors, state = unseal(content, place)
    except DamagedCheckpoint as error:
        raise RunError(f"{place} is damaged: {error}; {_RESTORE}") from error
    if "data" not in state:
        raise RunError(f"{place} holds no parameters of a run; {_RESTORE}")
    if "config" in state and (other := other_settings(state["config"], config)):
        raise RunError(
            f"{place} is of a run with other settings than config.json ({other}): restore the one "
            "that is wrong from a copy"
        )
    return Parameters(tensors, state["data"], place)


def _of_checkpoint(folder: RunFolder, config: Config, averaged: bool) -> Parameters:
    label = folder.storage.label
    found, _ = load_checkpoint(folder.storage, config)
    if found is None:
        raise RunError(
            f"{label} has no parameters: neither {MODEL} nor a checkpoint of its settings"
        )
    tensors, state = found
    used = f"its checkpoint of step {state['step']:,} of {_total(config, state['data'])} is used"
    is_over = folder.summary() is not None
    state_of_run = f"is over, but {folder.told_missing(config)};" if is_over else "is not over:"
    prefix = "average." if averaged and "average_count" in tensors else "network."
    chosen = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return Parameters(
        chosen, state["data"], f"{label}/checkpoints", f"{label} {state_of_run} {used}"
    )


def _total(config: Config, data: dict[str, Any]) -> str:
    """How many steps the whole run has."""
    if config.steps is not None:
        return f"{config.steps:,}"
    rows = data["train"]
    return f"{(config.epochs or 0) * (rows // min(config.batch_size, rows)):,}"
