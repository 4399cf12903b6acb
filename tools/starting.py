"""The first steps of new, deep networks that were converted, with calibration and without.

    PYTHONPATH=src python -m tools.starting --out results/cpu/starting.json

A vision transformer of 12 blocks and a residual network of 50 layers, of transformers, small, on
one batch of 16 images that belong to four classes. Seconds on a CPU.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cosnorm
from cosnorm.study.runs.environment import environment

STEPS = 10
TOLD = (1, 2, 3, 4, 6, 8, 10)  # in the table
WAYS: dict[str, dict[str, Any]] = {
    "dot products": {},
    "cosine, calibrated": {"similarity": "cosine", "calibrate": True},
    "pearson, calibrated": {"similarity": "pearson", "calibrate": True},
    "cosine, not calibrated": {"similarity": "cosine"},
    "pearson, not calibrated": {"similarity": "pearson"},
}


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_attention_heads=4, intermediate_size=64, num_hidden_layers=12,
        image_size=64, patch_size=16, num_labels=4,
    )  # fmt: skip
    return ViTForImageClassification(config)


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24, 32, 48], depths=[3, 4, 6, 3], num_labels=4
    )
    return ResNetForImageClassification(config)


adamw = partial(torch.optim.AdamW, lr=1e-3)
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
# The network, whether norms are dropped, and the optimiser.
CASES: dict[str, tuple[Callable[[], nn.Module], bool, Callable[..., torch.optim.Optimizer]]] = {
    "vit": (vit, False, adamw), "vit, sgd": (vit, False, sgd),
    "resnet": (resnet, True, adamw), "resnet, sgd": (resnet, True, sgd),
    "resnet, norms kept": (resnet, False, adamw), "resnet, norms kept, sgd": (resnet, False, sgd),
}  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    """Images of four classes, each near the image of its class."""
    y = torch.arange(16) % 4
    return torch.randn(4, 3, 64, 64)[y] + 0.5 * torch.randn(16, 3, 64, 64), y


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> list[float]:
    """The loss at each of the first steps."""
    model.train()
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).logits, y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def measured(name: str) -> dict[str, list[float]]:
    make, drop_norms, optimizer = CASES[name]
    torch.manual_seed(0)
    new, (x, y) = make(), batch()
    found = {}
    for way, options in WAYS.items():
        model = copy.deepcopy(new)
        if options:
            data = {"calibrate": x} if options.get("calibrate") else {}
            cosnorm.convert(model, options["similarity"], drop_norms=drop_norms, **data)
        found[way] = losses(model, optimizer(model.parameters()), x, y)
    return found


def table(result: dict[str, Any], name: str) -> str:
    """The losses of a network at some of its steps."""
    lines = [f"| step | {' | '.join(map(str, TOLD))} |", "|---" * (len(TOLD) + 1) + "|"]
    for way, found in result["losses"][name].items():
        lines.append(f"| {way} | {' | '.join(f'{found[k - 1]:.2f}' for k in TOLD)} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args(argv).out
    found = {name: measured(name) for name in CASES}
    result = {"losses": found, "environment": environment("cpu")}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
