"""Whole models, as they are and converted: a training step in each mode, in interleaved rounds.

cosnorm bench models --models resnet50,vit_small_patch16_224 --device cuda --autocast bfloat16 \
    --channels-last --batch 128 --modes eager,compile,reduce-overhead
"""

import argparse
import gc
import sys
from typing import Any

import torch

from cosnorm.study.bench import zoo
from cosnorm.study.bench.arguments import add_device, count, names_of
from cosnorm.study.bench.steps import DTYPES, MODES, VARIANTS, Setting, Step, gpu_busy, kernels
from cosnorm.study.bench.timing import interleaved, provenance, write
from cosnorm.study.bench.verify import verify


def _models(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        zoo.maker(name)  # which says what is wrong with a name
    return names


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "cosnorm bench models", description="A training step of models by name, and converted"
    )
    parser.add_argument(
        "--models",
        type=_models,
        required=True,
        help="names of timm, model types of transformers, or paths of a config.json",
    )
    add_device(parser)
    parser.add_argument("--autocast", choices=DTYPES, help="float32 throughout if left out")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--batch", type=count, help="128 on cuda, 4 on cpu")
    parser.add_argument("--size", type=count, default=224, help="side of images, length of texts")
    parser.add_argument("--modes", type=names_of(MODES), default=["eager"], help=",".join(MODES))
    parser.add_argument("--variants", type=names_of(VARIANTS), default=list(VARIANTS),
                        help=",".join(VARIANTS) + "; plain is always among them")  # fmt: skip
    parser.add_argument("--fuse", action="store_true",
                        help="converted layers take over the activations behind them")  # fmt: skip
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--out", help="write JSON here")
    options = parser.parse_args(argv)
    options.variants = [v for v in VARIANTS if v == "plain" or v in options.variants]
    options.batch = options.batch or (128 if options.device == "cuda" else 4)
    return options


def measure(model: str, mode: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """A row for each variant, their times as ratios to the model as it is, in the same mode."""
    cuda = options.device == "cuda"
    place = (
        options.batch,
        options.size,
        options.autocast,
        options.channels_last,
        mode,
        options.fuse,
    )
    steps, rows = {}, {}
    for variant in options.variants:
        setting = Setting(model, variant, options.device, *place)
        # Kernels of the compiler are counted by the compiler; ours show in the eager step.
        found = kernels(setting) if mode == "eager" else None
        steps[variant], peak = _with_peak(setting)
        rows[variant] = {"kernels": found, "peak_bytes": peak, "account": steps[variant].account}
        if cuda:
            rows[variant]["busy_ms"] = round(gpu_busy(steps[variant]), 3)
    times = interleaved(
        steps, rounds=options.rounds, baseline="plain", cuda=cuda, warmup=2, slice_ms=60
    )
    for variant, step in steps.items():
        step.check()
        rows[variant] = times[variant] | rows[variant]
    return rows


def _with_peak(setting: Setting) -> tuple[Step, int | None]:
    """A step that has run, and on a GPU the most memory that it took, its model included."""
    if setting.device != "cuda":
        step = Step(setting)
        step()
        return step, None
    before = torch.cuda.memory_allocated()
    step = Step(setting)
    for _ in range(3):  # in the first ones compilers and cuDNN try what they throw away
        torch.cuda.reset_peak_memory_stats()
        step()
    torch.cuda.synchronize()
    return step, torch.cuda.max_memory_allocated() - before


def show(title: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    heads = ("ratio", "20%–80%", "ms", "GPU ms", "peak GB", "kernels", "another batch")
    print(f"  {'':10}" + "".join(f"{head:>15}" for head in heads))
    for variant, row in rows.items():
        cells = [f"{row['ratio']:.3f}", f"{row['ratio_q20']:.3f}–{row['ratio_q80']:.3f}"]
        cells.append(f"{row['microseconds'] / 1e3:.2f}")
        cells.append(f"{row['busy_ms']:.2f}" if "busy_ms" in row else "")
        cells.append(f"{row['peak_bytes'] / 1e9:.2f}" if row["peak_bytes"] is not None else "")
        cells += [str(n) for n in row["kernels"].values()] if row["kernels"] else []
        print(f"  {variant:10}" + "".join(f"{cell:>15}" for cell in cells))
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    options = parse(argv)
    device = torch.device(options.device)
    checked = {torch.float32} | ({DTYPES[options.autocast]} if options.autocast else set())
    verify(device, tuple(checked))
    report = {"benchmark": "models", "arguments": argv, "provenance": provenance(device)}
    results = report["results"] = []
    for model in options.models:
        for mode in options.modes:
            rows = measure(model, mode, options)
            dtype = options.autocast or "float32"
            place = f"{model}, batch {options.batch} at {options.size}, {dtype}, {mode}"
            show(place + (", activations fused" if options.fuse else ""), rows)
            results.append(
                {"model": model, "mode": mode, "batch": options.batch, "size": options.size,
                 "autocast": options.autocast, "channels_last": options.channels_last,
                 "fuse": options.fuse, "variants": rows}
            )  # fmt: skip
            write(options.out, report)
            del rows
            _forget()
    return 0


def _forget() -> None:
    """Leave no memory to the next models, nor a compiler that remembers the last ones."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
