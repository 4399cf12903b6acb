"""Models of timm and transformers by name, with random weights: nothing is downloaded."""

import argparse
import copy
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What a transformers model is made for, the first of these that it can be.
_TASKS = ("IMAGE_CLASSIFICATION", "MASKED_LM", "CAUSAL_LM", "SEQUENCE_CLASSIFICATION")


class Batch(NamedTuple):
    """A batch of random inputs, by the names of the model's arguments, and random targets."""

    inputs: dict[str, Tensor]
    targets: Tensor


class Subject(NamedTuple):
    """A model, and how to call it."""

    model: nn.Module
    example: dict[str, Tensor]  # one input, by the name of the model's argument
    classes: int
    dense: bool  # a target for each position of a text, not one for each input

    def batch(self, size: int, device: torch.device) -> Batch:
        generator = torch.Generator().manual_seed(0)

        def drawn(like: Tensor) -> Tensor:
            shape = (size, *like.shape[1:])
            if like.is_floating_point():
                return torch.randn(shape, generator=generator).to(device)
            return torch.randint(self.classes, shape, generator=generator).to(device)

        inputs = {name: drawn(like) for name, like in self.example.items()}
        length = next(iter(self.example.values())).shape[1:] if self.dense else ()
        targets = torch.randint(self.classes, (size, *length), generator=generator)
        return Batch(inputs, targets.to(device))


def loss(output: Any, targets: Tensor) -> Tensor:
    """Cross entropy of a model's output, a tensor or what transformers returns."""
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def maker(name: str) -> Callable[[int], Subject]:
    """Makes the model called `name`, for images of a side or texts of a length.

    Args:
        name: such as `resnet50` (timm), `gpt2` (transformers), or the path of a `config.json`.

    Raises:
        argparse.ArgumentTypeError: where no library at hand knows the name.

    Example:
        maker("resnet50")(224).model(torch.randn(2, 3, 224, 224))
    """
    timm = _library("timm")
    if timm is not None and timm.is_model(name):
        return partial(_from_timm, timm, name)
    transformers = _library("transformers")
    config = None if transformers is None else _configuration(transformers, name)
    if config is None:
        raise argparse.ArgumentTypeError(
            "must be a model of timm, a model type of transformers or the path of its "
            f"config.json, with the library installed; got {name!r}"
        )
    for task in _TASKS:
        if type(config) in getattr(transformers, f"MODEL_FOR_{task}_MAPPING"):
            kind = getattr(transformers, f"MODEL_FOR_{task}_MAPPING")[type(config)]
            return partial(_from_transformers, kind, config, task.endswith("LM"))
    tasks = ", ".join(_TASKS).lower()
    raise argparse.ArgumentTypeError(f"must be a model for one of {tasks}; got {name!r}")


def _library(name: str) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import, which reads it
    try:
        return import_module(name)
    except ImportError:
        return None


def _from_timm(timm: Any, name: str, size: int) -> Subject:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False)
    return Subject(model, {"x": torch.empty(1, 3, size, size)}, model.num_classes, False)


def _from_transformers(kind: Any, config: Any, dense: bool, size: int) -> Subject:
    torch.manual_seed(0)
    if isinstance(getattr(config, "image_size", None), int):  # positions are of one size alone
        config = copy.deepcopy(config)
        config.image_size = size
    model = kind(config)
    if model.main_input_name == "pixel_values":
        example = torch.empty(1, config.num_channels, size, size)
        return Subject(model, {"pixel_values": example}, config.num_labels, False)
    classes = config.vocab_size if dense else min(config.num_labels, config.vocab_size)
    example = {"input_ids": torch.zeros(1, size, dtype=torch.long)}
    return Subject(model, example, classes, dense)


def _configuration(library: Any, name: str) -> Any:
    if Path(name).exists():
        return library.AutoConfig.from_pretrained(name, local_files_only=True)
    known: Callable[[str], bool] = library.CONFIG_MAPPING.__contains__
    return library.AutoConfig.for_model(name) if known(name) else None
