"""What becomes of a trained network that is converted and trained further, on CIFAR-10.

    python -m tools.finetuning --data DIR --minutes 8 --out results/h200/finetuning.json

Networks that are trained by us: a residual one, a small ConvNeXt and MobileNets, all but the first
with depthwise convolutions, which are converted or left. Arms, each an entry of the result with the
test error after every epoch, the 0th before any step:

    plain                          to its best, --epochs
    plain, further                 the control: as many epochs more as a converted network gets
    SIMILARITY[, calibrated][, CHOICE], further      converted from plain, --further epochs
    SIMILARITY[, CHOICE], scratch                    converted when new, --epochs

CHOICE: depthwise left, where there are such layers; norms dropped, where there are none.

Ends when all arms are made or the time is up; given again it makes what is missing. An arm that the
time cuts short is begun again. The trained plain networks stay in --work. With --rows and a small
--width it is for a CPU too.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cosnorm
from cosnorm.study.data import load
from cosnorm.study.runs.environment import environment


class Residual(nn.Module):
    """x + body(x), the first part of both shrunk where the body shrinks."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


def _conv(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after)]


def resnet(width: int) -> nn.Sequential:
    """Twenty layers in three stages."""
    layers: list[nn.Module] = [*_conv(3, width, 3), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range(3):
            after, stride = width << stage, 2 if stage and not block else 1
            first, second = _conv(before, after, 3, stride), _conv(after, after, 3)
            change = nn.Sequential(*_conv(before, after, 1, stride)) if before != after else None
            layers += [Residual(nn.Sequential(*first, nn.ReLU(), *second), change), nn.ReLU()]
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of images."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def convnext(width: int) -> nn.Sequential:
    """Depthwise 7×7, layer norm, and two 1×1 in each of six blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 2, 2), ChannelNorm(width)]
    for stage in range(3):
        size = width << stage
        if stage:
            layers += [ChannelNorm(size // 2), nn.Conv2d(size // 2, size, 2, 2)]
        for _ in range(2):
            depthwise = nn.Conv2d(size, size, 7, padding=3, groups=size)
            narrow = nn.Conv2d(4 * size, size, 1)
            wide = nn.Conv2d(size, 4 * size, 1)
            body = nn.Sequential(depthwise, ChannelNorm(size), wide, nn.GELU(), narrow)
            layers.append(Residual(body))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 10))


def mobilenet(width: int, size: int = 3) -> nn.Sequential:
    """Inverted bottlenecks: 1×1 to four times the channels, depthwise, 1×1 back."""
    layers: list[nn.Module] = [*_conv(3, width, 3), nn.ReLU6()]
    before = width
    for stage in range(3):
        for block in range(3):
            after, stride = width << stage, 2 if stage and not block else 1
            inside = 4 * before
            body = nn.Sequential(
                *_conv(before, inside, 1), nn.ReLU6(),
                *_conv(inside, inside, size, stride, inside), nn.ReLU6(), *_conv(inside, after, 1),
            )  # fmt: skip
            layers.append(Residual(body) if before == after and stride == 1 else body)
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


TITLES = {
    "resnet": "residual", "convnext": "ConvNeXt (7×7)", "mobilenet": "MobileNet (3×3)",
    "mobilenet5": "MobileNet (5×5)",
}  # fmt: skip
NETWORKS: dict[str, Callable[[int], nn.Sequential]] = {
    "resnet": resnet, "convnext": convnext, "mobilenet": mobilenet,
    "mobilenet5": partial(mobilenet, size=5),
}  # fmt: skip


DATASET = "cifar10"


class Images:
    """CIFAR-10 on the device; training rows come cropped and mirrored at random."""

    def __init__(self, folder: Path | None, device: str, rows: int | None) -> None:
        dataset = load(DATASET, folder)
        self.x, self.test_x = (s.x[:rows].to(device) for s in (dataset.train, dataset.test))
        self.y, self.test_y = (s.y[:rows].to(device) for s in (dataset.train, dataset.test))

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.x), generator=generator)
        for rows in order.split(size):
            if len(rows) == size:
                yield self._changed(self.x[rows.to(self.x.device)], generator), self.y[rows]

    def _changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        top, left, mirror = torch.randint(9, (3,), generator=generator).tolist()
        x = F.pad(ready(x), (4, 4, 4, 4))[:, :, top : top + 32, left : left + 32]
        return x.flip(3) if mirror % 2 else x


def ready(x: Tensor) -> Tensor:
    """Pixels as network input."""
    return (x.float() - 120) / 64


@torch.no_grad()
def error_of(network: nn.Module, images: Images) -> float:
    network.eval()
    parts = zip(images.test_x.split(500), images.test_y.split(500), strict=True)
    wrong = sum(int((network(ready(x)).argmax(1) != y).sum()) for x, y in parts)
    return 100 * wrong / len(images.test_x)


class TimeIsUp(Exception):
    pass


def trained(
    network: nn.Module, images: Images, epochs: int, lr: float, batch: int, seed: int, until: float
) -> list[float]:
    """The test error before the first epoch and after each; the rate falls in a line to zero."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, nesterov=True)
    steps = epochs * (len(images.x) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    errors = [error_of(network, images)]
    for _ in range(epochs):
        if time.time() > until:
            raise TimeIsUp
        network.train()
        for x, y in images.batches(batch, generator):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
            schedule.step()
        errors.append(error_of(network, images))
    return errors


class Arms:
    """The arms of one network, in order; each is made from what is at hand or trained first."""

    def __init__(self, name: str, images: Images, arguments: argparse.Namespace) -> None:
        self.name, self.images, self.a = name, images, arguments
        self.place = arguments.work / f"{name}-seed{arguments.seed}.safetensors"

    def all(self) -> Iterator[tuple[str, Callable[[], list[float]]]]:
        yield "plain", self.plain
        if not self.a.scratch:
            yield "plain, further", partial(self.further, {})
        for similarity in ("cosine", "pearson"):
            for tail, choice in self.choices().items():
                options = {"similarity": similarity, **choice}
                for calibrated in () if self.a.scratch else (True, False):
                    told = f"{similarity}{', calibrated' if calibrated else ''}{tail}, further"
                    yield told, partial(self.further, options, calibrated)
        for similarity in ("cosine", "pearson"):
            for tail, choice in self.choices().items():
                options = {"similarity": similarity, **choice}
                yield f"{similarity}{tail}, scratch", partial(self.scratch, options)

    def choices(self) -> dict[str, dict[str, bool]]:
        """How the network is converted, by the end of an arm's name."""
        if any(getattr(module, "groups", 1) > 1 for module in self.new().modules()):
            return {"": {"depthwise": True}, ", depthwise left": {"depthwise": False}}
        return {"": {}, ", norms dropped": {"drop_norms": True}}

    def new(self) -> nn.Module:
        torch.manual_seed(self.a.seed)
        network = NETWORKS[self.name](self.a.width).to(self.images.x.device)
        return network.to(memory_format=torch.channels_last)

    def plain(self) -> list[float]:
        network = self.new()
        errors = self._trained(network, self.a.epochs, self.a.lr)
        self.a.work.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in network.state_dict().items()}, self.place)
        return errors

    def further(self, options: dict[str, Any], calibrated: bool = False) -> list[float]:
        network = self.new()
        network.load_state_dict(load_file(self.place))
        network.to(self.images.x.device)
        if options:
            batch = ready(self.images.x[:500]) if calibrated else None
            cosnorm.convert(network, calibrate=batch, **options)
        return self._trained(network, self.a.further, self.a.lr / 10)

    def scratch(self, options: dict[str, Any]) -> list[float]:
        network = copy.deepcopy(self.new())
        cosnorm.convert(network, **options)
        return self._trained(network, self.a.epochs, self.a.lr)

    def _trained(self, network: nn.Module, epochs: int, lr: float) -> list[float]:
        a = self.a
        return trained(network, self.images, epochs, lr, a.batch, a.seed, a.until)


def table(result: dict[str, Any], name: str, tail: str = "") -> str:
    """The test error of each arm of a network before its first epoch, after each of the first few
    and after every fifth.

    tail: how the names of the arms end that are shown.
    """
    mine = {k.split(": ")[1]: v for k, v in result["arms"].items() if k.startswith(f"{name}: ")}
    arms = {arm: errors for arm, errors in mine.items() if arm.endswith(tail)}
    longest = max(len(errors) for errors in arms.values())
    shown = [k for k in range(1, longest) if k <= result["setting"]["further"] or k % 5 == 0]
    lines = [f"| arm | at first | {' | '.join(f'epoch {k}' for k in shown)} |"]
    lines.append("|---" * (len(shown) + 2) + "|")
    for arm, errors in arms.items():
        cells = [f"{errors[k]:.1f}" if k < len(errors) else "" for k in (0, *shown)]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    facts, setting = result["environment"], result["setting"]
    told = f"{setting['dataset']}, {setting['rows'] or 'all'} rows, width {setting['width']}"
    told += f", {_pace(setting)}, further from {setting['lr'] / 10:g}"
    place = f"{facts.get('gpu') or facts['cpu']}, torch {facts['torch']}"
    return "\n".join([*lines, "", f"Test error in percent, one seed: {told}. {place}."])


def _pace(setting: dict[str, Any]) -> str:
    return f"batches of {setting['batch']}, rate from {setting['lr']:g}"


def in_short(results: Sequence[dict[str, Any]]) -> str:
    """Errors of trained networks, as they are and converted, a network in a row."""
    further = results[0]["setting"]["further"]
    heads = f"plain | plain, {further} epochs more | converted | {further} epochs more"
    lines = [f"| network | {heads} |", "|---" * 5 + "|"]
    for result in results:
        name = next(iter(result["arms"])).split(":")[0]
        plain, more, ours = (
            result["arms"][f"{name}: {arm}"]
            for arm in ("plain", "plain, further", "cosine, calibrated, further")
        )
        cells = (plain[-1], more[-1], ours[0], ours[-1])
        lines.append(f"| {TITLES[name]} | {' | '.join(f'{error:.1f}' for error in cells)} |")
    facts, setting = results[0]["environment"], results[0]["setting"]
    told = f"{setting['epochs']} epochs, width {setting['width']}, all rows of {setting['dataset']}"
    told += f", {_pace(setting)}, further from {setting['lr'] / 10:g}"
    place = f"{facts['gpu']}, torch {facts['torch']}"
    return "\n".join([*lines, "", f"Test error in percent, one seed: {told}. {place}."])


def kept(results: Sequence[dict[str, Any]]) -> str:
    """Errors of trained networks before and right after a calibrated conversion, one a row."""
    lines = ["| network | plain | cosine | pearson |", "|---" * 4 + "|"]
    for result in results:
        name = next(iter(result["arms"])).split(":")[0]
        plain = result["arms"][f"{name}: plain"][-1]
        ours = (
            result["arms"][f"{name}: {similarity}, calibrated, further"][0]
            for similarity in ("cosine", "pearson")
        )
        cells = " | ".join(f"{error:.1f}" for error in (plain, *ours))
        lines.append(f"| {TITLES[name]} | {cells} |")
    facts, setting = results[0]["environment"], results[0]["setting"]
    told = f"{setting['dataset']}, {setting['rows']} rows, {setting['epochs']} epochs"
    return "\n".join([*lines, "", f"One seed: {told}. {facts['cpu']}, torch {facts['torch']}."])


ARMS = {
    "plain": "plain",
    "cosine": "cosine, scratch",
    "cosine, depthwise left": "cosine, depthwise left, scratch",
    "pearson": "pearson, scratch",
    "pearson, depthwise left": "pearson, depthwise left, scratch",
}


def depthwise(results: Sequence[dict[str, Any]]) -> str:
    """The error at the end of networks that are trained from the beginning, one a row."""
    lines = [f"| network | {' | '.join(ARMS)} |", "|---" * (len(ARMS) + 1) + "|"]
    for result in results:
        name = next(iter(result["arms"])).split(":")[0]
        ends = [result["arms"].get(f"{name}: {arm}") for arm in ARMS.values()]
        cells = ["" if errors is None else f"{errors[-1]:.1f}" for errors in ends]
        setting = result["setting"]
        told = f"{TITLES[name]}, {setting['rows']} rows, {setting['epochs']} epochs, "
        told += _pace(setting)
        lines.append(f"| {told} | {' | '.join(cells)} |")
    facts = results[0]["environment"]
    place = f"{facts.get('gpu') or facts['cpu']}, torch {facts['torch']}"
    return "\n".join([*lines, "", f"CIFAR-10, test error in percent, one seed. {place}."])


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="where the data sets lie")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/finetuning"))
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--further", type=int, default=5)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--rows", type=int, help="of each part, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", action="store_true", help="no arm that is trained further")
    parser.add_argument("--arm", action="append", help="only these; default: all")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    arguments = parser.parse_args(argv)
    arguments.until = time.time() + 60 * arguments.minutes
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parsed(argv)
    keys = ("epochs", "further", "width", "batch", "lr", "rows", "seed")
    setting = {"dataset": DATASET, **{key: getattr(arguments, key) for key in keys}}
    result: dict[str, Any] = {"setting": setting, "environment": None, "arms": {}}
    if arguments.out.exists():
        result = json.loads(arguments.out.read_text())
        if result["setting"] != setting:
            raise SystemExit(f"{arguments.out} has other settings: give those, or another --out")
    result["environment"] = environment(arguments.device)
    images = Images(arguments.data, arguments.device, arguments.rows)
    for name in arguments.networks.split(","):
        for arm, make in Arms(name, images, arguments).all():
            is_wanted = arguments.arm is None or arm in arguments.arm
            if not is_wanted or f"{name}: {arm}" in result["arms"]:
                continue
            try:
                errors = make()
            except TimeIsUp:
                print("the time is up: give the same command again", flush=True)
                return 0
            result["arms"][f"{name}: {arm}"] = errors
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")
            print(f"{name}: {arm}: {errors[0]:.2f} then {errors[-1]:.2f} %", flush=True)
    print("all arms are made", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
