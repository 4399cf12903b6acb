"""Makes the studies of the paper's claims in words as planned, and the files that the page shows.

    PYTHONPATH=src python -m tools.studies --minutes 8 --data DIR

Ends when all are made or the time is up; given again, it goes on from the files in --done. First
several processes make the runs, each of those that no other has, and a run that several studies
ask for is made once; then the studies measure them, one after another. NAME.json goes to --out;
that is what the page is made of.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosnorm.study.claims import STUDIES, study_named
from cosnorm.study.cli.outlook import counted
from cosnorm.study.runs.errors import InUseError
from cosnorm.study.runs.storage import LocalStorage
from tools import reproduction

if TYPE_CHECKING:
    from cosnorm.study.claims.study import Setting, Study
    from cosnorm.study.train.launchers import InProcess

ROOT = Path(__file__).resolve().parent.parent


def results() -> list[dict]:
    """The studies that are made, in their order; those under way are left out."""
    paths = [ROOT / "results" / "studies" / f"{name}.json" for name in STUDIES]
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    return [result for result in found if result["findings"] is not None]


def claims() -> str:
    """Every claim with what was found, and the figure."""
    parts = []
    for result in results():
        name, setting, facts = result["study"], result["setting"], result["environment"]
        place = f"{facts.get('gpu') or facts['cpu']}, torch {facts['torch']}"
        place += f", commit {str(facts['commit'])[:7]}"
        length, seeds = _setting(setting).length, counted(setting["seeds"], "seed")
        less = "".join(f" --{key} {setting[key]}" for key in _smaller(name, setting))
        told = "\n".join(f"- {finding}" for finding in result["findings"])
        parts.append(
            f"### {name}\n\n*{result['claim']}* {setting['dataset']}, {length}, {seeds}"
            f"{', fewer than planned' if less else ''} ({place}); `cosnorm study {name} --full"
            f"{less} --out runs/{name}` repeats it.\n\n{told}\n\n{_grid(result)}"
            f"![{name}](figures/{name}.png)"
        )
    missing = [name for name in STUDIES if name not in {r["study"] for r in results()}]
    if missing:
        parts.append(f"Not made yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _grid(result: Mapping[str, Any]) -> str:
    """Every held-out error by which a rate was chosen, where a study chooses so."""
    rows = [row for row in result["rows"] if row.get("held_out")]
    if not rows:
        return ""
    errors = {(row["method"], row["lr"]): row["test_error"] for row in rows}
    rates = sorted({row["lr"] for row in rows})

    def cell(method: str, lr: float) -> str:
        error = errors.get((method, lr), "")
        return "diverged" if error is None else error and f"{error:.2f}"

    cells = [
        [method, *(cell(method, lr) for lr in rates)]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    table = reproduction.table(["method", *(f"{lr:g}" for lr in rates)], cells)
    return f"Held-out error % by rate, seed 0:\n\n{table}\n\n"


def _setting(told: dict[str, Any]) -> "Setting":
    from cosnorm.study.claims.study import Setting

    return Setting(**told)


def _smaller(name: str, setting: dict[str, Any]) -> list[str]:
    plan = study_named(name).setting(True)
    return [key for key in ("epochs", "seeds") if setting[key] != getattr(plan, key)]


def make(name: str, arguments: argparse.Namespace) -> None:
    """One study, from what --done has of it and from runs that are made already."""
    from cosnorm.study.claims.study import conduct

    study, setting = _planned(name, arguments)
    work = _folder(name, arguments)
    before = arguments.done / f"{name}.json"
    if before.exists() and not (work / before.name).exists():
        work.mkdir(parents=True, exist_ok=True)
        shutil.copy(before, work)
    launcher = _launcher(arguments)
    conduct(study, setting, work, data_dir=arguments.data, launcher=launcher, tell=_tell)
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / f"{name}.json", arguments.out)


def make_runs(names: Sequence[str], arguments: argparse.Namespace) -> None:
    """One process's share: every run of the plan that no other process has, until time is up."""
    from cosnorm.study.claims.study import label
    from cosnorm.study.train.launchers import Job

    launch = _launcher(arguments)
    for name in names:
        study, setting = _planned(name, arguments)
        folder = _folder(name, arguments)
        before = arguments.done / f"{name}.json"
        known = json.loads(before.read_text())["runs"] if before.exists() else []
        for config in study.configs(setting):
            job = Job(config, LocalStorage(folder / "runs" / label(config)))
            if label(config) in known or job.is_over:
                continue
            try:
                ends = [outcome.status for _, outcome in launch([job])]
            except InUseError:
                continue
            if "stopped" in ends:
                return


def _folder(name: str, arguments: argparse.Namespace) -> Path:
    """Where a study works: with those of its data and length, whose runs may be its own."""
    setting = _planned(name, arguments)[1]
    kind = "modern" if name.startswith("modern-") else "paper"
    return arguments.work / f"{kind}-{setting.dataset}-{setting.length.replace(' ', '-')}"


def _planned(name: str, arguments: argparse.Namespace) -> tuple["Study", "Setting"]:
    study, a = study_named(name), arguments
    return study, study.setting(a.full, device=a.device, epochs=a.epochs, seeds=a.seeds)


def _launcher(arguments: argparse.Namespace) -> "InProcess":
    from cosnorm.study.train.launchers import InProcess
    from cosnorm.study.train.stopping import Stop

    left = (arguments.until - time.time()) / 60
    return InProcess(stop=Stop(max(left, 0.0)), data_dir=arguments.data, keep_checkpoints=False)


def _tell(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str]) -> int:
    begun = time.time()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--data", type=Path, required=True, help="where the data sets lie")
    parser.add_argument("--done", type=Path, default=ROOT / "results" / "studies")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "studies")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "studies")
    parser.add_argument("--only", default=",".join(STUDIES), help="names, with commas between")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--at-once", type=int, default=6, help="processes that make runs")
    parser.add_argument("--epochs", type=int, help="where they are to be fewer than planned")
    parser.add_argument("--seeds", type=int, help="where they are to be fewer than planned")
    parser.add_argument("--quick", dest="full", action="store_false", help="the small setting")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    if arguments.until is not None:
        make_runs(names, arguments)
        return 0
    arguments.until = begun + 60 * arguments.minutes
    command = [sys.executable, "-m", "tools.studies", *argv, "--until", str(arguments.until)]
    # Threads that wait must not spin: beside other busy processes that costs ten times the work.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    workers = [subprocess.Popen(command, env=environment) for _ in range(arguments.at_once)]
    codes = [worker.wait() for worker in workers]
    for name in names:
        make(name, arguments)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
