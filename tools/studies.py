"""Makes the studies of the paper's claims in words as planned, and the files that the page shows.

    PYTHONPATH=src python -m tools.studies --minutes 8 --data DIR

Ends when all are made or the time is up; given again, it goes on from the files in --done. Each
study is a process of its own, so that they share the device. NAME.json goes to --out; that is what
the page is made of.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cosnorm.study.claims import STUDIES, study_named

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
        setting = result["setting"]
        told = "\n".join(f"- {finding}" for finding in result["findings"])
        parts.append(
            f"### {result['study']}\n\n*{result['claim']}* {setting['dataset']}, "
            f"{setting['epochs']} epochs, {setting['seeds']} seeds; `cosnorm study "
            f"{result['study']} --full --out runs/{result['study']}` repeats it.\n\n{told}\n\n"
            f"![{result['study']}](figures/{result['study']}.png)"
        )
    missing = [name for name in STUDIES if name not in {r["study"] for r in results()}]
    if missing:
        parts.append(f"Not made yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def make(name: str, arguments: argparse.Namespace) -> None:
    """One study, from what --done has of it."""
    from cosnorm.study.claims.study import conduct
    from cosnorm.study.train.launchers import InProcess
    from cosnorm.study.train.stopping import Stop

    study, work = study_named(name), arguments.work / name
    before = arguments.done / f"{name}.json"
    if before.exists() and not (work / before.name).exists():
        work.mkdir(parents=True, exist_ok=True)
        shutil.copy(before, work)
    setting = study.setting(arguments.full, device=arguments.device)
    left = (arguments.until - time.time()) / 60
    options = {"data_dir": arguments.data, "keep_checkpoints": False}
    launcher = InProcess(stop=Stop(max(left, 0.0)), **options)
    conduct(study, setting, work, data_dir=arguments.data, launcher=launcher, tell=_tell)
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / f"{name}.json", arguments.out)


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
    parser.add_argument("--quick", dest="full", action="store_false", help="the small setting")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    if arguments.until is not None:
        make(names[0], arguments)
        return 0
    until = str(begun + 60 * arguments.minutes)
    command = [sys.executable, "-m", "tools.studies", *argv]
    started = [subprocess.Popen([*command, "--only", name, "--until", until]) for name in names]
    codes = [process.wait() for process in started]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
