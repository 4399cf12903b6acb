"""`data list`, `data verify`, `data fetch`."""

import json as json_format
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cosnorm.study.cli.failures import FAILED, fail, readable
from cosnorm.study.cli.options import DataDir, completing
from cosnorm.study.cli.showing import shown
from cosnorm.study.names import DATASETS
from cosnorm.study.runs.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="What data is there, is it whole, and fetch it.")

_ELSEWHERE = ("embedded", "added")  # sets that are in no folder of ours
_FETCHED = completing(DATASETS, but=("digits",))
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="mnist, 20news, cifar10, cifar100 or svhn.", autocompletion=_FETCHED
    ),
]


@app.command("list")
@readable
def list_sets(data_dir: DataDir = None, json: Json = False) -> None:
    """Every named data set, and what of it is there."""
    from cosnorm.study.data import listing

    found = listing(data_dir)
    if json:
        typer.echo(json_format.dumps([asdict(entry) for entry in found], default=str, indent=2))
        return
    for entry in found:
        size = f"{entry.bytes_to_fetch / 1e6:,.0f} MB " if entry.bytes_to_fetch else ""
        where = entry.folder or ("" if entry.state in _ELSEWHERE else f"{size}to fetch")
        typer.echo(shown(f"{entry.name:10} {entry.state:14} {entry.title}  {where}".rstrip()))


@app.command()
@readable
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Sets; default: all that are there.", autocompletion=_FETCHED
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Check files against the publisher's checksums.

    Exit code 1 if one is not whole.
    """
    from cosnorm.study.data import listing
    from cosnorm.study.data import verify as check

    present = [e.name for e in listing(data_dir) if e.state not in (*_ELSEWHERE, "absent")]
    checks = {name: check(name, data_dir) for name in names or present}
    if json:
        told = {name: [asdict(file) for file in files] for name, files in checks.items()}
        typer.echo(json_format.dumps(told, default=str, indent=2))
    elif not checks:
        typer.echo("no data set is there; `cosnorm data fetch NAME` brings one")
    for name, files in checks.items() if not json else ():
        for file in files:
            typer.echo(shown(f"{name}: {file.path}: {file.state} {file.detail}".rstrip()))
        if not files:
            typer.echo(f"{name}: not a set of files, nothing to check")
    bad = [file for files in checks.values() for file in files if file.state != "ok"]
    if bad:
        raise fail(f"{len(bad)} of the files are not whole, first {bad[0].path}", FAILED)


@app.command()
@readable
def fetch(
    name: Name,
    data_dir: DataDir = None,
    mirror: Annotated[str | None, typer.Option(help="Address to ask instead.")] = None,
    extra: Annotated[
        bool | None,
        typer.Option(help="svhn: with the 1.3 GB of extra images.  [default: extra]"),
    ] = None,
    json: Json = False,
) -> None:
    """Download, check and unpack a published set.

    Interrupted, run it again to go on.
    """
    from cosnorm.study.data import fetch as bring

    if extra is not None and name != "svhn":
        flag = "--extra" if extra else "--no-extra"
        raise ConfigError(f"{flag} does nothing here, as it needs the data set svhn: leave it out")
    extra = extra is not False
    fetched = bring(name, data_dir, mirror=mirror, extra=extra, progress=_progress(json))
    if json:
        typer.echo(json_format.dumps(asdict(fetched), default=str))
    elif fetched.bytes_received:
        size = fetched.bytes_received / 1e6
        typer.echo(
            f"{name}: {size:,.1f} MB received, {len(fetched.files)} files in {shown(fetched.root)}"
        )
    else:
        typer.echo(f"{name}: all of it is in {shown(fetched.root)} already")


def _progress(json: bool) -> Any:
    """A moving line on a terminal; silence elsewhere."""
    if json or not sys.stderr.isatty():
        return None

    def show(file: str, done: int, total: int | None) -> None:
        of = "" if total is None else f" of {total / 1e6:,.1f}"
        end = "\n" if total is not None and done >= total else ""
        typer.echo(f"\r{file}: {done / 1e6:,.1f}{of} MB\x1b[K{end}", err=True, nl=False)

    return show
