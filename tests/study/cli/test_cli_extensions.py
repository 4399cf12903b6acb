"""What others add from outside the package is used like what is in it, by real runs."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cases import cosnorm, is_one_readable_line

HERE = Path(__file__).parent
PLACES = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
WITH = {"COSNORM_EXTENSIONS": "outside", "PYTHONPATH": PLACES}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("outside") / "out"
    ended = cosnorm(
        *("compare", "--dataset", "bars", "--methods", "mine,cosine", "--network", "tiny"),
        *("--pipeline", "shifted", "--batch-size", 20, "--epochs", 4, "--seeds", 2),
        *("--device", "cpu", "--out", out),
        env=WITH,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return out


def test_the_command_line_trains_with_all_five_and_reports_on_them(compared):
    config = json.loads((compared / "mine-seed1" / "config.json").read_text())
    named = {key: config[key] for key in ("dataset", "method", "network", "pipeline")}
    assert named == {"dataset": "bars", "method": "mine", "network": "tiny", "pipeline": "shifted"}
    assert (config["lr"], config["width"]) == (0.5, 4)
    lines = (compared / "mine-seed1" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["largest_weight"] > 0 for line in lines)
    assert "| mine |" in (compared / "report" / "table.md").read_text()
    page = (compared / "report" / "index.html").read_text()
    assert "largest weight of any layer" in page and "#12ab34" in page
    curves = list(csv.DictReader((compared / "report" / "curves.csv").read_text().splitlines()))
    assert {row["method"] for row in curves if float(row["largest_weight"])} == {"mine", "cosine"}


def test_what_was_added_learns(compared):
    summary = json.loads((compared / "mine-seed0" / "summary.json").read_text())
    assert summary["final_test_error"] < 40  # of 67 by chance


def test_it_is_listed_and_offered(compared):
    listed = cosnorm("data", "list", env=WITH)
    assert "bars       added          Images with a bright row" in listed.stdout.splitlines()
    offered = "".join(cosnorm("train", "--help", env=WITH).stdout.split())
    assert "rms|mine>" in offered and "small_conv|tiny>" in offered and "|shifted>" in offered


def test_without_the_extension_a_run_is_refused_and_its_numbers_are_reported(compared):
    refused = cosnorm("export", compared / "mine-seed0")
    assert refused.returncode == 1 and is_one_readable_line(refused.stderr)
    assert "got 'mine'" in refused.stderr
    assert "name the extension in COSNORM_EXTENSIONS" in refused.stderr
    reported = cosnorm("report", compared, "--out", compared.parent / "again")
    assert (reported.returncode, reported.stderr) == (0, "")
    assert "| mine |" in (compared.parent / "again" / "table.md").read_text()


def test_the_library_takes_them_where_the_module_is_imported(tmp_path):
    code = (
        "import sys, outside, torch\n"
        "from cosnorm import study\n"
        "settings = dict(network='tiny', pipeline='shifted', batch_size=20)\n"
        "config = study.configure('bars', 'mine', epochs=1, **settings)\n"
        "outcome = study.compare([config], storage=sys.argv[1])['mine-seed0']\n"
        "assert outcome.status == 'done', outcome\n"
        "run = study.load_run(sys.argv[1] + '/mine-seed0')\n"
        "assert set(run.predict(outside.bars(None).test.x)) <= {'top', 'middle', 'bottom'}\n"
    )
    called = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(called, env={**os.environ, "PYTHONPATH": PLACES}, timeout=200)
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "broken, which cannot be loaded (ModuleNotFoundError: No module named 'broken')"),
        ("1 / 0", "broken, which cannot be loaded (ZeroDivisionError: division by zero)"),
        (
            "from cosnorm.methods import *\nMETHODS.add(Method('cosine', 'x:Y', 1.0))",
            "(ValueError: there is a method 'cosine' already: choose another name)",
        ),
    ],
)
def test_an_extension_that_cannot_be_loaded_is_named(tmp_path, content, told):
    if content is not None:
        (tmp_path / "broken.py").write_text(content)
    places = os.pathsep.join((str(tmp_path), PLACES))
    ended = cosnorm("--help", env={"COSNORM_EXTENSIONS": " broken ,", "PYTHONPATH": places})
    assert ended.returncode == 1
    assert is_one_readable_line(ended.stderr)
    assert told in ended.stderr and "COSNORM_EXTENSIONS names" in ended.stderr


def test_a_metric_cannot_take_the_place_of_what_evaluations_are():
    from cosnorm import study

    with pytest.raises(ValueError, match="every evaluation has a value 'step' of its own"):
        study.MetricEntry("step", "steps")
