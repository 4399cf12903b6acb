"""`report`, `export`, `predict` and `bench`."""

import json as json_format
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from cosnorm.study.cli.failures import FAILED, fail, readable
from cosnorm.study.cli.options import completing, given_path, given_place
from cosnorm.study.cli.showing import shown
from cosnorm.study.cli.tables import print_files
from cosnorm.study.runs.errors import ConfigError, RunWarning

BENCHMARKS = ("layers", "linear", "models", "network", "sparse", "training")

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
RunPlace = Annotated[str, typer.Argument(parser=given_place, metavar="RUN", help="A run folder.")]


@contextmanager
def warnings_told() -> Iterator[None]:
    """Say what there is to warn of in a run as a line on stderr, whatever filters are set."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def told(message: Any, category: type[Warning], *place: Any) -> None:
            if issubclass(category, RunWarning):
                typer.echo(f"cosnorm: warning: {shown(message)}", err=True)
            else:
                others(message, category, *place)

        warnings.showwarning = told
        warnings.simplefilter("always", RunWarning)
        yield


@readable
def report(
    runs: Annotated[
        list[str],
        typer.Argument(parser=given_place, metavar="RUN", help="Run folders, or folders of them."),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            parser=given_place, metavar="<path>", help="Default: report/ in the first folder."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    json: Json = False,
) -> None:
    """Write tables, figures and the page for runs."""
    from cosnorm.study.report import write_report
    from cosnorm.study.runs.storage import storage_at

    files = write_report(runs, out or storage_at(runs[0]).at("report"), title=title)
    if json:
        names = ("page", "markdown", "latex", "csv")
        told = {name: getattr(files, name) for name in names}
        typer.echo(json_format.dumps({**told, "figures": list(files.figures)}))
    else:
        print_files(files)


@readable
def export(
    run: RunPlace,
    out: Annotated[
        str | None,
        typer.Option(parser=given_place, metavar="<path>", help="Folder; default: RUN/export."),
    ] = None,
    averaged: Annotated[bool, typer.Option(help="The moving average, if there is one.")] = True,
    json: Json = False,
) -> None:
    """Write a run's network as ONNX and safetensors.

    The names of its classes go beside them, in labels.json.
    """
    from cosnorm.study.runs.storage import storage_at
    from cosnorm.study.use.export import export_run

    with warnings_told():
        files = export_run(run, out or storage_at(run).at("export"), averaged=averaged)
    told = {"onnx": files.onnx, "safetensors": files.safetensors, "labels": files.labels}
    if json:
        typer.echo(json_format.dumps(told))
    else:
        typer.echo("\n".join(map(shown, told.values())))


@readable
def predict(
    run: RunPlace,
    file: Annotated[
        Path,
        typer.Argument(
            parser=given_path,
            metavar="FILE",
            help="An image, a folder of images, .npy, .npz, .csv; texts: a .txt, a folder of them.",
        ),
    ],
    averaged: Annotated[bool, typer.Option(help="The moving average, if there is one.")] = True,
    json: Json = False,
) -> None:
    """Classify with a run's network.

    A line for each row: name, class, probability. A file of a folder that cannot be classified has
    a line too, with - for class and probability (--json: null, and the error), and the exit code is
    1 after the others.
    """
    from cosnorm.study.use.predict import predict_file

    errors = []
    with warnings_told():
        rows = predict_file(run, file, averaged=averaged)
    for row in rows:
        errors += [row.error] if row.error else []
        if json:
            told = {"name": row.name, "class": row.label, "probability": row.probability}
            typer.echo(json_format.dumps(told | ({"error": row.error} if row.error else {})))
        else:
            probability = "-" if row.probability is None else f"{row.probability:.4f}"
            typer.echo(f"{shown(row.name)}\t{shown(row.label or '-')}\t{probability}")
    if errors:
        number = f"{len(errors)} of the files " + ("is" if len(errors) == 1 else "are")
        raise fail(f"{number} not classified, first {errors[0]}", FAILED)


@readable
def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"{', '.join(BENCHMARKS)}; its arguments follow.",
            autocompletion=completing(BENCHMARKS),
        ),
    ],
) -> None:
    """Measure speed.

    Of layers, of models by name, a network's step, sparse rows, or a whole run.
    `cosnorm bench NAME --help` lists the arguments of a benchmark.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"the benchmark must be one of {', '.join(BENCHMARKS)}; got {name!r}")
    code = import_module(f"cosnorm.study.bench.{name}").main(list(context.args))
    if code:
        raise fail(f"the benchmark {name} ended with code {code}", FAILED)
