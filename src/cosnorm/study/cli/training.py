"""`train`, `compare` and `reproduce`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosnorm.study.cli.configs import (
    all_configured,
    check_data_dir,
    check_used,
    chosen_methods,
    configured,
)
from cosnorm.study.cli.display import closing, watcher_for, watchers_for
from cosnorm.study.cli.failures import DIVERGED, FAILED, STOPPED, fail, readable, resumable
from cosnorm.study.cli.launching import (
    BatchedSeeds,
    CpusPerRun,
    GpusPerRun,
    Launched,
    LauncherName,
    Launching,
    RayAddress,
)
from cosnorm.study.cli.options import (
    CheckpointSeconds,
    DataDir,
    Dataset,
    Epochs,
    Json,
    KeepCheckpoints,
    Logger,
    MaxMinutes,
    Methods,
    Out,
    RankTimeout,
    Seeds,
    Shard,
    Steps,
    Watch,
    completing,
    given_place,
)
from cosnorm.study.cli.refusals import said_once
from cosnorm.study.cli.settings import choice, with_settings
from cosnorm.study.cli.showing import shown
from cosnorm.study.cli.tables import reported
from cosnorm.study.names import DATASETS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.train.seeds import BatchSeeds

if TYPE_CHECKING:
    from cosnorm.study.runs.progress import Watcher
    from cosnorm.study.train.stopping import Stop
    from cosnorm.study.train.train import Outcome


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
    watch: Watch = False,
    log: Logger = None,
    rank_timeout: RankTimeout = None,
    shard: Shard = False,
    **settings: Any,
) -> None:
    """Train one network.

    Given again, go on where it stopped, or say that it is done.
    """
    if (epochs is None) == (steps is None):
        raise ConfigError("give either --epochs or --steps")
    config = configured(dataset, method, seed, epochs, steps, settings)
    check_used([config], settings)
    check_data_dir([config.dataset], data_dir)
    from cosnorm.study.runs.logs import logged, loggers_named
    from cosnorm.study.runs.record import RunFolder
    from cosnorm.study.runs.storage import storage_at
    from cosnorm.study.train.ranks import Ended, check_launched, ranks_here
    from cosnorm.study.train.run import run

    together = {"--sync-batch-norm": settings.get("sync_batch_norm")}
    check_launched({"--rank-timeout": rank_timeout, "--shard": shard, **together})
    watcher = watcher_for(json, config.name)
    watched = logged(watcher, loggers_named(log, out), RunFolder(storage_at(out)))
    try:
        with ranks_here(config.device, rank_timeout, shard) as ranks:
            with resumable(out), said_once(ranks, lambda: _let_go(watcher)):
                outcome = run(
                    config,
                    out,
                    data_dir=data_dir,
                    watcher=watched,
                    stop=stop_after(max_minutes),
                    checkpoint_seconds=checkpoint_seconds,
                    keep_checkpoints=keep_checkpoints,
                    watch=watch,
                    ranks=ranks,
                )
            if outcome.status == "diverged" or outcome.reason == "max_minutes":
                ranks.end(_code_of(outcome))
            code = _code_of(outcome)
            if ranks.is_first:  # before the others leave, for whose codes torchrun would end it
                _let_go(watcher)
                code = _concluded(outcome, out, json, watcher, watched)
    except Ended as ended:
        code = ended.code
    finally:
        _let_go(watcher)
    raise typer.Exit(code)


def _concluded(outcome: "Outcome", out: str, json: bool, watcher: Any, watched: Any) -> int:
    """Say the last lines of `train`; its exit code."""
    watched.close(outcome.status, outcome.summary)
    try:
        if outcome.missing:  # of which the watcher has told
            raise fail(f"{out} is not whole: {' and '.join(outcome.missing)} missing", FAILED)
        if json or outcome.status == "done":  # else the last line, on stderr, says it all
            watcher.end(outcome.status, outcome.summary)
        _leave_unless_done(outcome, out)
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


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
    watch: Watch = False,
    log: Logger = None,
    launcher: Launched = LauncherName.in_process,
    ray_address: RayAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    batch_seeds: BatchedSeeds = BatchSeeds.auto,
    **settings: Any,
) -> None:
    """Train every method with every seed.

    Then one table, one picture, one page. Given again, go on where it stopped.
    """
    _check_one_process(settings)
    launching = Launching(launcher, ray_address, cpus_per_run, gpus_per_run, batch_seeds)
    chosen = chosen_methods(methods)
    configs = all_configured(dataset, chosen, seeds, epochs, steps, settings)
    check_used(configs, settings)
    check_data_dir([configs[0].dataset], data_dir, launcher != LauncherName.ray)
    options = {
        "data_dir": data_dir,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_checkpoints": keep_checkpoints,
        "watch": watch,
    }
    _compared(configs, out, json, stop_after(max_minutes), launching, options, log)
    reported(out, json)


@with_settings
@readable
def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="mnist, 20news, cifar10, cifar100, svhn or all.",
            autocompletion=completing((*DATASETS, "all"), but=("digits",)),
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            parser=given_place, metavar="<path>", help="Folder; runs go to OUT/TABLE/METHOD-seedK."
        ),
    ] = "runs/reproduction",
    methods: Methods = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    steps: Steps = None,
    data_dir: DataDir = None,
    max_minutes: MaxMinutes = None,
    json: Json = False,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_checkpoints: KeepCheckpoints = False,
    watch: Watch = False,
    log: Logger = None,
    launcher: Launched = LauncherName.in_process,
    ray_address: RayAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    batch_seeds: BatchedSeeds = BatchSeeds.auto,
    **settings: Any,
) -> None:
    """Repeat the paper's tables by its protocol.

    Then set what is measured beside what the paper says. Given again, go on where it stopped.
    """
    from cosnorm.study.data.errors import DataError
    from cosnorm.study.runs.presets import PAPER
    from cosnorm.study.runs.storage import storage_at

    if table not in (*PAPER, "all"):
        raise ConfigError(f"the table must be one of {', '.join(PAPER)} or all; got {table!r}")
    _check_one_process(settings)
    check_data_dir(list(PAPER), data_dir, launcher != LauncherName.ray)
    launching = Launching(launcher, ray_address, cpus_per_run, gpus_per_run, batch_seeds)
    stop, chosen = stop_after(max_minutes), chosen_methods(methods)
    tables = PAPER if table == "all" else (table,)
    configs = {t: all_configured(t, chosen, seeds, epochs, steps, settings) for t in tables}
    check_used([config for some in configs.values() for config in some], settings)
    options = {
        "data_dir": data_dir,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_checkpoints": keep_checkpoints,
        "watch": watch,
    }
    left_out = []
    for dataset in tables:
        try:
            place = storage_at(out).at(dataset).label
            _compared(configs[dataset], place, json, stop, launching, options, log, dataset)
        except DataError as error:
            if len(left_out) == len(tables) - 1:  # then there is nothing to report
                raise
            left_out.append(dataset)
            typer.echo(f"cosnorm: {dataset} is left out: {shown(error)}", err=True)
    reported(out, json)
    if left_out:
        raise fail(f"left out for want of data: {', '.join(left_out)}; see above", FAILED)


def _check_one_process(settings: Mapping[str, Any]) -> None:
    from cosnorm.study.train.ranks import are_launched

    if are_launched():
        raise ConfigError(
            "a comparison runs in one process; got several from torchrun: "
            "use torchrun with `cosnorm train`"
        )
    if settings.get("sync_batch_norm"):
        raise ConfigError(
            "--sync-batch-norm does nothing here, as a run of a comparison has one process: leave "
            "it out, or use torchrun with `cosnorm train`"
        )


def stop_after(max_minutes: float | None) -> "Stop":
    """What ends a command when its time is up, or a signal comes."""
    from cosnorm.study.train.ranks import are_launched
    from cosnorm.study.train.stopping import StartedStop, Stop

    if max_minutes is not None and not max_minutes >= 0:
        raise ConfigError(f"--max-minutes must be at least 0; got {max_minutes}")
    return (StartedStop if are_launched() else Stop)(max_minutes)


def _compared(
    configs: Sequence[Config],
    out: str,
    as_json: bool,
    stop: "Stop",
    launching: Launching,
    options: dict[str, Any],
    log: Sequence[str] | None,
    table: str | None = None,
) -> None:
    from cosnorm.study.cli.outlook import Outlook, opening
    from cosnorm.study.runs.logs import logged, loggers_named
    from cosnorm.study.runs.record import RunFolder
    from cosnorm.study.runs.storage import storage_at
    from cosnorm.study.train.compare import compare
    from cosnorm.study.train.launchers import Job

    methods, names = [config.method for config in configs], [config.name for config in configs]
    shown_as = [f"{table}/{name}" if table else name for name in names]
    watchers = dict(zip(names, watchers_for(as_json, shown_as, Outlook(methods)), strict=True))
    loggers_named(log, out)  # refused before anything is trained
    together = launching.told(configs)

    def watcher_of(job: Job) -> "Watcher":
        loggers = loggers_named(log, out)
        return logged(watchers[job.config.name], loggers, RunFolder(job.storage))

    launcher = launching.launcher(watcher_of, stop, **options)
    if not as_json:
        over = sum(RunFolder(storage_at(out).at(name)).is_over for name in names)
        typer.echo(opening(len(configs), len(set(methods)), over, table))
        if together:
            typer.echo(together)
    try:
        with resumable(out):
            outcomes = compare(configs, launcher, out)
    finally:
        for watcher in watchers.values():
            _let_go(watcher)
    for outcome in outcomes.values():
        if outcome.status == "stopped":
            _leave_unless_done(outcome, out)


def _let_go(watcher: Any) -> None:
    """Leave the terminal as it was, whatever happened."""
    if hasattr(watcher, "progress"):
        watcher.progress.stop()


def _code_of(outcome: "Outcome") -> int:
    if outcome.reason is not None:
        return STOPPED[outcome.reason]
    return DIVERGED if outcome.status == "diverged" else 0


def _leave_unless_done(outcome: "Outcome", out: str) -> None:
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
