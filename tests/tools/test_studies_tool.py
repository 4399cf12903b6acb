"""The studies as planned: made by processes, gone on with, and shown on the page."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import figures, reproduction, studies

ROOT = Path(__file__).resolve().parent.parent.parent


def made(folder, *options, only="steadiness", minutes=4.0):
    command = (
        *(sys.executable, "-m", "tools.studies", "--quick", "--device", "cpu", "--at-once", 2),
        *("--minutes", minutes, "--data", folder, "--only", only, "--work", folder / "work"),
        *("--done", folder / "out", "--out", folder / "out", *options),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_study_is_made_and_not_made_again(tmp_path):
    nothing = made(tmp_path, minutes=0.0)
    assert nothing.returncode == 0, nothing.stderr
    assert json.loads((tmp_path / "out" / "steadiness.json").read_text())["findings"] is None
    first = made(tmp_path)
    assert len(first.stdout.splitlines()) == 12
    assert json.loads((tmp_path / "out" / "steadiness.json").read_text())["findings"]
    shutil.rmtree(tmp_path / "work")
    again = made(tmp_path)
    assert (again.returncode, again.stdout) == (0, "")
    (work,) = (tmp_path / "work").iterdir()
    assert work.name == "paper-digits-20-epochs" and not (work / "runs").exists()


@pytest.mark.slow
def test_studies_of_one_length_share_their_runs(tmp_path):
    told = made(tmp_path, only="input,variance")
    assert (told.returncode, told.stderr) == (0, "")
    assert len(list((tmp_path / "work" / "paper-digits-4-epochs" / "runs").iterdir())) == 12
    for name in ("input", "variance"):
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())["findings"]


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(figures, "advice", list)
    monkeypatch.setattr(reproduction, "section", lambda name: None)
    (tmp_path / "results" / "studies").mkdir(parents=True)
    return tmp_path / "results" / "studies"


def result_of(findings):
    rows = [
        {"run": "x", "method": "pearson", "seed": s, "lr": 1.0, "batch_size": 100,
         "test_error": 2.0, "variance": 0.1 * s}
        for s in (1, 2)
    ]  # fmt: skip
    setting = {"dataset": "mnist", "epochs": 20, "seeds": 3}
    told = {"study": "steadiness", "claim": "It is.", "setting": setting}
    told["environment"] = {"cpu": "a CPU", "torch": "2", "commit": "abc"}
    return {**told, "findings": findings, "rows": rows}


def test_what_is_not_made_is_told(page):
    assert studies.claims().startswith("Not made yet: learning-rates, batch-size, input")
    (page / "steadiness.json").write_text(json.dumps(result_of(None)))
    assert "steadiness" in studies.claims().split("Not made yet: ")[1]


def test_figures_are_drawn_once_and_again_when_the_study_changes(page):
    (page / "steadiness.json").write_text(json.dumps(result_of(["It is so."])))
    assert "- It is so." in studies.claims()
    assert "![steadiness](figures/steadiness.png)" in studies.claims()
    assert figures.draw(check=True) == ["steadiness.png"]
    assert not figures.FIGURES.exists()
    assert figures.draw(check=False) == ["steadiness.png"]
    assert figures.draw(check=True) == []
    changed = result_of(["It is so."])
    changed["rows"][0]["variance"] = 0.5
    (page / "steadiness.json").write_text(json.dumps(changed))
    assert figures.draw(check=True) == ["steadiness.png"]


def test_the_whole_grid_is_shown_failures_among_it():
    found = {("batch", 1.0): 2.0, ("batch", 10.0): None, ("rms", 0.1): 3.333}
    rows = [
        {"method": m, "lr": lr, "held_out": True, "test_error": e} for (m, lr), e in found.items()
    ]
    rows.append({"method": "rms", "lr": 0.1, "held_out": False, "test_error": 9.0})
    assert studies._grid({"rows": rows}).splitlines()[2:] == [
        "| method | 0.1 | 1 | 10 |",
        "| --- | --- | --- | --- |",
        "| batch |  | 2.00 | diverged |",
        "| rms | 3.33 |  |  |",
        "",
    ]
    assert studies._grid({"rows": [{"method": "rms", "test_error": 9.0}]}) == ""
