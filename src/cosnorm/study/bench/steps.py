"""A training step of a model by name, as it is or converted, and what a step takes.

As a program, in a process that has compiled nothing yet, it counts the kernels of one:

    python -m cosnorm.study.bench.steps '{"model": "resnet50", …}'
"""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cosnorm import convert
from cosnorm.study.bench import zoo
from cosnorm.study.bench.peers import compiled

VARIANTS = ("plain", "cosine", "pearson")  # as it is, and converted, norms dropped
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MODES = {"eager": None, "compile": "default", "reduce-overhead": "reduce-overhead"}


@dataclass(frozen=True)
class Setting:
    """All that a step is made from."""

    model: str
    variant: str
    device: str
    batch: int
    size: int
    autocast: str | None = None
    channels_last: bool = False
    mode: str = "eager"
    fuse: bool = False  # whether converted layers take over activations


class Step:
    """Forward, cross entropy, backward and plain SGD on one batch of random inputs."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.device = torch.device(setting.device)
        self.subject = zoo.maker(setting.model)(setting.size)
        model = self.subject.model
        self.account: dict[str, int] = {}
        if setting.variant != "plain":
            options: Any = {"drop_norms": True, "fuse_activations": setting.fuse}
            entries = convert(model, setting.variant, **options)  # pyright: ignore
            self.account = dict(Counter(entry.now or "left" for entry in entries))
        model.train().to(self.device)
        if setting.channels_last:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-6)
        mode = MODES[setting.mode]
        self.forward = compiled(model, mode) if mode else model
        self.use(setting.batch)

    def use(self, size: int) -> None:
        """Go on with batches of another size."""
        inputs, self.targets = self.subject.batch(size, self.device)
        if self.setting.channels_last:
            inputs = {
                name: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
                for name, x in inputs.items()
            }
        self.inputs = inputs

    def __call__(self) -> None:
        autocast = self.setting.autocast
        dtype = DTYPES[autocast] if autocast else torch.bfloat16
        if self.setting.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self.device.type, dtype, enabled=autocast is not None):
            output = self.forward(**self.inputs)
        zoo.loss(output, self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def check(self) -> None:
        """Raise where the time would not be that of training."""
        if not all(p.isfinite().all() for p in self.parameters):
            of = self.setting
            raise ArithmeticError(
                f"{of.model}, {of.variant}, {of.mode} has diverged: its time is not that of a "
                "training step"
            )


def gpu_busy(work: Callable[[], Any], steps: int = 3) -> float:
    """Milliseconds of a step in which the GPU does something, by the profiler."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            work()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return covered(spans) / steps / 1e3


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what the spans cover together: those of two streams may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def kernels(setting: Setting) -> dict[str, int]:
    """Kernels that Triton compiles in the first steps, and after a change of the batch size.

    Counted in a process of its own, which shares no kernels with models before. Without a GPU there
    are none.
    """
    if setting.device != "cuda":
        return {"first": 0, "another_batch": 0}
    words = [sys.executable, "-m", "cosnorm.study.bench.steps"]
    done = subprocess.run(
        [*words, json.dumps(dataclasses.asdict(setting))], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"counting the kernels of {setting.model} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def count(setting: Setting) -> dict[str, int]:
    """`kernels`, in this process."""
    from cosnorm.ops.triton.compilations import compilations  # not every torch brings a Triton

    with compilations() as first:
        step = Step(setting)
        for _ in range(2):
            step()
    with compilations() as another:
        step.use(max(1, setting.batch * 25 // 32))
        step()
    return {"first": len(first), "another_batch": len(another)}


if __name__ == "__main__":
    print(json.dumps(count(Setting(**json.loads(sys.argv[1])))))
