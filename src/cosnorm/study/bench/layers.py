"""Layers: convolution and linear, against the plain layer and its peers, in one interleaved run.

cosnorm bench layers                      the CPU table
cosnorm bench layers --device cuda        the GPU table, in CUDA graphs
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch

from cosnorm.study.bench.arguments import add_device, count, names_of, sizes
from cosnorm.study.bench.peers import CONVOLUTIONS, LINEARS, Factory, compiled, folded
from cosnorm.study.bench.timing import (
    graphed,
    held_bytes,
    interleaved,
    leave_default_stream,
    provenance,
    write,
)
from cosnorm.study.bench.verify import verify

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SIZES = {  # (batch, channels, side) of convolutions; (rows, in, out) of linear layers
    "cpu": {"conv": [(8, 128, 24), (8, 512, 12)], "linear": [(128, 1024, 1024)]},
    "cuda": {
        "conv": [(128, 512, 24), (128, 512, 12), (128, 512, 6)],
        "linear": [(8192, 4096, 4096)],
    },
}
MODES = ("forward", "backward", "both", "folded")  # folded: forward with normalised weights


KINDS = {  # what the three numbers of a size are
    "conv": "batch, channels and side",
    "linear": "rows, in and out",
}


def parse(argv: list[str], kinds: list[str] | None = None) -> argparse.Namespace:
    """kinds: of layers, where they are not for the user to choose."""
    name, sized = ("layers", "conv") if kinds is None else (kinds[0], kinds[0])
    parser = argparse.ArgumentParser(
        f"cosnorm bench {name}", description="Layers against their peers"
    )
    add_device(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="float32 on cpu, bfloat16 on cuda")
    if kinds is None:
        parser.add_argument(
            "--kinds", type=names_of(KINDS), default=list(KINDS), help="conv,linear"
        )
    parser.add_argument("--modes", type=names_of(MODES), default=["both"], help=",".join(MODES))
    if sized == "conv":
        parser.add_argument("--layouts", type=names_of(LAYOUTS), help=",".join(LAYOUTS))
    given = f"of {sized} layers, {KINDS[sized]} each, as in 128x512x24,128x512x12"
    parser.add_argument("--sizes", type=sizes, help=given)
    parser.add_argument("--only", help="providers, comma-separated names or their beginnings")
    parser.add_argument("--rounds", type=count, default=25)
    parser.add_argument(
        "--autocast", action="store_true", help="float32 weights, autocast to dtype"
    )
    parser.add_argument("--launches", action="store_true", help="count launches: no CUDA graph")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled peers out")
    parser.add_argument("--out", help="write JSON here")
    options = parser.parse_args(argv)
    options.kinds, options.sized = kinds or options.kinds, sized
    options.layouts = getattr(options, "layouts", None) or (
        ["channels_last"] if options.device == "cuda" else list(LAYOUTS)
    )
    return options


def providers(kind: str, options: argparse.Namespace) -> dict[str, Factory]:
    chosen = dict(CONVOLUTIONS if kind == "conv" else LINEARS)
    if options.device == "cuda":
        for name in ("cosine, unfold", "pearson, unfold"):
            chosen.pop(name, None)
        if not options.no_compile:
            formulas = [name for name in chosen if name.endswith("formula")]
            for name in (f"{kind}+relu", "batch", "layer", "cosine", "pearson", *formulas):
                chosen[f"{name}, compiled"] = _compiled(chosen[name])
    for name in [n for n in chosen if n.endswith("formula")]:
        chosen.pop(name)
    if options.only:
        wanted = [w.strip() for w in options.only.split(",")] + ["conv+relu", "linear+relu"]
        chosen = {n: f for n, f in chosen.items() if any(n.startswith(w) for w in wanted)}
    return chosen


def _compiled(factory: Factory) -> Factory:
    return lambda i, o: compiled(factory(i, o))


def work(factory: Factory, x: torch.Tensor, mode: str, options: Any, out: int) -> tuple[Any, int]:
    """(what is timed, the bytes it holds for backward beside the parameters)."""
    dtype = DTYPES[options.dtype]
    module = factory(x.shape[1], out).to(x.device, torch.float32 if options.autocast else dtype)
    if mode == "folded":
        module = folded(module)
    if x.dim() == 4:
        module = module.to(memory_format=LAYOUTS[options.layout])  # pyright: ignore
    leaves = [x, *(p for p in module.parameters() if p.requires_grad)]

    def forward() -> torch.Tensor:
        with torch.autocast(x.device.type, dtype, enabled=options.autocast):
            return module(x)

    seed = torch.randn_like(forward())
    held = held_bytes(forward, leaves[1:])
    if mode in ("forward", "folded"):

        def run() -> None:
            with torch.no_grad():
                forward()

        return run, held
    if mode == "both":
        return lambda: torch.autograd.grad(forward(), leaves, seed), held
    output = forward()
    return lambda: torch.autograd.grad(output, leaves, seed, retain_graph=True), held


def measure(kind: str, size: tuple[int, int, int], mode: str, options: Any) -> dict[str, Any]:
    device, dtype = torch.device(options.device), DTYPES[options.dtype]
    shape = (size[0], size[1], size[2], size[2]) if kind == "conv" else size[:2]
    x = torch.randn(shape, device=device).to(dtype)
    if kind == "conv":
        x = x.contiguous(memory_format=LAYOUTS[options.layout])
    x.requires_grad_()
    out = size[1] if kind == "conv" else size[2]
    works: dict[str, Callable[[], Any]] = {}
    held: dict[str, int] = {}
    for name, factory in providers(kind, options).items():
        torch.manual_seed(0)
        timed, bytes_held = work(factory, x, mode, options, out)
        if "compiled" not in name and mode != "folded":
            held[name] = bytes_held
        works[name] = graphed(timed) if options.device == "cuda" and not options.launches else timed
    baseline = f"{kind}+relu"
    table = interleaved(
        works, rounds=options.rounds, baseline=baseline, cuda=options.device == "cuda"
    )
    for name, bytes_held in held.items():
        table[name]["held_ratio"] = round(bytes_held / held[baseline], 4)
    return table


def show(title: str, table: dict[str, Any]) -> None:
    print(f"\n{title}")
    print(f"  {'':26}{'ratio':>8}{'20%–80%':>16}{'µs':>12}{'held':>8}")
    for name, row in table.items():
        spread = f"{row['ratio_q20']:.3f}–{row['ratio_q80']:.3f}"
        held = f"{row['held_ratio']:.2f}" if "held_ratio" in row else ""
        print(f"  {name:26}{row['ratio']:8.3f}{spread:>16}{row['microseconds']:12.1f}{held:>8}")
    sys.stdout.flush()


def main(argv: list[str], kinds: list[str] | None = None) -> int:
    options = parse(argv, kinds)
    cuda = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if cuda else "float32")
    device = torch.device(options.device)
    leave_default_stream(device)
    checked = tuple({DTYPES[options.dtype], torch.float32})
    verify(device, checked)
    report = {"benchmark": "layers", "arguments": argv, "provenance": provenance(device)}
    results = report["results"] = []
    for kind in options.kinds:
        chosen = options.sizes if kind == options.sized else None
        for size in chosen or SIZES[options.device][kind]:
            for layout in options.layouts if kind == "conv" else ["contiguous"]:
                for mode in options.modes:
                    options.layout = layout
                    table = measure(kind, size, mode, options)
                    title = f"{kind} {'×'.join(map(str, size))} {options.dtype} {layout} {mode}"
                    show(title + (" autocast" if options.autocast else ""), table)
                    results.append(
                        {"kind": kind, "size": size, "layout": layout, "mode": mode,
                         "dtype": options.dtype, "autocast": options.autocast,
                         "graph": cuda and not options.launches,
                         "providers": table}
                    )  # fmt: skip
                    write(options.out, report)
    return 0
