import json
import re
from pathlib import Path

import pytest
from cli_cases import cosnorm, is_one_readable_line, own_data

from cosnorm.methods import PAPER_METHODS
from cosnorm.study.train.run import load_run


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    data = own_data(folder / "own.npz")
    arguments = (
        *("compare", "--dataset", data, "--methods", "pearson,none", "--seeds", 2),
        *("--epochs", 2, "--width", 16, "--device", "cpu", "--out", folder / "out"),
    )
    return folder / "out", arguments, cosnorm(*arguments)


def test_a_folder_for_each_run_and_a_report(compared):
    out, _, ended = compared
    assert (ended.returncode, ended.stderr) == (0, "")
    names = {"pearson-seed0", "pearson-seed1", "none-seed0", "none-seed1", "report"}
    assert {path.name for path in out.iterdir()} == names
    assert (out / "report" / "index.html").exists()
    for name in ("table.md", "table.csv"):
        text = (out / "report" / name).read_text()
        assert "pearson" in text and "none" in text
    assert list((out / "report").rglob("*.png"))
    assert "±" in ended.stdout
    report = out / "report"
    named = [line.split(": ", 1) for line in ended.stdout.splitlines()[-4:]]
    assert named == [
        ["table", str(report / "table.md")],
        ["figure", str(report / "own.npz.png")],
        ["figure", str(report / "own.npz.pdf")],
        ["page", str(report / "index.html")],
    ]
    assert all((report / path).exists() for _, path in named)


def test_it_says_how_many_runs_there_are_and_which_is_going(compared):
    _, _, ended = compared
    told = ended.stdout.splitlines()
    assert told[0] == "4 runs: 2 methods, 2 seeds each"
    begun = [line.split(":")[0] for line in told if ": begins, " in line]
    names = ("pearson-seed0", "pearson-seed1", "none-seed0", "none-seed1")
    assert begun == [f"{name} (run {i} of 4)" for i, name in enumerate(names, 1)]
    left = [line for line in told if " examples/s, " in line]
    assert all(re.search(r"/s, \d+:\d\d left for all 4 runs$", line) for line in left)
    assert left[-1].endswith(", 0:00 left for all 4 runs")


def test_programs_are_told_too(tmp_path):
    ended = cosnorm(
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "cosine,none"),
        *("--epochs", 2, "--width", 16, "--out", tmp_path / "out", "--json", "--watch"),
    )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    begun = [(e["run"], e["number"], e["runs"]) for e in events if e["event"] == "begin"]
    assert begun == [("cosine-seed0", 1, 2), ("none-seed0", 2, 2)]
    left = [e["seconds_left_for_all"] for e in events if e["event"] == "evaluation"]
    assert left[0] > left[-1] == 0
    watched = [e["layers"].keys() for e in events if e["event"] == "evaluation"]
    assert watched == [{"1", "2", "3"}] * 4


def test_a_log_for_each_run(tmp_path):
    ended = cosnorm(
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "cosine,none"),
        *("--epochs", 2, "--width", 16, "--out", tmp_path / "out", "--log", "tensorboard"),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    logs = tmp_path / "out" / "tensorboard"
    found = [path.parent.name for path in sorted(logs.rglob("events.out.tfevents.*"))]
    assert found == ["cosine-seed0", "none-seed0"]


def test_given_again_it_only_reports(compared):
    out, arguments, _ = compared
    before = {p: p.stat().st_mtime_ns for p in out.glob("*-seed*/*")}
    ended = cosnorm(*arguments, "--json")
    assert ended.returncode == 0
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events] == [*["end"] * 4, "report"]
    rows = {row["method"]: row for row in events[-1]["rows"]}
    assert rows["pearson"]["seeds"] == 2
    errors = [
        json.loads((out / f"pearson-seed{k}" / "summary.json").read_text())["test_error_mean"]
        for k in (0, 1)
    ]
    assert rows["pearson"]["test_error_mean"] == pytest.approx(sum(errors) / 2)
    assert {p: p.stat().st_mtime_ns for p in out.glob("*-seed*/*")} == before
    told = cosnorm(*arguments).stdout.splitlines()
    assert told[0] == "4 runs: 2 methods, 2 seeds each; 4 done before"


def test_a_diverged_run_does_not_end_the_comparison(tmp_path):
    ended = cosnorm(
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "none,cosine"),
        *("--epochs", 2, "--lr", 1e30, "--width", 16, "--out", tmp_path / "out"),
    )
    assert ended.returncode == 0
    table = (tmp_path / "out" / "report" / "table.md").read_text()
    for told in (ended.stdout, table):
        assert re.search(r"none +. +diverged .* 0 \+ 1 diverged", told)
    summaries = [
        json.loads((tmp_path / "out" / f"{m}-seed0" / "summary.json").read_text())
        for m in ("none", "cosine")
    ]
    assert summaries[0]["diverged"]
    assert (tmp_path / "out" / "report" / "index.html").exists()


def test_a_terminal_without_the_signs_gets_others(compared):
    _, arguments, _ = compared
    ended = cosnorm(*arguments, env={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"pearson .*% \+- \d", ended.stdout)
    assert "page: " in ended.stdout


def test_unequal_lengths_are_told(tmp_path):
    arguments = (
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--width", 16),
        *("--out", tmp_path / "out"),
    )
    assert cosnorm(*arguments, "--methods", "none", "--epochs", 1).returncode == 0
    ended = cosnorm(*arguments, "--methods", "cosine", "--epochs", 2)
    assert ended.returncode == 0
    assert re.search(r"cosine .* 2 epochs", ended.stdout)
    assert re.search(r"none .* 1 epoch\b", ended.stdout)


def test_max_minutes_stops_a_comparison_that_goes_on_later(tmp_path):
    arguments = (
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "cosine,none"),
        *("--epochs", 2, "--width", 16, "--out", tmp_path / "out"),
    )
    assert cosnorm(*arguments, "--max-minutes", 0).returncode == 75
    assert not (tmp_path / "out" / "none-seed0").exists()
    assert cosnorm(*arguments).returncode == 0


def test_export_and_predict(compared, tmp_path):
    np = pytest.importorskip("numpy")
    out, _, _ = compared
    with np.load(out.parent / "own.npz") as data:
        np.save(tmp_path / "rows.npy", data["x_test"][:5])
    told = cosnorm("predict", out / "none-seed0", tmp_path / "rows.npy")
    assert told.returncode == 0
    rows = [line.split("\t") for line in told.stdout.splitlines()]
    assert [row[0] for row in rows] == list("01234")
    assert {row[1] for row in rows} <= {"0", "1", "2"}
    exported = cosnorm("export", out / "none-seed0", "--out", tmp_path / "export", "--json")
    assert exported.returncode == 0
    names = {path.name for path in (tmp_path / "export").iterdir()}
    assert names == {"model.onnx", "model.safetensors", "labels.json"}


def test_a_file_that_cannot_be_classified_has_its_line_and_the_code_is_1(tmp_path):
    image = pytest.importorskip("PIL.Image")
    np = pytest.importorskip("numpy")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 4, 4), dtype=np.uint8)
    half = {"x_train": pixels, "y_train": [0, 1] * 4, "x_test": pixels, "y_test": [0, 1] * 4}
    np.savez(tmp_path / "own.npz", **half)
    run = tmp_path / "run"
    trained = cosnorm(
        *("train", "--dataset", tmp_path / "own.npz", "--method", "cosine", "--epochs", 1),
        *("--width", 8, "--out", run),
    )
    assert trained.returncode == 0
    (tmp_path / "images").mkdir()
    for name in "ac":
        image.fromarray(pixels[0]).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "images" / "b.png").write_bytes(b"junk")
    told = cosnorm("predict", run, tmp_path / "images")
    assert told.returncode == 1
    assert is_one_readable_line(told.stderr)
    assert "1 of the files is not classified, first " in told.stderr
    assert "b.png: not a readable picture" in told.stderr
    lines = [line.split("\t") for line in told.stdout.splitlines()]
    assert lines[1] == [str(tmp_path / "images" / "b.png"), "-", "-"]
    assert lines[0][1:] == lines[2][1:] != lines[1][1:]
    told = cosnorm("predict", run, tmp_path / "images", "--json")
    assert told.returncode == 1
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert rows[1]["class"] is rows[1]["probability"] is None
    assert "b.png: not a readable picture" in rows[1]["error"]
    assert rows[0].keys() == rows[2].keys() == {"name", "class", "probability"}


def test_the_papers_five_methods_unless_named():
    assert PAPER_METHODS == ("pearson", "cosine", "batch", "weight", "layer")


@pytest.mark.slow
def test_what_make_compares_has_seeds_enough_for_a_verdict(tmp_path):
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    recipe = re.search(r"bin/cosnorm (compare .*) --out \S+", makefile.replace("$(BIN)", "bin"))
    assert recipe
    ended = cosnorm(*recipe[1].split(), "--epochs", 3, "--out", tmp_path)
    assert ended.returncode == 0
    assert "25 runs: 5 methods, 5 seeds each" in ended.stdout
    verdicts = re.findall(
        r"(?:better|worse|equivalent within \S+|undecided|no verdict)", ended.stdout
    )
    assert len(verdicts) == 10
    assert "no verdict" not in verdicts


@pytest.mark.slow
def test_the_comparison_that_make_runs(tmp_path):
    ended = cosnorm("compare", "--dataset", "digits", "--out", tmp_path)
    assert ended.returncode == 0
    for method in PAPER_METHODS:
        summary = json.loads((tmp_path / f"{method}-seed0" / "summary.json").read_text())
        assert summary["test_error_mean"] < 10


def test_every_method_has_an_affine_of_its_own(tmp_path):
    ended = cosnorm(
        *("compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "cosine,rms,none"),
        *("--epochs", 1, "--width", 16, "--affine", "--out", tmp_path / "out"),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    state = {
        method: load_run(tmp_path / "out" / f"{method}-seed0").network.state_dict()
        for method in ("cosine", "rms", "none")
    }
    assert state["cosine"].keys() == state["none"].keys() | {"3.scale"}
    assert {"1.scale", "1.bias", "2.scale", "2.bias"} < state["none"].keys()
    assert "1.norm.weight" in state["rms"] and "3.norm.weight" not in state["rms"]


def test_a_comparison_refuses_data_that_has_changed_before_it_trains_anything(tmp_path):
    data = own_data(tmp_path / "own.npz")
    command = ["compare", "--dataset", data, "--methods", "cosine,none", "--epochs", 1]
    command += ["--width", 16, "--device", "cpu", "--out", tmp_path / "out"]
    assert cosnorm(*command).returncode == 0
    own_data(data, rows=500)
    done = cosnorm(*command, "--seeds", 2)
    assert done.returncode == 1
    assert "cosine-seed0 was begun with other data than" in done.stderr
    assert "own.npz is now" in " ".join(done.stderr.split())
    assert "restore the data, or choose another folder" in done.stderr
    assert not (tmp_path / "out" / "cosine-seed1").exists()
    data.unlink()
    assert cosnorm(*command).returncode == 0, "data that is gone has not changed"
