"""The command line. Each command imports what it needs when called, so that help comes at once."""

import logging
import os
from typing import Annotated

import typer

from cosnorm._version import __version__
from cosnorm.study.cli import datasets, studying, training, using
from cosnorm.study.cli.showing import ShownHandler

app = typer.Typer(
    name="cosnorm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose boxes cut the names of options short in 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare normalisations inside the dot product with the usual ones, on real data.",
)

app.command()(training.train)
app.command()(training.compare)
app.command()(training.reproduce)
app.command()(studying.study)
app.command()(using.report)
app.add_typer(datasets.app, name="data")
app.command()(using.export)
app.command()(using.predict)
# What follows the name of a benchmark is the benchmark's, --help too.
_from_the_name_on = {"allow_extra_args": True, "allow_interspersed_args": False}
app.command(context_settings=_from_the_name_on)(using.bench)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cosnorm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The program `cosnorm`."""
    # Weights of tens of megabytes come and go with every step; large pages make that cheap. Threads
    # that wait must not spin: beside any other busy process that costs ten times the training.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.getLogger("cosnorm").addHandler(ShownHandler())
    app(prog_name="cosnorm")
