"""The linear layers of `layers` alone."""

from cosnorm.study.bench import layers


def main(argv: list[str]) -> int:
    return layers.main(argv, ["linear"])
