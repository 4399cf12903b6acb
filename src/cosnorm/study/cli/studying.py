"""`study`: the paper's claims in words."""

from typing import Annotated

import typer

from cosnorm.study.claims import STUDIES, study_named
from cosnorm.study.cli.configs import check_data_dir
from cosnorm.study.cli.failures import STOPPED, fail, readable, resumable
from cosnorm.study.cli.launching import (
    BatchedSeeds,
    CpusPerRun,
    GpusPerRun,
    Launched,
    LauncherName,
    Launching,
    RayAddress,
)
from cosnorm.study.cli.options import DataDir, Epochs, MaxMinutes, Out, completing
from cosnorm.study.cli.settings import choice, chosen_device
from cosnorm.study.cli.training import stop_after
from cosnorm.study.train.seeds import BatchSeeds


@readable
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"{', '.join(STUDIES)}.", autocompletion=completing(STUDIES)
        ),
    ],
    out: Out,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="As planned: MNIST or the data named, 3 seeds; else digits, minutes."
        ),
    ] = False,
    epochs: Epochs = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each method.")] = None,
    device: Annotated[
        choice("device") | None,  # pyright: ignore
        typer.Option(help="Default: cuda where there is one."),
    ] = None,
    data_dir: DataDir = None,
    max_minutes: MaxMinutes = None,
    launcher: Launched = LauncherName.in_process,
    ray_address: RayAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    batch_seeds: BatchedSeeds = BatchSeeds.auto,
) -> None:
    """Test one of the paper's claims in words.

    Runs, a figure, and what they say of it. Given again, go on where it stopped.
    """
    wanted = study_named(name)
    launching = Launching(launcher, ray_address, cpus_per_run, gpus_per_run, batch_seeds)
    from cosnorm.study.claims.study import conduct

    place = chosen_device(None if device is None else device.value)
    setting = wanted.setting(full, epochs=epochs, seeds=seeds, device=place)
    check_data_dir([setting.dataset], data_dir, launcher != LauncherName.ray)
    with resumable(out):
        options = {"data_dir": data_dir, "keep_checkpoints": False}
        launch = launching.launcher(None, stop_after(max_minutes), **options)
        result = conduct(wanted, setting, out, data_dir=data_dir, launcher=launch, tell=typer.echo)
    if result.reason is not None:
        told = f"stopped and saved in {out}: give the same command again to go on"
        raise fail(told, STOPPED[result.reason])
    typer.echo(f"The paper: {wanted.claim}")
    for finding in result.findings:
        typer.echo(f"- {finding}")
    for file in result.files:
        typer.echo(f"{'result' if file.endswith('.json') else 'figure'}: {file}")
