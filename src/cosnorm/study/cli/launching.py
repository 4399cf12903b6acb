"""From flags to a launcher: in this process, seeds as one or not, or on a Ray cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.train.seeds import BatchSeeds, are_wanted, check_choice

if TYPE_CHECKING:
    from cosnorm.study.runs.config import Config
    from cosnorm.study.runs.progress import Watcher
    from cosnorm.study.train.launchers import Job, Launcher
    from cosnorm.study.train.stopping import Stop


class LauncherName(StrEnum):
    in_process = "in-process"
    ray = "ray"


Launched = Annotated[
    LauncherName, typer.Option("--launcher", help="One run after another, or a Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="ray: the cluster; else $RAY_ADDRESS, else one is started on this machine.",
    ),
]
CpusPerRun = Annotated[
    float | None, typer.Option(help="ray: CPUs, and so threads, of a run; default: 1.")
]
GpusPerRun = Annotated[
    float | None, typer.Option(help="ray: GPUs of a run, 0.25 for a quarter; default: 1 on cuda.")
]
BatchedSeeds = Annotated[
    BatchSeeds,
    typer.Option(
        "--batch-seeds", help="Train the seeds of the network mlp as one; auto: on a GPU."
    ),
]


@dataclass(frozen=True)
class Launching:
    """How the runs of a command are made."""

    name: LauncherName
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None
    batch_seeds: str = BatchSeeds.auto

    def __post_init__(self) -> None:
        flags = {
            "--ray-address": self.address,
            "--cpus-per-run": self.cpus,
            "--gpus-per-run": self.gpus,
        }
        given = [flag for flag, value in flags.items() if value is not None]
        if given and self.name != LauncherName.ray:
            raise ConfigError(f"{given[0]} does nothing in this process: add --launcher ray")
        if self.batch_seeds == BatchSeeds.on and self.name == LauncherName.ray:
            raise ConfigError(
                "--batch-seeds on trains runs as one in this process, and --launcher ray each by "
                "itself: leave one of them out"
            )

    def told(self, configs: "Sequence[Config]") -> str | None:
        """What there is to say of runs that train as one; "on" is refused where none can."""
        check_choice(configs, self.batch_seeds)
        seeds = len({config.seed for config in configs})
        if self.name == LauncherName.ray or seeds < 2:
            return None
        wanted = [config.method for config in configs if are_wanted(config, self.batch_seeds)]
        if not wanted:
            return None
        return (
            f"{seeds} seeds train as one ({', '.join(dict.fromkeys(wanted))}): the results are "
            "those of single runs up to rounding; --batch-seeds off for one run at a time"
        )

    def launcher(
        self, watcher: "Callable[[Job], Watcher] | None", stop: "Stop", **options: Any
    ) -> "Launcher":
        """options: as `InProcess` takes them."""
        if self.name == LauncherName.ray:
            from cosnorm.study.train.ray_cluster import RayCluster

            chosen = {"address": self.address, "cpus": self.cpus, "gpus": self.gpus}
            known = {key: value for key, value in chosen.items() if value is not None}
            return RayCluster(watcher, stop, **known, **options)
        from cosnorm.study.train.launchers import InProcess

        return InProcess(watcher, stop, batch_seeds=self.batch_seeds, **options)
