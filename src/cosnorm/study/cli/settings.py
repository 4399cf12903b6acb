"""One flag for each setting of a run, made from the settings themselves."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer

from cosnorm.study.runs.config import CHOICES, Config

_HELP = {
    "network": "mlp, vgg (the paper's), or small_conv (for CPUs).",
    "batch_size": "Rows of a step.",
    "lr": "Learning rate; default: the paper's for the method.",
    "optimizer": "Plain SGD is the paper's.",
    "momentum": "Of the optimizer momentum.",
    "weight_decay": "As torch's optimisers define it.",
    "width": "Units of hidden linear layers.",
    "channels": "Channels of convolutions.",
    "init_std": "Deviation of the truncated normal initialisation.",
    "scale": "What multiplies the last layer before softmax.",
    "scale_start": "The scale's (first) value.",
    "bias": "A bias in every layer.",
    "affine": "Re-scaling and re-shifting in hidden layers.",
    "pool": "same: padded convolutions, pools of stride 2; valid: unpadded, stride 1.",
    "bn_momentum": "Momentum of batch norm's running statistics.",
    "bn_eps": "Batch norm's epsilon.",
    "pipeline": "How stored rows become input.",
    "flip": "Mirror images in tf_cifar.",
    "tfidf": "Documents: raw or L2-normalised tf·idf.",
    "min_df": "Documents: how many of the training part a word must be in.",
    "svhn_extra": "svhn: with the extra images.",
    "image_size": "Image folders: side to bring images to.",
    "held_out": "Share of the training part to test on in place of the test part: to choose by.",
    "ema_decay": "Decay of the parameters' moving average; 0: none.",
    "ema_statistics": "Batch norm's statistics: averaged with the parameters, or raw.",
    "eval_every": "Epochs (or steps, with --steps) between evaluations.",
    "sync_batch_norm": "Batch norm over the rows of all processes of torchrun.",
    "precision": "Default: bf16 for vgg on CUDA, else fp32.",
    "device": "Default: cuda where there is one.",
    "sparse": "Keep sparse data sparse; default: on CPUs.",
    "compile": "Run the network through torch.compile.",
    "deterministic": "Only kernels that give the same bits every time.",
}


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command(…, **settings)` a flag for each setting; those not given are None."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [p for p in own.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*kept, *(_flag(name) for name in _HELP)]

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        return command(**{k: v.value if isinstance(v, StrEnum) else v for k, v in given.items()})

    called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    del called.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return called


def _flag(name: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind = choice(name) if name in CHOICES else _plain_type(name)
    if kind is bool:
        flag += f"/--no-{name.replace('_', '-')}"
    option = typer.Option(flag, help=_HELP[name], rich_help_panel="Settings", show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def choice(name: str) -> type[StrEnum]:
    """The values of a setting as a type that the command line can check."""
    return StrEnum(name, {value: value for value in CHOICES[name]})  # pyright: ignore[reportReturnType]


def _plain_type(name: str) -> Any:
    declared = get_type_hints(Config)[name]
    return next((t for t in get_args(declared) if t is not type(None)), declared)


def chosen_device(device: str | None) -> str:
    """The device that was asked for, else CUDA where there is one."""
    if device is not None:
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


_UNCHANGED = {"dataset", "method", "seed", "epochs", "steps"}
assert {field.name for field in fields(Config)} == _UNCHANGED | _HELP.keys()
