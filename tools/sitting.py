"""Makes the planned runs that are still missing, in the order of results/sitting.json.

    PYTHONPATH=src python -m tools.sitting --minutes 8 --data DIR

Ends when all are made or the time is up; given again, it goes on. Whole run folders, with what it
takes to go on, stay in --work. Of each run that is over, three small files go to --out, into
PART/METHOD-seedK: config.json, summary.json and metrics.jsonl, the curve, thinned before its
window. A run that has those in --done is not made again. Parts with an `at_once` above 1 are small:
that many processes share the device, each with a run of its own. Parts that are `together` train
the seeds of a method as one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import InUseError, StorageError
from cosnorm.study.runs.presets import configure
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import LocalStorage

ROOT = Path(__file__).resolve().parent.parent
LEAST_SECONDS = 3.0  # a run that could not get further than this is not begun
FIRST, EVERY = 20, 3  # of a curve: the first evaluations whole, then every third, then the window
MOST_WHOLE = 120  # a curve of no more evaluations is kept whole


@dataclass(frozen=True)
class Job:
    """A run of a part of the plan."""

    part: str
    config: Config
    at_once: int
    together: bool

    @property
    def place(self) -> Path:
        return Path(self.part) / self.config.name


def planned(parts: Sequence[Mapping[str, Any]], device: str, only: str | None = None) -> list[Job]:
    """Every run of every part, seed by seed, so that what is there at any time compares."""
    return [
        Job(
            part["part"], _config(part, method, seed, device),
            part.get("at_once", 1), part.get("together", False),
        )
        for part in parts
        if only is None or part["part"] in only.split(",")
        for seed in part["seeds"]
        for method in part["methods"]
    ]  # fmt: skip


def grouped(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in the order in which they are made; those that train as one in one group."""
    groups: dict[object, list[Job]] = {}
    for number, job in enumerate(jobs):
        key = (job.part, replace(job.config, seed=0)) if job.together else number
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def _config(part: Mapping[str, Any], method: str, seed: int, device: str) -> Config:
    settings = {**part.get("settings", {}), **part.get("of_method", {}).get(method, {})}
    return configure(part["dataset"], method, seed, device=device, **settings)


def thinned(lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations that a curve needs; of the window, whose mean is the result, all."""
    unit, window = summary["window"]["unit"], summary["window"]["count"]
    from_here = lines[-1][unit] - window if lines else 0
    kept = ("epoch", "step", "train_loss", "test_error", "test_error_raw")
    return [
        {key: _short(line[key]) for key in kept if key in line}
        for i, line in enumerate(lines)
        if len(lines) <= MOST_WHOLE or i < FIRST or i % EVERY == 0 or line[unit] > from_here
    ]


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def export(work: Path, out: Path) -> bool:
    """Write the small files of a run that is over; returns whether it is.

    Two processes may come to that at once: each writes aside, and the first one's folder stays.
    """
    folder, aside = RunFolder(LocalStorage(work)), out.with_name(f".{out.name}-{os.getpid()}")
    config, summary = folder.read("config.json"), folder.summary()
    if config is None or summary is None:
        return False
    target, lines = RunFolder(LocalStorage(aside)), thinned(folder.metrics(), summary)
    target.storage.write("metrics.jsonl", "".join(f"{json.dumps(v)}\n" for v in lines).encode())
    target.write("config.json", config)
    target.write("summary.json", summary)
    try:
        aside.rename(out)
    except OSError:  # it is there
        shutil.rmtree(aside)
    return True


def work_through(jobs: Sequence[Job], arguments: argparse.Namespace) -> int:
    """One process's share: every run that no other process has, until the time is up."""
    failed, data = 0, Loaded(arguments.data)
    for group in grouped(jobs):
        if group[0].at_once <= arguments.worker or not _missing(group, arguments):
            continue
        try:
            dataset = data.of(group[0].config)
            left = arguments.until - time.time()
            if left < LEAST_SECONDS:
                break
            wanted = _missing(group, arguments)  # now that the data is loaded
            for job, outcome in zip(wanted, _made(wanted, dataset, left, arguments), strict=True):
                export(arguments.work / job.place, arguments.out / job.place)
                _tell(job, outcome.status, outcome.summary)
        except InUseError:
            continue
        except StorageError:
            raise
        except Exception:
            failed += 1
            place = group[0].place
            print(f"{place} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    return failed


def _made(
    jobs: Sequence[Job], dataset: Any, seconds: float, arguments: argparse.Namespace
) -> list[Any]:
    """The outcomes of a job, or of several as one, or of none."""
    from cosnorm.study.runs.progress import Silence
    from cosnorm.study.train import launchers
    from cosnorm.study.train.run import run
    from cosnorm.study.train.stopping import GiveUp, Stop
    from cosnorm.study.train.together import run_together

    options = {"stop": Stop(seconds / 60), "give_up": GiveUp(), "keep_checkpoints": False}
    if len(jobs) < 2:
        places = [(job.config, arguments.work / job.place) for job in jobs]
        return [run(config, place, dataset=dataset, **options) for config, place in places]
    several = [launchers.Job(job.config, LocalStorage(arguments.work / job.place)) for job in jobs]
    return run_together(several, dataset, [Silence() for _ in jobs], **options)


class Loaded:
    """The data set of the last job, which the next one mostly shares."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._key: object = None
        self._dataset: Any = None

    def of(self, config: Config) -> Any:
        from cosnorm.study.train.inputs import dataset_for

        key = (config.dataset, config.tfidf, config.min_df, config.svhn_extra)
        if key != self._key:
            self._key, self._dataset = None, None  # one at a time
            self._key, self._dataset = key, dataset_for(config, self.data_dir)
        return self._dataset


def _missing(jobs: Sequence[Job], arguments: argparse.Namespace) -> list[Job]:
    return [job for job in jobs if not _is_made(job, arguments)]


def _is_made(job: Job, arguments: argparse.Namespace) -> bool:
    places = (arguments.done, arguments.work)
    return any((place / job.place / "summary.json").exists() for place in places)


def _tell(job: Job, status: str, summary: Mapping[str, Any] | None) -> None:
    error = summary and summary["test_error_mean"]
    told = "" if error is None else f", test error {error:.3f} %"
    took = "" if summary is None else f", {summary['seconds']:.1f} s"
    # One write: print's line end would be a second one, and processes share the terminal.
    sys.stdout.write(f"{job.place}: {status}{told}{took}\n")
    sys.stdout.flush()


def start(number: int, argv: Sequence[str], until: float) -> subprocess.Popen[bytes]:
    """A process that works through the list as one of several."""
    own = ["--worker", str(number), "--until", str(until)]
    # Threads that wait must not spin: beside other busy processes that costs ten times the work.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    return subprocess.Popen([sys.executable, "-m", "tools.sitting", *argv, *own], env=environment)


@contextmanager
def shared_device(program: str | None) -> Iterator[None]:
    """Let processes use the device at the same time, not by turns, through NVIDIA's server.

    Processes find the server by the environment. Where it does not work, they go without.
    """
    if program is None:
        yield
        return
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(dict.fromkeys(names, folder))
        subprocess.run([program, "-d"], check=False)
        served = _device_answers()
        try:
            if not served:
                print("the server for shared devices does not work: without it", file=sys.stderr)
                _quit(program, names)
            yield
        finally:
            if served:
                _quit(program, names)


def _device_answers() -> bool:
    code = "import torch; torch.zeros(1, device='cuda').item()"
    try:
        return subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _quit(program: str, names: Sequence[str]) -> None:
    subprocess.run([program], input=b"quit\n", timeout=30, check=False)
    for name in names:
        del os.environ[name]


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--data", type=Path, required=True, help="where the data sets lie")
    parser.add_argument("--list", type=Path, default=ROOT / "results" / "sitting.json")
    parser.add_argument("--done", type=Path, default=ROOT / "results" / "runs")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "runs")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "sitting")
    parser.add_argument("--only", help="parts, with commas between")
    parser.add_argument("--at-once", type=int, help="processes, at most; default: as the list says")
    parser.add_argument(
        "--mps", action="store_true", help="with NVIDIA's server for shared devices"
    )
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    begun, arguments = time.time(), parsed(argv)
    parts = json.loads(arguments.list.read_text())["parts"]
    jobs = planned(parts, arguments.device, arguments.only)
    if arguments.worker is not None:
        return 1 if work_through(jobs, arguments) else 0
    missing = _missing(jobs, arguments)
    count = max((job.at_once for job in missing), default=0)
    count = min(count, len(missing), arguments.at_once or count)
    with shared_device(shutil.which("nvidia-cuda-mps-control") if arguments.mps else None):
        workers = [start(i, argv, begun + 60 * arguments.minutes) for i in range(count)]
        codes = [worker.wait() for worker in workers]
    for job in jobs:  # made in an earlier call, whose files are not where they belong yet
        if not (arguments.done / job.place / "summary.json").exists():
            export(arguments.work / job.place, arguments.out / job.place)
    made = sum(_is_made(job, arguments) for job in jobs)
    print(f"{made} of {len(jobs)} runs are made; {time.time() - begun:.0f} s", flush=True)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
