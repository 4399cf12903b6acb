"""The page's tables: made of the runs' files, whatever of them is there."""

import json

import pytest

from cosnorm.study.runs.presets import configure
from cosnorm.study.runs.result import result_of
from tools import figures, words
from tools import reproduction as r


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(r, "RESULTS", tmp_path)
    r.whole.cache_clear(), r.brief.cache_clear()
    yield tmp_path
    r.whole.cache_clear(), r.brief.cache_clear()


def write(results, part, method, seed, errors, every=1, status="done", **settings):
    """A run with these errors, one each evaluation, as the planned runs leave it."""
    config = configure(part.split("-")[0], method, seed, device="cuda", **settings)
    steps = config.steps is not None
    lines = [
        {"epoch": i, "step": i * every if steps else i, "train_loss": 1.0, "test_error": error}
        for i, error in enumerate(errors, 1)
    ]
    summary = {
        **result_of(config, lines, status),
        "steps": lines[-1]["step"],
        "seconds": 60.0,
        "data": {"test": 10_000},
        "environment": {"gpu": "A GPU", "commit": "0123456789ab"},
    }
    folder = results / "runs" / part / config.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": 1, **config.to_dict()}))
    (folder / "summary.json").write_text(json.dumps({"format": 1, **summary}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def row(table, name):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_without_runs_every_table_says_so(results):
    assert r.cells("mnist") == r.pairs("svhn") == r.NOT_YET
    assert r.short().startswith("None of the [planned runs](results/PLAN.md) is made yet")
    assert row(r.orders(), "MNIST") == ["0", "0", "0", "10"]


def test_a_table_of_the_papers_length(results):
    for seed in range(3):
        write(results, "mnist", "pearson", seed, [9.0] * 150 + [1.4 + 0.01 * seed] * 50)
        write(results, "mnist", "weight", seed, [9.0] * 150 + [1.9 + 0.01 * seed] * 50)
    told = row(r.cells("mnist"), "pearson")
    assert told[:2] == ["1.41 ± 0.01", "3"]
    assert told[-3:] == ["1.39", "+0.02 (−0.03 to +0.07)", "agrees within 0.23"]
    pair = row(r.pairs("mnist"), "pearson − weight")
    assert pair[1:] == ["better", "−0.26", "as in the paper"]
    assert row(r.orders(), "MNIST") == ["1", "0", "0", "9"]
    assert row(r.short(), "weight") == ["1.91 ± 0.01 (3)", "1.65"]


def test_a_full_run_is_read_as_a_short_one_beside_short_ones(results):
    full = [50.0] * 18 + [10.0] * 7 + [5.0] * 75
    write(results, "cifar10", "pearson", 0, full, every=1000)
    write(results, "cifar10-short", "pearson", 1, [50.0] * 18 + [10.2] * 7, 1000, steps=25_000)
    write(results, "cifar10", "batch", 0, [60.0] * 18 + [12.0] * 82, every=1000)
    write(results, "cifar10-short", "batch", 1, [50.0] * 18 + [12.2] * 7, 1000, steps=25_000)
    assert row(r.cells("cifar10"), "pearson")[:2] == ["5.00", "1"]
    assert "1 seed: no verdict" in row(r.cells("cifar10"), "pearson")[-1]
    pair = row(r.pairs("cifar10"), "pearson − batch")
    assert pair[:2] == ["−2.00 (−2.04 to −1.96)", "better"]
    assert "25,000 steps" in r.pairs("cifar10")


def test_a_run_that_was_given_up_stands_in_the_table_of_every_length(results):
    write(results, "cifar10", "layer", 0, [90.0] * 5, 1000, status="untrained")
    assert row(r.cells("cifar10"), "layer")[:2] == ["not trained", "0 + 1 not trained"]
    assert r.brief("cifar10").groups[0].runs[0].status == "untrained"


def test_curves_are_drawn_for_a_table_that_is_made(results, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", results / "figures")
    monkeypatch.setattr(figures.studies, "results", list)
    monkeypatch.setattr(figures, "advice", list)
    write(results, "mnist", "pearson", 0, [9.0] * 150 + [1.4] * 50)
    assert "![MNIST](figures/mnist.png)" in r.cells("mnist")
    assert figures.draw(check=False) == ["mnist.png"]
    assert figures.draw(check=True) == []
    assert (results / "figures" / "mnist.png").read_bytes().startswith(b"\x89PNG")
    write(results, "mnist", "batch", 0, [9.0] * 150 + [1.5] * 50)
    r.whole.cache_clear()
    assert figures.draw(check=True) == ["mnist.png"]


def test_damage_is_not_passed_over(results):
    write(results, "mnist", "pearson", 0, [1.4] * 200)
    (results / "runs" / "mnist" / "pearson-seed0" / "summary.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        r.cells("mnist")


def test_what_is_made_of_the_plan(results):
    write(results, "mnist", "pearson", 0, [1.4] * 200)
    part = {"part": "mnist", "methods": ["pearson", "cosine"], "seeds": [0, 1]}
    (results / "sitting.json").write_text(json.dumps({"parts": [part]}))
    assert row(r.made(), "mnist") == ["1 of 4", "1.0", "A GPU", "0123456"]


def test_how_soon_a_method_is_near_its_result(results):
    for seed in (0, 1):
        write(results, "mnist", "pearson", seed, [9.0] * (4 + 2 * seed) + [1.4] * (196 - 2 * seed))
        write(results, "mnist", "batch", seed, [9.0] * 19 + [1.4] * 181)
        write(results, "mnist", "layer", seed, [9.0] * 9 + [1.4] * 191)
    assert row(words.convergence(), "pearson") == ["6"]
    told = "- MNIST, epochs: within a factor of two for 2 of 3 pairs; not for pearson and batch."
    assert told in words.convergence()


def test_steadiness_by_seed(results):
    for seed in range(3):
        swing = [1.4 + seed / 100, 1.5 + seed / 50] * 25
        write(results, "mnist", "batch", seed, [9.0] * 150 + swing)
        write(results, "mnist", "pearson", seed, [9.0] * 150 + [1.40, 1.41] * 25)
    assert "| MNIST | pearson to batch | 0.0053 to 0.013 | steadier |" in words.steadiness()


def test_readings_beside_the_paper(results):
    rows = [
        {"reading": name, "method": m, "epochs": 200, "test_error_mean": error + off}
        for name, off in (("near", 1.0), ("far", 3.0))
        for m, error in zip(
            ("pearson", "cosine", "batch", "weight", "layer"),
            (29.37, 31.73, 43.94, 33.55, 33.29),
            strict=True,
        )
    ]
    (results / "detective.json").write_text(json.dumps({"rows": rows[:-1]}))
    assert row(words.detective(), "near")[-1] == "1.00"
    assert row(words.detective(), "far")[-2:] == ["", ""]


def test_readings_of_one_method_beside_the_planned_runs(results):
    errors = {"pearson": 29.37, "cosine": 31.73, "batch": 43.94, "weight": 33.55, "layer": 41.29}
    for method, error in errors.items():
        write(results, "20news", method, 0, [error] * 200)
    alone = {"reading": "rate ten times", "method": "layer", "epochs": 200}
    (results / "detective.json").write_text(
        json.dumps({"rows": [{**alone, "test_error_mean": 33.29}]})
    )
    told = words.detective()
    assert row(told, "plan")[-1] == f"{8 / 5**0.5:.2f}"
    assert row(told, "rate ten times")[-2:] == ["33.29", ""]
    assert row(told, "ten times the rate for layer alone")[-1] == "0.00"
    assert "for cosine and pearson" not in told
