"""What the benchmarks' commands take, refused with the rule before anything runs."""

import argparse
from collections.abc import Callable, Iterable

import torch


def names_of(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    """Names with commas between them."""
    known = list(allowed)

    def parse(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",")]
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}; got {unknown[0]!r}")
        return given

    return parse


def sizes(text: str) -> list[tuple[int, int, int]]:
    """Three numbers each, such as 128x512x24,128x512x12."""
    given = []
    for size in text.split(","):
        numbers = tuple(int(part) if part.isdigit() else 0 for part in size.strip().split("x"))
        if len(numbers) != 3 or 0 in numbers:
            raise argparse.ArgumentTypeError(
                f"must be three numbers of at least 1 with x between them; got {size!r}"
            )
        given.append(numbers)
    return given


def at_least(least: int) -> Callable[[str], int]:
    """A number that is not below."""

    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a number of at least {least}; got {text!r}")
        return int(text)

    return parse


count = at_least(1)


def _device(name: str) -> str:
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"must be cpu or cuda; got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("cuda needs a GPU and a torch that was built for it")
    return name


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=_device, default="cpu", metavar="{cpu,cuda}")
