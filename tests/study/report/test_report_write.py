import hashlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synthetic import config_of, write_comparison, write_run

from cosnorm.study.report import ReportError, write_report
from cosnorm.study.runs.errors import StorageError

NAMES = {"index.html", "table.md", "table.tex", "table.csv", "pairs.csv", "runs.csv", "curves.csv"}
NAMES |= {"files.json"}


def test_a_comparison_gives_every_file(tmp_path):
    write_comparison(tmp_path / "runs", seeds=2)
    files = write_report(tmp_path / "runs", tmp_path / "runs" / "report")
    out = tmp_path / "runs" / "report"
    assert {path.name for path in out.iterdir()} == NAMES | {"mnist.png", "mnist.pdf"}
    assert files.page == str(out / "index.html")
    assert [Path(figure).name for figure in files.figures] == ["mnist.png", "mnist.pdf"]
    assert Path(files.figures[0]).read_bytes().startswith(b"\x89PNG")
    assert Path(files.figures[1]).read_bytes().startswith(b"%PDF")
    assert files.warnings == ()
    assert files.sections[0].groups[0].method == "pearson"
    assert "Normalisations compared on mnist" in Path(files.page).read_text()


def test_a_second_report_replaces_the_first_and_does_not_read_it(tmp_path):
    write_comparison(tmp_path, seeds=1)
    first = Path(write_report(tmp_path, tmp_path / "report").csv).read_bytes()
    assert Path(write_report(tmp_path, tmp_path / "report").csv).read_bytes() == first


def test_the_same_runs_give_the_same_figures(tmp_path):
    write_comparison(tmp_path, seeds=2)
    one = write_report(tmp_path, tmp_path / "one").figures
    two = write_report(tmp_path, tmp_path / "two").figures
    assert [Path(p).read_bytes() for p in one] == [Path(p).read_bytes() for p in two]


def test_the_report_copes_with_everything_at_once(tmp_path, caplog):
    runs = tmp_path / "runs"
    write_run(runs / "ok", config_of("pearson"))
    write_run(runs / "running", config_of("cosine"), state="running", upto=3)
    write_run(runs / "first", config_of("cosine", 1), state="running", upto=1)
    write_run(runs / "diverged", config_of("batch"), state="diverged", upto=1)
    write_run(runs / "unknown", config_of("_new $x$ 归一化"))
    write_run(runs / "steps", config_of("layer", epochs=None, steps=3000), every=100)
    write_run(runs / "std", config_of("pearson", init_std=0.3))
    empty = write_run(runs / "empty", config_of("weight"))
    (empty / "metrics.jsonl").write_text('{"epoch": 1, "step": 2, "test_error": null}\n{"e')
    with caplog.at_level(logging.WARNING):
        files = write_report(runs, tmp_path / "out", title="All at once")
    assert files.warnings[0] in caplog.text
    assert f"{empty / 'metrics.jsonl'}, line 2, is damaged" in caplog.text
    assert {Path(path).name for path in files.figures} == {
        "mnist.png",
        "mnist.pdf",
        "mnist-settings.png",
        "mnist-settings.pdf",
    }
    assert "<title>All at once</title>" in Path(files.page).read_text()


def test_file_names_of_data_sets_stay_inside_the_folder(tmp_path):
    for i, dataset in enumerate(("/a/..", "../../x y", "/b/x_y", "...")):
        write_run(tmp_path / "runs" / str(i), config_of("pearson", dataset=dataset))
    files = write_report(tmp_path / "runs", tmp_path / "out")
    assert all(Path(path).parent == tmp_path / "out" for path in files.figures)
    assert len({Path(path).name for path in files.figures}) == 8


def long_names():
    """Settings as large as they may be."""
    long = "n" * 60_000
    return [
        *(config_of(long), config_of("pearson", dataset=f"/{long}")),
        *(config_of("batch", scale=long), config_of("batch", 1), config_of("layer", **{long: 1})),
        *(config_of("cosine", seed=long), config_of("cosine", seed="9" * 5_000)),
    ]


def test_long_names_cost_no_more_than_short_ones(tmp_path):
    for number, config in enumerate(long_names()):
        write_run(tmp_path / "runs" / str(number), config, upto=3, state="running")
    begun = time.process_time()
    files = write_report(tmp_path / "runs", tmp_path / "out")
    assert time.process_time() - begun < 30
    assert sum(len(section.runs) for section in files.sections) == 7
    assert max(len(group.label) for section in files.sections for group in section.groups) <= 80


def test_a_path_that_is_not_text_costs_nothing(tmp_path):
    runs = Path(os.fsdecode(os.fsencode(tmp_path / "runs") + b"-\xff"))
    data = os.fsdecode(b"/data/\xe9t\xe9.npz")
    write_run(runs / "a", config_of("pearson", dataset=data))
    write_run(runs / "b", config_of("pearson", dataset=data, scale="\udcff"))
    files = write_report(runs, runs / "report")
    assert r"\udce9t\udce9.npz" in Path(files.page).read_text(encoding="utf-8")
    assert r"runs-\udcff" in Path(files.runs_csv).read_text(encoding="utf-8")
    assert len(files.figures) == 4


def test_nothing_is_written_where_there_is_nothing_to_report(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(ReportError, match="no run folders in"):
        write_report(tmp_path / "runs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    write_run(tmp_path / "runs" / "a", config_of("pearson"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file"):
        write_report(tmp_path / "runs", tmp_path / "file" / "out")


def test_a_failure_while_writing_leaves_the_old_files_whole(tmp_path, monkeypatch):
    write_comparison(tmp_path / "runs", seeds=1)
    files = write_report(tmp_path / "runs", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_report(tmp_path / "runs", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in Path(files.page).parent.iterdir()} == before


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    write_run(tmp_path / "a", config_of("pearson"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match=r"install cosnorm\[report\]"):
        write_report(tmp_path, tmp_path / "out")


def test_a_report_loads_no_torch_and_opens_no_window(tmp_path):
    write_run(tmp_path / "runs" / "a", config_of("pearson"))
    program = (
        "import sys; from cosnorm.study.report import write_report; "
        f"write_report({str(tmp_path / 'runs')!r}, {str(tmp_path / 'out')!r}); "
        "print([m for m in ('torch', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_report_over_an_older_one_leaves_nothing_of_that_and_all_else(tmp_path):
    write_run(tmp_path / "a" / "run", config_of("pearson", dataset="first"), layers=2)
    write_run(tmp_path / "b" / "run", config_of("pearson", dataset="second"))
    out = tmp_path / "out"
    write_report(tmp_path / "a", out)
    assert (out / "layers.csv").exists() and (out / "first.png").exists()
    (out / "own.txt").write_text("mine")
    (out / "first.pdf").write_bytes(b"mine by now")
    write_report(tmp_path / "b", out)
    figures = {"second.png", "second.pdf"}
    assert {path.name for path in out.iterdir()} == NAMES | figures | {"own.txt", "first.pdf"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"files": ["run"]}', b'{"files": {"../kept.txt": "%s"}}']
)
def test_a_damaged_list_of_files_deletes_nothing(tmp_path, content):
    write_run(tmp_path / "a", config_of("pearson"))
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "run").write_text("mine")
    checksum = hashlib.sha256(b"mine").hexdigest().encode()
    (out / "files.json").write_bytes(content.replace(b"%s", checksum))
    write_report(tmp_path / "a", out)
    assert kept.exists() and (out / "run").exists()
