"""The options that commands share."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cosnorm.methods import METHODS
from cosnorm.study.names import DATASETS, LOGGERS


def given_place(text: str) -> str:
    """A place for runs. An empty one, of a variable that is not set, names nothing."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give a path")
    return text


def given_path(text: str | Path) -> Path:
    """A path from the command line, under the same rule."""
    return Path(given_place(str(text)))


def completing(names: Iterable[str], but: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """Completion of what is typed; where it is none of the names, the shell goes on with files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete) and name not in but]

    return complete


def completing_list(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Completion of the last of several names with commas, by those that are not there yet."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        found = (name for name in names if name.startswith(last) and name not in given)
        return [f"{before}{comma}{name}" for name in found]

    return complete


Dataset = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(DATASETS)}, an .npz or .csv file, or a folder of images or texts.",
        autocompletion=completing(DATASETS),
    ),
]
Out = Annotated[
    str,
    typer.Option(
        parser=given_place,
        metavar="<path>",
        help="Folder of the run, or of the comparison; or s3://BUCKET/PREFIX.",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, help="Length in epochs; default: the paper's, digits 30, your own 50."),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Length in steps, instead of epochs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0 to N-1.")]
Methods = Annotated[
    str | None,
    typer.Option(help=f"Some of {','.join(METHODS)}.", autocompletion=completing_list(METHODS)),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        parser=given_path,
        metavar="<path>",
        help="Where the data lies; else $COSNORM_DATA, else the cache.",
    ),
]
MaxMinutes = Annotated[
    float | None,
    typer.Option(help="Save and stop after this time, with exit code 75; run again to go on."),
]
Shard = Annotated[
    bool,
    typer.Option("--shard", help="torchrun: each process holds a part of the network only."),
]
RankTimeout = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="torchrun: seconds until a process that does not answer is given up; default 600.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
CheckpointSeconds = Annotated[
    float | None, typer.Option(min=0, help="Time between checkpoints; default: as cost allows.")
]
KeepCheckpoints = Annotated[
    bool, typer.Option(help="Keep the last two checkpoints of finished runs.")
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Record train error, and each layer's weight norm, scale and effective rate.",
    ),
]
Logger = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help=f"Copy the metrics for a viewer, as files under OUT: {', '.join(LOGGERS)}; may be "
        "given several times.",
        autocompletion=completing(LOGGERS),
    ),
]
