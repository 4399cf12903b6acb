"""The options that commands share."""

from pathlib import Path
from typing import Annotated

import typer


def given_path(text: str | Path) -> Path:
    """A path from the command line. An empty one, of a variable that is not set, names nothing."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give a path")
    return Path(text)


Dataset = Annotated[
    str,
    typer.Option(
        help="digits, mnist, 20news, cifar10, cifar100, svhn, an .npz file or a folder of images."
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        parser=given_path, metavar="<path>", help="Folder of the run, or of the comparison."
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, help="Length in epochs; default: the paper's, digits 100, your own 50."),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Length in steps, instead of epochs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0 to N-1.")]
Methods = Annotated[
    str | None, typer.Option(help="Some of pearson,cosine,batch,weight,layer,none.")
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
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
CheckpointSeconds = Annotated[
    float | None, typer.Option(min=0, help="Time between checkpoints; default: as cost allows.")
]
KeepCheckpoints = Annotated[
    bool, typer.Option(help="Keep the last two checkpoints of finished runs.")
]
