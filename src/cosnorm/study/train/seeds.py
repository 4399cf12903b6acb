"""Which runs train as one: those that differ in their seed alone. Loads no torch by itself."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cosnorm.methods import METHODS
from cosnorm.study.names import NETWORKS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.presets import idle_settings

if TYPE_CHECKING:
    from cosnorm.study.train.launchers import Job

MOST = 32  # runs as one: what is gained per run has levelled off, and memory has not


class BatchSeeds(StrEnum):
    """Which runs train as one: all that can, none, or ("auto") those on a GPU, which one small
    network leaves idle.
    """

    auto = "auto"
    on = "on"
    off = "off"


def groups_of(jobs: "Sequence[Job]", choice: str) -> "list[list[Job]]":
    """The jobs in groups that train as one, in the order of their first; most have one member.

    choice: of `BatchSeeds`.
    """
    groups: dict[object, list[Job]] = {}
    for number, job in enumerate(jobs):
        alone = job.is_over or not are_wanted(job.config, choice)
        groups.setdefault(number if alone else replace(job.config, seed=0), []).append(job)
    return [each[i : i + MOST] for each in groups.values() for i in range(0, len(each), MOST)]


def check_choice(configs: Sequence[Config], choice: str) -> None:
    """Refuse "on" where no run can be one of several."""
    if choice == BatchSeeds.on and len({config.seed for config in configs}) == 1:
        raise ConfigError(
            "--batch-seeds on trains the seeds of a method as one, and there is one seed: give "
            "--seeds 2 or more, or leave --batch-seeds out"
        )
    needs = [obstacle(config) for config in configs]
    if choice == BatchSeeds.on and needs and None not in needs:
        raise ConfigError(f"seeds train as one only with {needs[0]}: leave --batch-seeds out")


def are_wanted(config: Config, choice: str) -> bool:
    """Whether runs like this one train as one, where there are several."""
    if choice == BatchSeeds.off or (choice == BatchSeeds.auto and config.device != "cuda"):
        return False
    return obstacle(config) is None


def obstacle(config: Config) -> str | None:
    """What a run would need to be one of several that train as one; None where it has it all."""
    network, method = NETWORKS[config.network], METHODS[config.method]
    is_sparse = config.sparse and method.sparse and "sparse" not in idle_settings(config)
    needs = {
        "the network mlp": network.stacks,
        "--precision fp32, tf32 or fp64": config.precision != "bf16",
        "--no-compile": not config.compile,
        "--no-sparse": not is_sparse,
    }
    found = next((need for need, has in needs.items() if not has), None)
    return found or (None if _is_served(config) else "one of cosnorm's own methods")


def _is_served(config: Config) -> bool:
    from cosnorm.nn.stacked import SERVED

    return METHODS[config.method].block("Linear") in SERVED
