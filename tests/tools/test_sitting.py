"""The planned runs, made by real processes: in parts, at once, and never twice."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from cosnorm.study.report import load_runs
from cosnorm.study.runs.presets import PAPER, configure
from cosnorm.study.train.run import run

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = {
    "part": "small",
    "dataset": "digits",
    "methods": ["pearson", "none"],
    "seeds": [0, 1],
    "settings": {"epochs": 6, "width": 16},
    "at_once": 2,
}


def sitting(folder, *parts, minutes=2.0, out="out", options=()):
    """The program on a list of these parts, whole run folders in `folder`/work."""
    (folder / "list.json").write_text(json.dumps({"parts": parts}))
    command = (
        *(sys.executable, "-m", "tools.sitting", "--device", "cpu", "--minutes", str(minutes)),
        *("--data", folder, "--list", folder / "list.json", "--work", folder / "work"),
        *("--done", folder / "done", "--out", folder / out, *options),
    )  # an option that stands twice counts as it stands last
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def files_in(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_several_processes_share_the_list_and_leave_small_files(tmp_path):
    ended = sitting(tmp_path, SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    names = [f"small/{method}-seed{seed}" for seed in (0, 1) for method in ("pearson", "none")]
    told = ended.stdout.splitlines()
    # A process that comes to a run just as another ends it tells that it is done, too.
    assert sorted({line.split(":")[0] for line in told[:-1]}) == sorted(names)
    assert told[-1].startswith("4 of 4 runs are made")
    kinds = ("config.json", "metrics.jsonl", "summary.json")
    assert files_in(tmp_path / "out") == {f"{name}/{kind}" for name in names for kind in kinds}
    runs, warnings = load_runs(tmp_path / "out")
    assert (len(runs), warnings) == (4, [])
    again = sitting(tmp_path, SMALL)
    assert again.stdout.splitlines()[0].startswith("4 of 4 runs are made")


def test_seeds_that_train_as_one_leave_the_same_files(tmp_path):
    together = {**SMALL, "at_once": 1, "together": True}
    ended = sitting(tmp_path, together)
    assert (ended.returncode, ended.stderr) == (0, "")
    names = [f"small/{method}-seed{seed}" for method in ("pearson", "none") for seed in (0, 1)]
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[:-1]] == names
    kinds = ("config.json", "metrics.jsonl", "summary.json")
    assert files_in(tmp_path / "out") == {f"{name}/{kind}" for name in names for kind in kinds}
    for name in names:
        summary = json.loads((tmp_path / "out" / name / "summary.json").read_text())
        assert summary["environment"]["together"] == 2
    runs, warnings = load_runs(tmp_path / "out")
    assert (len(runs), warnings) == (4, [])


@pytest.mark.slow
def test_time_that_is_up_costs_nothing(tmp_path):
    """A run over several calls is gone on with, and a new place for results gets them all."""
    long = {**SMALL, "methods": ["pearson"], "seeds": [0], "at_once": 1}
    long["settings"] = {"epochs": 1000, "width": 16}
    metrics = tmp_path / "work/small/pearson-seed0/metrics.jsonl"
    for minutes in (0.1, 0.15, 0.25, 0.5):
        ended = sitting(tmp_path, long, minutes=minutes)
        assert (ended.returncode, (tmp_path / "out").exists()) == (0, False), ended.stderr
        if metrics.exists():  # else the time was over before the first epoch was
            break
    assert "small/pearson-seed0: stopped" in ended.stdout
    begun = metrics.read_bytes()
    sitting(tmp_path, long, minutes=4)
    assert metrics.read_bytes().startswith(begun)
    assert sitting(tmp_path, long, out="fresh").stdout.startswith("1 of 1 runs are made")
    assert files_in(tmp_path / "fresh") == files_in(tmp_path / "out") != set()
    summary = json.loads((tmp_path / "fresh/small/pearson-seed0/summary.json").read_text())
    kept = (tmp_path / "fresh/small/pearson-seed0/metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in kept]
    assert 330 < len(lines) < 500
    errors = [line["test_error"] for line in lines if line["epoch"] > 950]
    assert len(errors) == summary["window"]["evaluations"] == 50
    assert statistics.fmean(errors) == pytest.approx(summary["test_error_mean"], rel=1e-5)


def test_what_is_done_is_not_made_again(tmp_path):
    ended = sitting(tmp_path, SMALL)
    (tmp_path / "out").rename(tmp_path / "done")
    ended = sitting(tmp_path, SMALL, out="new", options=("--work", tmp_path / "other"))
    assert ended.stdout.startswith("4 of 4 runs are made")
    assert not (tmp_path / "new").exists() and not (tmp_path / "other").exists()


def test_a_run_that_learns_nothing_is_ended_and_recorded(tmp_path):
    dull = {**SMALL, "methods": ["none"], "seeds": [0]}
    dull["settings"] = {"steps": 20_000, "lr": 1e-9, "width": 4}
    ended = sitting(tmp_path, dull)
    assert "small/none-seed0: untrained" in ended.stdout
    summary = json.loads((tmp_path / "out/small/none-seed0/summary.json").read_text())
    assert (summary["untrained"], summary["steps"]) == (True, 5000)


def test_a_run_that_fails_is_told_and_the_others_are_made(tmp_path):
    wrong = {**SMALL, "part": "wrong", "dataset": "mnist", "methods": ["none"], "seeds": [0]}
    ended = sitting(tmp_path, wrong, SMALL)
    assert ended.returncode == 1
    assert "wrong/none-seed0 failed:" in ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("4 of 5 runs are made")


def test_the_list_is_the_plans():
    """Every part is a table's, names only settings that there are, and no run twice."""
    parts = json.loads((ROOT / "results" / "sitting.json").read_text())["parts"]
    places = []
    for part in parts:
        assert part["dataset"] in PAPER
        for method in part["methods"]:
            for seed in part["seeds"]:
                settings = part.get("settings", {}) | part.get("of_method", {}).get(method, {})
                config = configure(part["dataset"], method, seed, device="cuda", **settings)
                places.append((part["part"], config.name))
                length = config.epochs or config.steps
                assert length in (200, 100_000, 25_000)
    assert len(places) == len(set(places))
    for name in ("mnist", "20news"):
        assert len([place for place in places if place[0] == name]) == 6 * 5


def test_processes_that_write_the_same_small_files_at_once(tmp_path):
    """One has trained the run, another finds it over: both write what is to be kept of it."""
    run(configure("digits", "none", 0, epochs=1, width=8, device="cpu"), tmp_path / "work")
    program = (
        "import sys; from pathlib import Path; from tools.sitting import export\n"
        "work, out = map(Path, sys.argv[1:])\n"
        "print(flush=True); sys.stdin.readline()\n"
        "assert all(export(work, out / str(number)) for number in range(200))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "work"), str(tmp_path / "out")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    both = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(2)]
    for process in both:
        process.stdout.readline()  # ready
    for process in both:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in both]
    assert ends == [(b"", 0)] * 2
    names = {"config.json", "metrics.jsonl", "summary.json"}
    assert files_in(tmp_path / "out") == {f"{n}/{name}" for n in range(200) for name in names}
