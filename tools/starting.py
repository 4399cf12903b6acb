"""The first steps of new, deep networks that were converted, with calibration and without; and what
a new transformer's outputs lose with its norms.

    PYTHONPATH=src python -m tools.starting --out results/cpu/starting.json

A vision transformer of 12 blocks, small, and a residual network of 50 layers with a quarter of the
usual channels, of transformers, on one batch of 16 images that belong to four classes. In float64:
in float32 the order in which a sum is taken, so the number of threads, shows in the loss after a
few steps. Ten minutes on a CPU.
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
        embedding_size=16, hidden_sizes=[64, 128, 256, 512], depths=[3, 4, 6, 3], num_labels=4
    )
    return ResNetForImageClassification(config)


adamw = partial(torch.optim.AdamW, lr=1e-3)
slow_adamw = partial(torch.optim.AdamW, lr=3e-4)
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
# The network, whether norms are dropped, and the optimiser.
CASES: dict[str, tuple[Callable[[], nn.Module], bool, Callable[..., torch.optim.Optimizer]]] = {
    "vit": (vit, False, adamw), "vit, sgd": (vit, False, sgd),
    "resnet": (resnet, True, slow_adamw), "resnet, 0.001": (resnet, True, adamw),
    "resnet, sgd": (resnet, True, sgd),
    "resnet, norms kept": (resnet, False, adamw), "resnet, norms kept, sgd": (resnet, False, sgd),
}  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    """Images of four classes, each near the image of its class."""
    y = torch.arange(16) % 4
    return (torch.randn(4, 3, 64, 64)[y] + 0.5 * torch.randn(16, 3, 64, 64)).double(), y


def losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = STEPS
) -> list[float]:
    """The loss at each of the first steps."""
    model.train()
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).logits, y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def measured(name: str) -> dict[str, list[float]]:
    make, drop_norms, optimizer = CASES[name]
    torch.manual_seed(0)
    new, (x, y) = make().double(), batch()
    found = {}
    for way, options in WAYS.items():
        model = copy.deepcopy(new)
        if options:
            data = {"calibrate": x} if options.get("calibrate") else {}
            cosnorm.convert(model, options["similarity"], drop_norms=drop_norms, **data)
        found[way] = losses(model, optimizer(model.parameters()), x, y)
    return found


def without_norms() -> dict[str, Any]:
    """A new ViT-S of Pearson layers: how far its logits move when its norms go, in float64.

    Relative to the largest, with the biases that it has, all zero, and without any.
    """
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    torch.manual_seed(0)
    model = ViTForImageClassification(config).double().eval()
    x, found = torch.randn(4, 3, 224, 224, dtype=torch.float64), {}
    for way in ("biases", "no biases"):
        if way == "no biases":
            for layer in model.modules():
                if isinstance(layer, nn.Linear):
                    layer.bias = None
        kept, freed = copy.deepcopy(model), copy.deepcopy(model)
        cosnorm.convert(kept)
        cosnorm.convert(freed, drop_norms=True)
        with torch.no_grad():
            expected, got = kept(x).logits, freed(x).logits
        found[way] = float((got - expected).abs().max() / expected.abs().max())
        found["norms"], found["left"] = _norms(kept), _norms(freed)
    return found


def _norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.LayerNorm) for module in model.modules())


def told_without_norms(result: dict[str, Any]) -> str:
    """That in a sentence."""
    found = result["without_norms"]
    gone = found["norms"] - found["left"]
    return (
        f"In a new ViT-S of Pearson layers (transformers', biases zero), from which {gone} of "
        f"{found['norms']} layer norms go, the logits move by up to {found['biases']:.1%} of the "
        f"largest; without biases by {found['no biases']:.0e} of it, in float64."
    )


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
    result = {"losses": found, "without_norms": without_norms(), "environment": environment("cpu")}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
