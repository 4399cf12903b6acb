"""`train`, `compare` and `reproduce`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosnorm.cli.display import closing, watcher_for
from cosnorm.cli.failures import DIVERGED, FAILED, STOPPED, fail, readable, resumable
from cosnorm.cli.options import (
    CheckpointSeconds,
    DataDir,
    Dataset,
    Epochs,
    Json,
    KeepCheckpoints,
    MaxMinutes,
    Methods,
    Out,
    Seeds,
    Steps,
    given_path,
)
from cosnorm.cli.settings import choice, chosen_device, with_settings
from cosnorm.cli.tables import reported
from cosnorm.experiments.config import METHODS, PAPER_METHODS, WITH_AFFINE, Config
from cosnorm.experiments.errors import ConfigError

if TYPE_CHECKING:
    from cosnorm.experiments.stopping import Stop
    from cosnorm.experiments.train import Outcome


@with_settings
@readable
def train(
    dataset: Dataset,
    method: Annotated[choice("method"), typer.Option(help="The normalisation.")],  # pyright: ignore
    out: Out,
    epochs: Annotated[int | None, typer.Option(min=1, help="Length in epochs.")] = None,
    steps: Steps = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything random.")] = 0,
    data_dir: DataDir = None,
    max_minutes: MaxMinutes = None,
    json: Json = False,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_checkpoints: KeepCheckpoints = True,
    **settings: Any,
) -> None:
    """Train one network.

    Given again, go on where it stopped, or say that it is done.
    """
    if (epochs is None) == (steps is None):
        raise ConfigError("give either --epochs or --steps")
    config = _configured(dataset, method, seed, epochs, steps, settings)
    from cosnorm.experiments.ranks import ranks_here
    from cosnorm.experiments.run import run

    watcher = watcher_for(json, config.name)
    try:
        with resumable(out), ranks_here() as ranks:
            outcome = run(
                config,
                out,
                data_dir=data_dir,
                watcher=watcher,
                stop=_stop(max_minutes),
                checkpoint_seconds=checkpoint_seconds,
                keep_checkpoints=keep_checkpoints,
                ranks=ranks,
            )
    finally:
        _let_go(watcher)
    if not ranks.is_first:  # which says all there is to say
        raise typer.Exit(_code_of(outcome))
    if outcome.missing:  # of which the watcher has told
        raise fail(f"{out} is not whole: {' and '.join(outcome.missing)} missing", FAILED)
    if json or outcome.status == "done":  # else the last line, on stderr, says it all
        watcher.end(outcome.status, outcome.summary)
    _leave_unless_done([outcome], out)


@with_settings
@readable
def compare(
    dataset: Dataset,
    out: Out,
    methods: Methods = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    steps: Steps = None,
    data_dir: DataDir = None,
    max_minutes: MaxMinutes = None,
    json: Json = False,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_checkpoints: KeepCheckpoints = True,
    **settings: Any,
) -> None:
    """Train every method with every seed.

    Then one table, one picture, one page. Given again, go on where it stopped.
    """
    _check_one_process()
    chosen = _methods(methods)
    configs = _all_configured(dataset, chosen, seeds, epochs, steps, settings)
    _tell_of_affine(chosen, settings)
    options = {"checkpoint_seconds": checkpoint_seconds, "keep_checkpoints": keep_checkpoints}
    _compared(configs, out, json, data_dir, _stop(max_minutes), options)
    reported(out, json)


@with_settings
@readable
def reproduce(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="mnist, 20news, cifar10, cifar100, svhn or all.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            parser=given_path, metavar="<path>", help="Folder; runs go to OUT/TABLE/METHOD-seedK."
        ),
    ] = Path("runs/reproduction"),
    methods: Methods = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    steps: Steps = None,
    data_dir: DataDir = None,
    max_minutes: MaxMinutes = None,
    json: Json = False,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_checkpoints: KeepCheckpoints = False,
    **settings: Any,
) -> None:
    """Repeat the paper's tables by its protocol.

    Then set what is measured beside what the paper says. Given again, go on where it stopped.
    """
    from cosnorm.data.errors import DataError
    from cosnorm.experiments.presets import PAPER

    if table not in (*PAPER, "all"):
        raise ConfigError(f"the table must be one of {', '.join(PAPER)} or all; got {table!r}")
    _check_one_process()
    stop, chosen = _stop(max_minutes), _methods(methods)
    tables = PAPER if table == "all" else (table,)
    configs = {t: _all_configured(t, chosen, seeds, epochs, steps, settings) for t in tables}
    _tell_of_affine(chosen, settings)
    options = {"checkpoint_seconds": checkpoint_seconds, "keep_checkpoints": keep_checkpoints}
    left_out = []
    for dataset in tables:
        try:
            _compared(configs[dataset], out / dataset, json, data_dir, stop, options, dataset)
        except DataError as error:
            if len(left_out) == len(tables) - 1:  # then there is nothing to report
                raise
            left_out.append(dataset)
            typer.echo(f"cosnorm: {dataset} is left out: {error}", err=True)
    reported(out, json)
    if left_out:
        raise fail(f"left out for want of data: {', '.join(left_out)}; see above", FAILED)


def _configured(
    dataset: str,
    method: str,
    seed: int,
    epochs: int | None,
    steps: int | None,
    settings: dict[str, Any],
) -> Config:
    from cosnorm.experiments.presets import NAMED, configure

    if not dataset.strip():
        raise ConfigError("--dataset is empty: give the name of a set, an .npz file or a folder")
    device = chosen_device(settings.get("device"))
    place = dataset if dataset in NAMED else str(Path(dataset).expanduser().resolve())
    others = {key: value for key, value in settings.items() if key != "device"}
    return configure(place, method, seed, device=device, epochs=epochs, steps=steps, **others)


def _check_one_process() -> None:
    from cosnorm.experiments.ranks import are_launched

    if are_launched():
        raise ConfigError(
            "a comparison runs in one process; got several from torchrun: "
            "use torchrun with `cosnorm train`"
        )


def _all_configured(
    dataset: str,
    methods: Sequence[str],
    seeds: int,
    epochs: int | None,
    steps: int | None,
    settings: dict[str, Any],
) -> list[Config]:
    """Every method with every seed; affine goes to the methods that have it, if any has."""
    some = any(method in WITH_AFFINE for method in methods)
    skipping = {**settings, "affine": None}
    return [
        _configured(dataset, method, seed, epochs, steps, chosen)
        for method in methods
        for chosen in [skipping if some and method not in WITH_AFFINE else settings]
        for seed in range(seeds)
    ]


def _tell_of_affine(methods: Sequence[str], settings: dict[str, Any]) -> None:
    having = [method for method in methods if method in WITH_AFFINE]
    others = [method for method in methods if method not in WITH_AFFINE]
    if settings.get("affine") and others:
        typer.echo(
            f"cosnorm: --affine is for {', '.join(having)}; {', '.join(others)} "
            f"{'has' if len(others) == 1 else 'have'} no affine, and none is recorded there",
            err=True,
        )


def _methods(given: str | None) -> Sequence[str]:
    if given is None:
        return PAPER_METHODS
    named = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in named if name not in METHODS]
    if unknown or not named:
        raise ConfigError(f"methods must be some of {','.join(METHODS)}; got {given!r}")
    return named


def _stop(max_minutes: float | None) -> "Stop":
    from cosnorm.experiments.stopping import Stop

    if max_minutes is not None and not max_minutes >= 0:
        raise ConfigError(f"--max-minutes must be at least 0; got {max_minutes}")
    return Stop(max_minutes)


def _compared(
    configs: Sequence[Config],
    out: Path,
    as_json: bool,
    data_dir: Path | None,
    stop: "Stop",
    options: dict[str, Any],
    table: str | None = None,
) -> None:
    from cosnorm.experiments.compare import OneByOne, jobs_of

    named = {c.name: f"{table}/{c.name}" if table else c.name for c in configs}
    watchers = {name: watcher_for(as_json, shown) for name, shown in named.items()}
    launch = OneByOne(lambda job: watchers[job.config.name], stop, data_dir, **options)
    try:
        with resumable(out):
            for job, outcome in launch(jobs_of(configs, out)):
                watchers[job.config.name].end(outcome.status, outcome.summary)
                if outcome.status == "stopped":
                    _leave_unless_done([outcome], out)
    finally:
        for watcher in watchers.values():
            _let_go(watcher)


def _let_go(watcher: Any) -> None:
    """Leave the terminal as it was, whatever happened."""
    if hasattr(watcher, "progress"):
        watcher.progress.stop()


def _code_of(outcome: "Outcome") -> int:
    if outcome.reason is not None:
        return STOPPED[outcome.reason]
    return DIVERGED if outcome.status == "diverged" else 0


def _leave_unless_done(outcomes: Sequence["Outcome"], out: Path) -> None:
    for outcome in outcomes:
        if outcome.status == "stopped":
            assert outcome.reason is not None
            why = {"max_minutes": "the time is up"}.get(outcome.reason, outcome.reason)
            raise fail(
                f"stopped ({why}) and saved in {out}: give the same command again to go on",
                _code_of(outcome),
            )
        if outcome.status == "diverged":
            raise fail(
                f"{closing('diverged', outcome.summary)}; recorded in {out}: try a lower --lr",
                _code_of(outcome),
            )
