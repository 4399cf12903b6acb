"""A training step of the paper's convolutional network, method against method, in one run.

cosnorm bench network --device cuda
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

from cosnorm.methods import METHODS, STUDIED
from cosnorm.study.bench.arguments import add_device, count
from cosnorm.study.bench.layers import DTYPES
from cosnorm.study.bench.peers import compiled
from cosnorm.study.bench.timing import (
    graphed,
    interleaved,
    leave_default_stream,
    provenance,
    write,
)
from cosnorm.study.bench.verify import verify
from cosnorm.study.models import Recipe, initialise, vgg

MODES = {"default": "compiled", "reduce-overhead": "reduce-overhead"}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "cosnorm bench network", description="A training step, by method"
    )
    add_device(parser)
    parser.add_argument("--methods", default=",".join(reversed(STUDIED)))
    parser.add_argument("--batch", type=count, help="128 on cuda, 8 on cpu")
    parser.add_argument("--channels", type=count, help="512 on cuda, 64 on cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="autocast: bfloat16 on cuda, none on cpu")
    parser.add_argument("--compile", action="store_true", help="compiled beside eager")
    parser.add_argument(
        "--launches",
        action="store_true",
        help="count launches: no CUDA graph but, with --compile, the compiler's (reduce-overhead)",
    )
    parser.add_argument("--rounds", type=count, default=20)
    parser.add_argument("--out", help="write JSON here")
    options = parser.parse_args(argv)
    options.methods = options.methods.split(",")
    if unknown := [name for name in options.methods if name not in METHODS]:
        parser.error(f"--methods must be of {', '.join(METHODS)}; got {unknown[0]!r}")
    if "none" not in options.methods or len(options.methods) + options.compile < 2:
        parser.error(f"--methods must be none and others; got {','.join(options.methods)}")
    return options


def _draw(network: torch.nn.Module) -> None:
    """Weights that keep the size of a signal, for the network without normalisation too.

    From the paper's deviation of 0.1 that one is NaN after three steps, and products of NaN or of
    zeros take less power than real ones, so that a GPU at its limit runs faster.
    """
    initialise(network, 1.0, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.mul_(math.sqrt(2 / weight[0].numel()))


def step(
    method: str, options: Any, mode: str | None = None
) -> tuple[Callable[[], None], list[Tensor]]:
    """Forward, loss, backward and the plain SGD update on one batch of random images.

    mode: of torch.compile, None for eager. Returns the step, and the parameters it updates.
    """
    device = torch.device(options.device)
    torch.manual_seed(0)
    network = vgg((3, 24, 24), 10, Recipe(method=method), channels=options.channels)
    _draw(network)
    network = network.to(device).to(memory_format=torch.channels_last)  # pyright: ignore
    x = torch.randn(options.batch, 3, 24, 24, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (options.batch,), device=device)
    parameters = list(network.parameters())
    forward = compiled(network, mode) if mode else network

    def run() -> None:
        dtype = DTYPES[options.dtype] if options.dtype else torch.bfloat16
        with torch.autocast(device.type, dtype, enabled=options.dtype is not None):
            logits = forward(x)
        grads = torch.autograd.grad(F.cross_entropy(logits.float(), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, grads, alpha=-1e-6)  # pyright: ignore

    return run, parameters


def _modes(options: argparse.Namespace) -> list[str | None]:
    """Of torch.compile, beside eager: its own CUDA graphs only where all is not in one anyway."""
    if not options.compile:
        return [None]
    graphs = options.launches and options.device == "cuda"
    return [None, "default", *(["reduce-overhead"] if graphs else [])]


def main(argv: list[str]) -> int:
    options = parse(argv)
    cuda = options.device == "cuda"
    options.batch = options.batch or (128 if cuda else 8)
    options.channels = options.channels or (512 if cuda else 64)
    options.dtype = options.dtype or ("bfloat16" if cuda else None)
    device = torch.device(options.device)
    leave_default_stream(device)
    checked = (torch.float32, DTYPES[options.dtype]) if options.dtype else (torch.float32,)
    verify(device, checked)
    works, parameters = {}, {}
    for method in options.methods:
        for mode in _modes(options):
            name = f"{method}, {MODES[mode]}" if mode else method
            work, parameters[name] = step(method, options, mode)
            works[name] = graphed(work) if cuda and not options.launches else work
    table = interleaved(works, rounds=options.rounds, baseline="none", cuda=cuda, slice_ms=30)
    if skipped := counters["inductor"]["cudagraph_skips"]:
        print(
            f"\nof its own CUDA graphs the compiler skipped {skipped}: reduce-overhead is not that"
        )
    for name, tensors in parameters.items():
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise ArithmeticError(f"{name} has diverged: its time is not that of a training step")
    print(f"\na training step, batch {options.batch}, {options.dtype or 'float32'}")
    for name, row in table.items():
        spread = f"{row['ratio_q20']:.3f}–{row['ratio_q80']:.3f}"
        print(f"  {name:22}{row['ratio']:8.3f}{spread:>16}{row['microseconds'] / 1e3:10.3f} ms")
    report = {"benchmark": "network", "arguments": argv, "provenance": provenance(device)}
    write(options.out, {**report, "graph": cuda and not options.launches, "results": table})
    return 0
