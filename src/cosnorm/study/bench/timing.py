"""How to time: in rounds, as ratios to a baseline of the same round, with their quantiles."""

import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cosnorm import __version__
from cosnorm.study.runs.environment import commit, processor


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def leave_default_stream(device: torch.device) -> None:
    """Work on a stream of our own: gradients remember the stream of their first use, and a graph
    cannot be captured across the default one."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))


def graphed(work: Callable[[], Any]) -> Callable[[], None]:
    """`work` captured in a CUDA graph: its kernels without the time it takes to launch them."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        work()

    def replay(kept: Any = work) -> None:  # the graph reads what `work` holds
        graph.replay()

    return replay


def _once(work: Callable[[], Any], repeats: int, cuda: bool) -> float:
    """Microseconds a call."""
    if cuda:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) * 1e6 / repeats


def interleaved(
    works: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    baseline: str,
    cuda: bool,
    warmup: int = 3,
    slice_ms: float = 5.0,
) -> dict[str, dict[str, float]]:
    """Each piece of work once a round, between two samples of the baseline.

    A ratio is taken to the mean of those two: a clock that drifts from millisecond to millisecond,
    as that of a GPU at its power limit does, drifts under both.
    """
    repeats = {}
    for name, work in works.items():
        for _ in range(warmup):
            work()
        cost = _once(work, 1, cuda)
        repeats[name] = max(1, int(slice_ms * 1e3 / max(cost, 1.0))) if cuda else 1

    def sample(name: str) -> float:
        works[name]()  # or a sample would measure the caches that its neighbour left behind
        return _once(works[name], repeats[name], cuda)

    times: dict[str, list[float]] = {name: [] for name in works}
    ratios: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        before = sample(baseline)
        for name in works:
            if name == baseline:
                continue
            here, after = sample(name), sample(baseline)
            times[name].append(here)
            ratios[name].append(2 * here / (before + after))
            times[baseline].append(after)
            ratios[baseline].append(after / before)
            before = after
    return {name: _summary(times[name], ratios[name]) for name in works}


def _summary(times: list[float], ratios: list[float]) -> dict[str, float]:
    return {
        "microseconds": round(median(times), 2),
        "ratio": round(median(ratios), 4),
        "ratio_q20": round(quantile(ratios, 0.2), 4),
        "ratio_q80": round(quantile(ratios, 0.8), 4),
    }


def held_bytes(forward: Callable[[], Any], known: list[torch.Tensor]) -> int:
    """Bytes that autograd keeps for backward, storages counted once, `known` ones not at all."""
    skip = {t.untyped_storage().data_ptr() for t in known}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skip:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = forward()
    total = sum(kept.values())
    del output
    return total


def provenance(device: torch.device) -> dict[str, Any]:
    """What a number means nothing without: hardware, versions, commit."""
    facts: dict[str, Any] = {
        "cosnorm": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["driver"] = _driver()
        facts["triton"] = __import__("importlib.metadata").metadata.version("triton")
    return facts


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip()


def write(path: str | None, report: dict[str, Any]) -> None:
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(report, indent=1) + "\n")
